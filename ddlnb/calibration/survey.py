"""Calibrate the survey's testbed to what is published of runs with at most eight GPUs.

There are two sources. The survey's text quotes a few seconds and speedups. Fig. 4 has cells, of
which those with up to eight GPUs belong in data/published/fig4_upto8.csv; where that file is
missing, the text is all there is, and the priors of data/calibration/survey.yaml say the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddlnb.calibration.fit import Calibration, calibrate_parameters
from ddlnb.calibration.observations import Observation, observe
from ddlnb.calibration.quantities import AllReduceTime, BestSpeedup, HopTime, IterationTime
from ddlnb.calibration.setup import Setup, read_setup
from ddlnb.calibration.testbed import (
    BATCHES,
    CLUSTERS,
    HARDWARE,
    as_run,
    fig4_cluster,
    fig4_workload,
)
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.paths import CALIBRATION, DATA, PUBLISHED
from ddlnb.plans.methods import METHODS
from ddlnb.results.checks import check_table, without_suspicious
from ddlnb.results.published import fig4_cells, quoted
from ddlnb.simulator.forecast import Z90
from ddlnb.simulator.simulate import Cell
from ddlnb.units import BITS_PER_BYTE, KIB, MIB, MS
from ddlnb.workloads.workload import Workload

# Relative standard deviations of what is published.
TWO_DIGITS = 0.02  # of a value that is printed with two digits
ONCE = 0.01  # of a value that was measured once
CELL = 0.01  # of a cell, the mean of five runs of a hundred iterations

CELLS = PUBLISHED / "fig4_upto8.csv"  # not in this edition


def survey_setup() -> Setup:
    """Return what is fitted, given the profiles of the survey's models as they are now."""
    return read_setup(
        CALIBRATION / "survey.yaml", {model: fig4_workload(model) for model in BATCHES}
    )


def calibrate_survey(*, starts: int = 1, seed: int = 0, cells: Path = CELLS) -> Calibration:
    """Fit the survey's testbed to its quotes and, where they are there, its cells."""
    setup = survey_setup()
    observations = [*quoted_observations(setup.clusters), *cell_observations(cells)]
    found = calibrate_parameters(observations, setup.parameters, starts=starts, seed=seed)
    return replace(found, model_error=max(found.model_error, setup.model_error))


def quoted_observations(clusters: Sequence[Cluster]) -> list[Observation]:
    """Return what the survey's text says of at most four GPUs (A12 to A15, A40 to A42)."""
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
    """Return the published cells of Fig. 4 with up to 8 GPUs, except suspicious ones; often none.

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
    """Write the fitted clusters and profiles into the folder of data, and return the files."""
    from ddlnb.clusters.write import write_cluster
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
    """Return the workload with the fitted seconds and their spread."""
    low, high = found.intervals[name]
    source = (
        f"FLOPs of the trace shared out over seconds fitted by ddlnb calibrate survey "
        f"to {len(found.observations)} observations"
    )
    spread = math.log(high / low) / (2 * Z90)
    return replace(workload.scaled(found.value_of[name], source), spread=spread)
