"""Read from a YAML file what a calibration fits: clusters, and parameters with their priors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PositiveFloat,
    field_validator,
    model_validator,
)

from ddlnb.calibration.parameters import Parameter
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNITS
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.files import read_yaml
from ddlnb.plans.methods import get_method
from ddlnb.units import seconds_from
from ddlnb.workloads.workload import Workload


def _listed(value: object) -> object:
    """Return one name as a tuple of one."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


@dataclass(frozen=True)
class Setup:
    """The clusters to calibrate, the parameters to fit, and the least model error to assume."""

    clusters: tuple[Cluster, ...]
    parameters: tuple[Parameter, ...]
    model_error: float


class ParameterEntry(BaseModel):
    """A parameter as the file writes it; ``why`` gives the reason for its prior."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    effect: str
    prior: str
    spread: PositiveFloat
    low: str
    high: str
    why: str
    network: str | None = None
    model: Names = ()
    method: Names = ()

    @field_validator("effect")
    @classmethod
    def _is_known(cls, effect: str) -> str:
        if effect not in UNITS:
            raise UnknownName("effect", effect, UNITS)
        return effect

    @model_validator(mode="after")
    def _is_of_one_thing(self) -> ParameterEntry:
        require(not (self.network and self.model), "must name a network or models, not both")
        for name in self.method:
            get_method(name)
        return self

    def parameter(self, workloads: Mapping[str, Workload]) -> Parameter:
        """Return the parameter; seconds of a model become a factor of those of its workload."""
        low, high, prior = (
            self._parsed(value, workloads) for value in (self.low, self.high, self.prior)
        )
        return Parameter(
            self.effect,
            (self.network,) if self.network else self.model,
            methods=self.method,
            low=low,
            high=high,
            prior=prior,
            prior_spread=self.spread,
        )

    def _parsed(self, value: str, workloads: Mapping[str, Workload]) -> float:
        if self.effect != "compute_factor" or not self.model:
            return UNITS[self.effect].parse(value)
        (model,) = self.model
        if model not in workloads:
            raise UnknownName("model with a workload", model, workloads)
        return seconds_from(value) / workloads[model].compute_seconds


class SetupFile(BaseModel):
    """The file: names of clusters, parameters, and the least model error."""

    model_config = ConfigDict(extra="forbid")

    clusters: list[str]
    parameters: list[ParameterEntry]
    model_error: float = 0.0


def read_setup(path: Path, workloads: Mapping[str, Workload]) -> Setup:
    """Return the set-up in a file. Raises InputError that names the entry and the key.

    A compute_factor of one model is written as the seconds of an iteration, and becomes a factor of
    those of its workload in ``workloads``.
    """
    file = read_yaml(path, SetupFile)
    parameters = []
    for number, entry in enumerate(file.parameters, start=1):
        try:
            parameters.append(entry.parameter(workloads))
        except InputError as error:
            raise InputError(f"{path}: parameters {number}: {error}") from error
    clusters = tuple(get_cluster(name) for name in file.clusters)
    return Setup(clusters, tuple(parameters), file.model_error)
