"""What a calibration fits, as data: files in data/calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddlnb.calibration.parameters import Parameter
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNITS
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.paths import CALIBRATION
from ddlnb.units import seconds_from
from ddlnb.workloads.workload import Workload

REQUIRED = {"effect", "prior", "spread", "low", "high", "why"}
OPTIONAL = {"network", "model"}


@dataclass(frozen=True)
class Setup:
    """Clusters to calibrate, the parameters to fit, why each has its prior, and the least error."""

    clusters: tuple[Cluster, ...]
    parameters: tuple[Parameter, ...]
    why: Mapping[str, str]
    model_error: float = 0.0


def read_setup(
    name: str, workloads: Mapping[str, Workload] | None = None, folder: Path = CALIBRATION
) -> Setup:
    """The set-up of that name. Raises InputError, naming the entry and the key.

    A compute_factor of one model is written as seconds of an iteration, and becomes a factor of
    those of its workload in ``workloads``.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UnknownName("calibration", name, known)
    raw = yaml.safe_load((folder / f"{name}.yaml").read_text())
    for key in ("clusters", "parameters"):
        require(isinstance(raw, dict) and key in raw, f"calibration {name!r} lacks the key {key!r}")
    parameters, why = [], {}
    for number, entry in enumerate(raw["parameters"], start=1):
        try:
            parameter = _parameter(entry, workloads or {})
        except InputError as error:
            raise InputError(f"calibration {name!r}, parameter {number}: {error}") from error
        parameters.append(parameter)
        why[parameter.name] = entry["why"]
    clusters = tuple(get_cluster(cluster) for cluster in raw["clusters"])
    return Setup(clusters, tuple(parameters), why, float(raw.get("model_error", 0.0)))


def _parameter(entry: dict[str, Any], workloads: Mapping[str, Workload]) -> Parameter:
    for key in entry:
        if key not in REQUIRED | OPTIONAL:
            raise UnknownName("key", key, sorted(REQUIRED | OPTIONAL))
    missing = sorted(REQUIRED - entry.keys())
    require(not missing, f"keys {missing} are missing")
    require(len(OPTIONAL & entry.keys()) < 2, "give a network or a model, not both")
    effect, model = entry["effect"], entry.get("model")
    if effect not in UNITS:
        raise UnknownName("effect", effect, UNITS)
    parse: Callable[[str], float] = UNITS[effect].parse
    if effect == "compute_factor" and model is not None:
        if model not in workloads:
            raise UnknownName("model with a workload", model, workloads)
        own = workloads[model].compute_seconds

        def parse(text: str) -> float:
            return seconds_from(text) / own

    of = tuple(entry[key] for key in ("network", "model") if key in entry)
    low, high, prior = (parse(entry[key]) for key in ("low", "high", "prior"))
    spread = float(entry["spread"])
    return Parameter(effect, of, low=low, high=high, prior=prior, prior_spread=spread)
