"""Read a cluster from a file of data/clusters, or from one of your own.

Write a cluster as a file of data/clusters, which `read_cluster` reads back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    model_validator,
)

from ddlnb.clusters.cluster import ASSUMED_ERROR, Cluster, Fit
from ddlnb.clusters.effects import BANDWIDTH, EFFECTS, SECONDS, Effects, effect_from
from ddlnb.clusters.heterogeneous import HOMOGENEOUS, Delay, Heterogeneity, named
from ddlnb.errors import InputError, UnknownName, require, require_known
from ddlnb.files import CLUSTERS, write_atomically
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.reading import read_yaml
from ddlnb.units import GB, KB, MB, MS, US, gigabits_per_second, seconds_from

CHECKED = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
Whole = Annotated[int, Strict()]  # not yes or no, which YAML also writes
Number = Annotated[float, Strict()]
Fact = Annotated[str, BeforeValidator(str)]  # free text, which may look like a number


def get_cluster(
    name: str | Path | Cluster, workers: int | None = None, folder: str | Path = CLUSTERS
) -> Cluster:
    """Return the named cluster of data/clusters, the one at a path, or the Cluster itself.

    ``workers`` is the number of its GPUs in use, by default all. Raises UnknownName with the names
    that exist, and InputError for a file that does not describe a cluster, for more workers than
    the cluster has GPUs, and for workers that fill a node partly.

    >>> import ddlnb
    >>> ddlnb.get_cluster("survey-10GbE", workers=16)
    Cluster('survey-10GbE', workers=16 of 32)
    """
    if isinstance(name, Cluster):
        cluster = name
    elif str(name).endswith((".yaml", ".yml")):
        cluster = read_cluster(Path(name))
    else:
        known = cluster_names(folder := Path(folder))
        if name not in known:
            raise UnknownName("cluster", name, [*known, "or the path of a .yaml file"])
        cluster = read_cluster(folder / f"{name}.yaml")
    return cluster if workers is None else cluster.with_workers(workers)


def cluster_names(folder: Path = CLUSTERS) -> list[str]:
    """Return the names of the clusters in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_cluster(path: Path) -> Cluster:
    """Return the cluster that a YAML file describes.

    Raises InputError that names the file, the key, the value and the way out.
    """
    content = read_yaml(path, ClusterFile)
    try:
        return content.cluster(path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


class EffectEntry(BaseModel):
    """An effect as the file writes it: a value, or a value with its interval and source."""

    model_config = CHECKED

    value: str
    low: str | None = None
    high: str | None = None
    source: str | None = Field(None, alias="from")

    @model_validator(mode="before")
    @classmethod
    def _of_value(cls, given: Any) -> Any:
        return given if isinstance(given, dict) else {"value": given}

    def fit(self, effect: str) -> Fit | None:
        """Return what is known of the effect, if the entry tells it."""
        told = (self.low, self.high, self.source)
        if told == (None, None, None):
            return None
        if self.low is None or self.high is None or self.source is None:
            raise InputError(f"{effect} must have all of value, low, high and from, or a value")
        fit = Fit(effect_from(effect, self.low), effect_from(effect, self.high), self.source)
        require(
            fit.low <= effect_from(effect, self.value) <= fit.high,
            f"{effect} {self.value} must lie between its low {self.low} and its high {self.high}",
        )
        return fit


class PlanningEntry(BaseModel):
    """The cost of an all-reduce that methods assume."""

    model_config = CHECKED

    latency: str
    bandwidth: str

    def cost(self) -> AlphaBeta:
        """Return the cost in seconds and seconds per byte."""
        try:
            latency = effect_from("operation_latency", self.latency)
            return AlphaBeta(latency, 1 / effect_from("between_bandwidth", self.bandwidth))
        except InputError as error:
            raise InputError(f"planning: {error}") from error


class DelayEntry(BaseModel):
    """A random delay before every iteration; `Delay` has the meanings."""

    model_config = CHECKED

    distribution: str
    mean: str
    shape: Number | None = None
    seed: Whole = 0

    def delay(self) -> Delay:
        """Return the delay in seconds."""
        try:
            mean = seconds_from(self.mean)
        except InputError as error:
            raise InputError(f"mean of a delay: {error}") from error
        return Delay(self.distribution, mean, self.shape, self.seed)


class HeterogeneityEntry(BaseModel):
    """How workers differ: factors by number for those that differ, or one for each."""

    model_config = CHECKED

    compute: dict[int, float] | list[float] = Field(default_factory=list)
    link: dict[int, float] | list[float] = Field(default_factory=list)
    delay: DelayEntry | None = None

    def heterogeneity(self, workers: int, nodes: int) -> Heterogeneity:
        """Return how the workers of a cluster of this size differ."""
        try:
            return Heterogeneity(
                named("compute", "worker", self.compute, workers) if self.compute else (),
                named("link", "node", self.link, nodes) if self.link else (),
                None if self.delay is None else self.delay.delay(),
            )
        except InputError as error:
            raise InputError(f"heterogeneity: {error}") from error


class ClusterFile(BaseModel):
    """The keys of a cluster file; `Cluster` has their meanings. A word is no number."""

    model_config = ConfigDict(extra="forbid")

    network: str
    nodes: Whole
    gpus_per_node: Whole
    effects: dict[str, EffectEntry]
    all_reduce: str = "ring"
    topology: str = ""
    routing: str = ""
    changes: tuple[str, ...] = ()
    server_place: str | None = None
    placement: str = "balanced"
    planning: PlanningEntry | None = None
    model_error: Number = ASSUMED_ERROR
    fitted_workers: Whole = 0
    hardware: str = ""
    # Files of 0.1 call it unlike.
    heterogeneity: HeterogeneityEntry | None = Field(
        None, validation_alias=AliasChoices("heterogeneity", "unlike")
    )
    about: str = ""
    facts: dict[str, Fact] = Field(default_factory=dict)

    def cluster(self, name: str) -> Cluster:
        """Return the cluster under this name."""
        values = {}
        for effect, entry in self.effects.items():
            require_known("effect", effect, EFFECTS)
            values[effect] = effect_from(effect, entry.value)
        fits = {effect: entry.fit(effect) for effect, entry in self.effects.items()}
        self._require_links()
        return Cluster(
            name=name,
            effects=Effects(**values),
            fits={effect: fit for effect, fit in fits.items() if fit is not None},
            planning=None if self.planning is None else self.planning.cost(),
            heterogeneity=HOMOGENEOUS
            if self.heterogeneity is None
            else self.heterogeneity.heterogeneity(self.nodes * self.gpus_per_node, self.nodes),
            **self.model_dump(exclude={"effects", "planning", "heterogeneity"}),
        )

    def _require_links(self) -> None:
        """Return a link that is there must have a bandwidth, even if that is 'unlimited'."""
        needed = {
            "inside_bandwidth": (self.gpus_per_node != 1, "nodes hold several GPUs"),
            "between_bandwidth": (self.nodes != 1, "there are several nodes"),
        }
        for effect, (is_needed, why) in needed.items():
            require(
                not is_needed or effect in self.effects,
                f"effects lack {effect}, but {why}; add it, with a unit or as 'unlimited'",
            )


STRUCTURE = ClusterFile.model_fields.keys() - {"effects"}
WRITTEN = ("inside_bandwidth", "between_bandwidth", "server_bandwidth")  # even if unlimited


def write_cluster(cluster: Cluster, path: str | Path) -> Path:
    """Write facts, then effects with their intervals, and return the path.

    Numbers have six digits. The name of a cluster is that of its file; how many of its workers
    are in use is not written.
    """
    effects = "".join(f"  {name}: {_flow(value)}\n" for name, value in _effects(cluster).items())
    head = yaml.safe_dump(_structure(cluster), sort_keys=False, allow_unicode=True, width=math.inf)
    return write_atomically(path, f"{head}effects:\n{effects}")


def _structure(cluster: Cluster) -> dict[str, Any]:
    """Return all but the effects, where it differs from the default."""
    found: dict[str, Any] = {"about": cluster.about} if cluster.about else {}
    for entry in fields(Cluster):
        if entry.name not in STRUCTURE - {"about"}:
            continue
        value = getattr(cluster, entry.name)
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        if value == default:
            continue
        if isinstance(value, AlphaBeta):
            value = {
                "latency": _text("operation_latency", value.latency_seconds),
                "bandwidth": _text("inside_bandwidth", value.bytes_per_second),
            }
        if isinstance(value, Heterogeneity):
            value = _heterogeneity(value)
        found[entry.name] = dict(value) if isinstance(value, Mapping) else value
    return found


def _heterogeneity(given: Heterogeneity) -> dict[str, Any]:
    """Return what differs from workers that are alike."""
    found: dict[str, Any] = {
        name: dict(factors)
        for name, factors in (("compute", given.compute), ("link", given.link))
        if factors
    }
    if (delay := given.delay) is not None:
        drawn = {"distribution": delay.distribution, "mean": f"{delay.mean:.6g} s"}
        shape = {} if delay.shape is None else {"shape": delay.shape}
        found["delay"] = {**drawn, **shape, "seed": delay.seed}
    return found


def _effects(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in EFFECTS:
        value, fit = getattr(cluster.effects, name), cluster.fits.get(name)
        if fit is not None:
            ends = {"low": _text(name, fit.low), "high": _text(name, fit.high)}
            found[name] = {"value": _text(name, value), **ends, "from": fit.source}
        elif name in cluster.effects.there or name in WRITTEN:
            found[name] = _text(name, value)
    return found


def _text(name: str, value: float) -> str | float:
    """Return a value with a unit that suits its size."""
    declared = EFFECTS[name]
    if declared.unit is SECONDS:
        unit, factor = ("us", US) if value < MS else ("ms", MS) if value < 1 else ("s", 1.0)
        return f"{value / factor:.6g} {unit}"
    if declared.unit is not BANDWIDTH:
        return float(f"{value:.6g}")
    if math.isinf(value):
        return "unlimited"
    if declared.kind in ("between", "server link"):  # networks are sold in bits, not bytes
        return f"{gigabits_per_second(value):.6g} Gb/s"
    unit, factor = ("GB/s", GB) if value >= GB else ("MB/s", MB) if value >= MB else ("kB/s", KB)
    return f"{value / factor:.6g} {unit}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text.removesuffix("\n...\n").rstrip("\n")
