"""Calibrates the survey's testbed from what is published, with at most eight GPUs.

There are two sources. Its text quotes a few seconds and speedups. Fig. 4 has cells, of which those
with up to eight GPUs belong into data/published/fig4_upto8.csv; where that file is missing, the
text is all there is, and the priors of data/calibration/survey.yaml say the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ddlnb.calibration.fit import Calibration, calibrate_parameters
from ddlnb.calibration.observations import Observation, observe
from ddlnb.calibration.parameters import Parameter
from ddlnb.calibration.quantities import AllReduceTime, BestSpeedup, HopTime, IterationTime
from ddlnb.calibration.testbed import (
    BATCHES,
    CLUSTERS,
    HARDWARE,
    as_run,
    fig4_cluster,
    fig4_workload,
)
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNITS
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.paths import CALIBRATION, DATA, PUBLISHED
from ddlnb.plans.methods import METHODS
from ddlnb.results.checks import check_table, without_suspicious
from ddlnb.results.published import fig4_cells, quoted
from ddlnb.simulator.forecast import Z90
from ddlnb.simulator.simulate import Cell
from ddlnb.units import BITS_PER_BYTE, KIB, MIB, MS, seconds_from
from ddlnb.workloads.workload import Workload

# What a calibration fits, as data: files in data/calibration.
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


# Relative standard deviations: of values that are printed with two digits, of one measured once,
# and of a cell, the mean of five runs of a hundred iterations.
TWO_DIGITS = 0.02
ONCE = 0.01
CELL = 0.01

CELLS = PUBLISHED / "fig4_upto8.csv"


def survey_setup() -> Setup:
    """What is fitted, with the profiles of the survey's models as they are now."""
    return read_setup("survey", {model: fig4_workload(model) for model in BATCHES})


def calibrate_survey(*, starts: int = 1, seed: int = 0, cells: Path = CELLS) -> Calibration:
    """The fit of the survey's testbed to its quotes and, where they are there, its cells."""
    setup = survey_setup()
    observations = [*quoted_observations(setup.clusters), *cell_observations(cells)]
    found = calibrate_parameters(observations, setup.parameters, starts=starts, seed=seed)
    return replace(found, model_error=max(found.model_error, setup.model_error))


def quoted_observations(clusters: Sequence[Cluster]) -> list[Observation]:
    """What the survey's text says of runs with at most four GPUs (A12 to A15, A40 to A42)."""
    found = []
    for cluster in clusters:
        for key, words, size in (("A14", "1 MB", MIB), ("A15", "16 KB", 16 * KIB)):
            rate = quoted(key, f"rate of a {words} message over {cluster.network}")
            seconds = size * BITS_PER_BYTE / (rate * 1e9)
            found.append(observe(HopTime(cluster, size), seconds, TWO_DIGITS, "published"))
    node = fig4_cluster("10GbE", 4)
    size = fig4_workload("bert-large").gradient_bytes
    seconds = quoted("A12", "all-reduce of bert-large over 4 GPUs on PCIe 3.0") * MS
    found.append(observe(AllReduceTime(node, size), seconds, ONCE, "published"))
    for model, key, words in (
        ("resnet50", "A40", "speedup"),
        ("bert-base", "A41", "speedup"),
        ("bert-large", "A42", "most speedup"),
    ):
        speedup = quoted(key, f"{words} of {model} on 4 GPUs")
        cells = tuple(Cell(fig4_workload(model), node, as_run(name)) for name in METHODS)
        found.append(observe(BestSpeedup(cells), speedup, TWO_DIGITS, "published"))
    return found


def cell_observations(path: Path = CELLS) -> list[Observation]:
    """The published cells of Fig. 4 with up to 8 GPUs, without the suspicious ones; often none.

    What runs on one GPU is the same whatever its row says of methods and networks.
    """
    rows = fig4_cells(path)
    if rows.empty:
        return []
    rows = without_suspicious(rows, check_table(rows))
    found = []
    for row in rows.to_dict("records"):
        gpus = int(row["gpus"])
        method = as_run(row["method"] if gpus > 1 else "BSP-A2A")
        cell = Cell(fig4_workload(row["model"]), fig4_cluster(row["network"], gpus), method)
        seconds = cell.samples / row["throughput_samples_per_s"]
        found.append(observe(IterationTime(cell), seconds, CELL, "published"))
    return found


def write_survey(found: Calibration, folder: Path = DATA) -> list[Path]:
    """The files of the fitted clusters and profiles, written into data."""
    from ddlnb.clusters.file import write_cluster
    from ddlnb.workloads.profiling import write_profile

    paths = [
        write_cluster(cluster, folder / "clusters" / f"{cluster.name}.yaml")
        for cluster in found.clusters([get_cluster(name) for name in CLUSTERS.values()])
    ]
    for model in BATCHES:
        name = f"compute_factor@{model}"
        if name in found.value_of:
            workload = _rescaled(fig4_workload(model), found, name)
            profile = f"{model}_b{BATCHES[model]}_{HARDWARE}"
            paths.append(write_profile(workload, profile, folder / "profiles"))
    return paths


def _rescaled(workload: Workload, found: Calibration, name: str) -> Workload:
    """The workload with the fitted pace and its spread."""
    low, high = found.intervals[name]
    source = (
        f"FLOPs of the trace shared out over seconds fitted by ddlnb calibrate survey "
        f"to {len(found.observations)} observations"
    )
    spread = math.log(high / low) / (2 * Z90)
    return replace(workload.scaled(found.value_of[name], source), spread=spread)
