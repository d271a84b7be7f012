"""Calibrate the survey's testbed to what is published of runs with at most eight GPUs.

The cells of Fig. 4 are fitted, except those that `ddlnb check` calls suspicious, and the times of
single messages that the survey's text quotes. Everything is fitted as it was run; what belongs to
a script and not to a network has parameters of its own, which no cluster in data gets.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddlnb.calibration.fig4 import FITTED
from ddlnb.calibration.fit import Calibration, calibrate_parameters
from ddlnb.calibration.observations import Observation, observe
from ddlnb.calibration.quantities import HopTime, IterationTime
from ddlnb.calibration.testbed import (
    BATCHES,
    CLUSTERS,
    HARDWARE,
    cell_as_run,
    fig4_cluster,
    fig4_workload,
    survey_setup,
)
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.paths import DATA
from ddlnb.progress import Show
from ddlnb.results.checks import check_table, without_suspicious
from ddlnb.results.published import FIG4_CELLS, fig4_cells, quoted
from ddlnb.results.table import SINGLE
from ddlnb.simulator.draws import Z90
from ddlnb.units import BITS_PER_BYTE, KIB, MIB
from ddlnb.workloads.workload import Workload

# Relative standard deviations of what is published.
CELL = 0.01  # of a cell, the mean of five runs of a hundred iterations
ALONE = 0.003  # of one GPU, which no network disturbs
# Of a single message between two processes, taken for a hop of a collective. A judgement.
HOP = 0.3
DRAWS = 300  # of the parameters together, kept for forecasts


def calibrate_survey(
    *, starts: int = 1, seed: int = 0, cells: Path = FIG4_CELLS, progress: Show = None
) -> Calibration:
    """Fit the survey's testbed to its quotes and its published cells."""
    setup = survey_setup()
    observations = [*quoted_observations(setup.clusters), *cell_observations(cells)]
    found = calibrate_parameters(
        observations, setup.parameters, starts=starts, seed=seed, robust=True, progress=progress
    )
    return replace(found, model_error=max(found.model_error, setup.model_error))


def quoted_observations(clusters: Sequence[Cluster]) -> list[Observation]:
    """Return what the survey's text says of single messages (A14, A15)."""
    found = []
    for cluster in clusters:
        for key, words, size in (("A14", "1 MB", MIB), ("A15", "16 KB", 16 * KIB)):
            rate = quoted(key, f"rate of a {words} message over {cluster.network}")
            seconds = size * BITS_PER_BYTE / (rate * 1e9)
            found.append(observe(HopTime(cluster, size), seconds, HOP, "published"))
    return found


def cell_observations(path: Path = FIG4_CELLS) -> list[Observation]:
    """Return the published cells of Fig. 4 with up to 8 GPUs, except suspicious ones.

    What runs on one GPU is the same whatever its row says of methods and networks.
    """
    rows = fig4_cells(path)
    rows = without_suspicious(rows, check_table(rows))
    found = []
    for row in rows.to_dict("records"):
        is_alone = row["method"] == SINGLE
        cluster = fig4_cluster(row["network"] or next(iter(CLUSTERS)), int(row["gpus"]))
        method = "BSP-A2A" if is_alone else row["method"]
        cell = cell_as_run(fig4_workload(row["model"]), cluster, method)
        seconds = cell.samples / row["throughput_samples_per_s"]
        spread = ALONE if is_alone else CELL
        found.append(observe(IterationTime(cell), seconds, spread, "published"))
    return found


def write_survey(found: Calibration, folder: Path = DATA) -> list[Path]:
    """Write the fitted clusters, profiles and values into the folder of data; return the files."""
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
    return [*paths, write_values(found, folder / "calibration" / FITTED.name)]


def write_values(found: Calibration, path: Path) -> Path:
    """Write the fitted values of all parameters, and below them draws of them together.

    A factor of computation is told relative to the profile that is written with the fitted one.
    """
    from ddlnb.files import write_atomically

    values = np.array([found.values, *found.posterior.samples(DRAWS)])
    names = [parameter.name for parameter in found.parameters]
    for column, parameter in enumerate(found.parameters):
        if parameter.effect == "compute_factor" and parameter.of:
            values[:, column] /= found.values[column]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[f"{value:.6g}" for value in row] for row in values])
    return write_atomically(path, text.getvalue())


def _rescaled(workload: Workload, found: Calibration, name: str) -> Workload:
    """Return the workload with the fitted seconds and their spread."""
    low, high = found.intervals[name]
    source = (
        f"FLOPs and bytes of the trace shared out over seconds fitted by ddlnb calibrate survey "
        f"to {len(found.observations)} observations"
    )
    spread = math.log(high / low) / (2 * Z90)
    return replace(workload.scaled(found.value_of[name], source), spread=spread)
