"""The survey's comparative study (section 4, Fig. 4): what was run there, and how.

The methods there were configured by public scripts (github HKBU-HPML/ddl-benchmarks), not always
as their papers say, and some of their cost is that of the scripts. `as_run` gives each method the
way it was run, `fig4_cells_to_forecast` the cells of the figure with what was fitted to those of
them that are published. The clusters in data/clusters and METHODS are what a user has today: the
same network, and every method proper.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.calibration.parameters import ParameterValues
from ddlnb.calibration.setup import Setup, read_setup
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import ResultsError, UnknownName, require
from ddlnb.paths import CALIBRATION, PUBLISHED
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.simulator.simulate import Cell
from ddlnb.units import MB
from ddlnb.workloads.workload import Workload, read_profile

if TYPE_CHECKING:
    import pandas as pd

FORECAST_COLUMNS = [
    *("model", "local_batch", "network", "method", "gpus"),
    *("throughput_samples_per_s", "low", "high"),
]
HARDWARE = "rtx2080ti"
BATCHES = {"resnet50": 64, "bert-base": 64, "bert-large": 8}
CLUSTERS = {
    "10GbE": "survey-10GbE",
    "100GbE": "survey-100GbE",
    "100GbIB": "survey-100GbIB",
}
GPUS = (4, 8, 16, 32)
FITTED = CALIBRATION / "survey_fitted.csv"  # the values of parameters: fitted, and drawn
HELD_OUT = CALIBRATION / "survey_held_out.csv"  # predictions of cells that were not fitted
# By which of its tables MG-WFBP planned: the InfiniBand cards' also where they carried TCP.
PLANNED_FOR = {"10GbE": "10GbE", "100GbE": "56GbIB", "100GbIB": "56GbIB"}


def as_run(method: str | Method) -> Method:
    """Return the method the way the survey ran it.

    ByteScheduler-A2A: parts of 4 million parameters, 16 million in flight. ByteScheduler-PS: the
    schedule of WFBP-PS on BytePS, where only the server's queue differs. The others are as they
    are in METHODS.
    """
    method = get_method(method)
    if method.name == "ByteScheduler-A2A":
        return replace(method, partition_bytes=16 * MB, credit_bytes=64 * MB)
    if method.name == "ByteScheduler-PS":
        return replace(METHODS["WFBP-PS"], name=method.name, scheduling=method.scheduling)
    return method


def fig4_workload(model: str) -> Workload:
    """Return the profile of a model on the survey's GPU at its local batch. Raises UnknownName."""
    if model not in BATCHES:
        raise UnknownName("model of Fig. 4", model, BATCHES)
    return read_profile(f"{model}_b{BATCHES[model]}_{HARDWARE}")


def fig4_cluster(network: str, gpus: int) -> Cluster:
    """Return the survey's testbed on one of its networks, with this many GPUs. Raises UnknownName.

    Within one node no network is used: its rows are one configuration, run once for each network.
    """
    return _fig4_clusters(network)[gpus] if gpus in GPUS else _whole(network).with_workers(gpus)


def _whole(network: str) -> Cluster:
    if network not in CLUSTERS:
        raise UnknownName("network of Fig. 4", network, CLUSTERS)
    return get_cluster(CLUSTERS[network])


def _fig4_clusters(network: str) -> dict[int, Cluster]:
    """Return the testbed by number of GPUs; its file is read once."""
    whole = _whole(network)
    return {gpus: whole.with_workers(gpus) for gpus in GPUS}


@cache
def planning_costs() -> dict[tuple[str, int], AlphaBeta]:
    """Return the costs that MG-WFBP's public code plans with, by network and number of workers."""
    with (PUBLISHED / "mgwfbp_planning.csv").open(newline="") as file:
        tables = {
            (row["network"], int(row["workers"])): AlphaBeta(
                float(row["latency_seconds"]), float(row["seconds_per_byte"])
            )
            for row in csv.DictReader(file)
        }
    workers = sorted({workers for _, workers in tables})
    return {
        (network, count): tables[table, count]
        for network, table in PLANNED_FOR.items()
        for count in workers
    }


def cell_as_run(workload: Workload, cluster: Cluster, method: str | Method) -> Cell:
    """Return the cell of a method as the survey ran it, with the cost by which it planned."""
    method = as_run(method)
    cost = planning_costs().get((cluster.network, cluster.workers))
    return Cell(workload, replace(cluster, planning=cost), method)


def survey_setup() -> Setup:
    """Return what is fitted, given the profiles of the survey's models as they are now."""
    return read_setup(
        CALIBRATION / "survey.yaml", {model: fig4_workload(model) for model in BATCHES}
    )


def fitted_values(path: Path = FITTED) -> list[ParameterValues]:
    """Return the fitted values of the survey's parameters, followed by draws of them.

    Raises ResultsError for a file that is not of the parameters in data/calibration/survey.yaml.
    """
    parameters = survey_setup().parameters
    names = [parameter.name for parameter in parameters]
    with path.open(newline="") as file:
        columns, *rows = csv.reader(file)
    if columns != names:
        raise ResultsError(
            f"{path} is of the parameters {', '.join(columns)}, and survey.yaml has "
            f"{', '.join(names)}; fit them again: ddlnb calibrate survey --write"
        )
    return [ParameterValues(parameters, tuple(map(float, row))) for row in rows]


def fig4_cells_to_forecast(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
    values: ParameterValues | None = None,
) -> list[Cell]:
    """Return the cells of Fig. 4 as run, 252 by default, in the order of the figure's panels.

    ``values`` are those of the fit by default.
    """
    values = fitted_values()[0] if values is None else values
    clusters = {network: _fig4_clusters(network) for network in networks}
    return [
        with_values(cell_as_run(workload, clusters[network][count], method), values)
        for workload in map(fig4_workload, models)
        for network in networks
        for count in gpus
        for method in METHODS
    ]


def with_values(cell: Cell, values: ParameterValues) -> Cell:
    """Return the cell on its cluster with these values."""
    cluster = values.on(cell.cluster, cell.workload.model, cell.method.name)
    return replace(cell, cluster=cluster)


def forecast_fig4(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
    *,
    draws: int = 200,
    seed: int = 0,
    progress: bool = False,
) -> pd.DataFrame:
    """Forecast cells of Fig. 4 as run: the rows of `ddlnb.forecast`.

    Draws are those of all parameters together that the fit left; raises InputError for more than it
    left.
    """
    from ddlnb.simulator.forecast import forecast_cells

    fitted, *drawn = fitted_values()
    require(
        draws <= len(drawn), f"draws {draws} must be at most {len(drawn)}, those in {FITTED.name}"
    )
    cells = fig4_cells_to_forecast(models, networks, gpus, fitted)
    return forecast_cells(
        cells,
        draws=draws,
        seed=seed,
        progress=progress,
        drawn=(
            [replace(with_values(cell, values), planned_on=cell.cluster) for cell in cells]
            for values in drawn[:draws]
        ),
    )


def write_forecast(
    path: str | Path | None, *, draws: int = 200, seed: int = 0, progress: bool = False
) -> pd.DataFrame:
    """Forecast all cells of Fig. 4, and write them as CSV with the columns FORECAST_COLUMNS.

    The forecast is made from the files in data alone.
    """
    from ddlnb.files import write_atomically

    rows = forecast_fig4(draws=draws, seed=seed, progress=progress)
    if path is not None:
        text = rows[FORECAST_COLUMNS].to_csv(index=False, float_format="%.6g")
        write_atomically(path, text)
    return rows
