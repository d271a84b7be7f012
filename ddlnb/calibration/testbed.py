"""The survey's comparative study (section 4, Fig. 4): what was run there, and how.

The methods there were configured by public scripts (github HKBU-HPML/ddl-benchmarks), not always
as their papers say; `as_run` gives each one the way it was run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import UnknownName
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

    Within one node no network is used: its rows are one configuration, run once for each network,
    and the planning constants of a network do not apply.
    """
    if network not in CLUSTERS:
        raise UnknownName("network of Fig. 4", network, CLUSTERS)
    return _with_gpus(get_cluster(CLUSTERS[network]), gpus)


def _with_gpus(cluster: Cluster, gpus: int) -> Cluster:
    cluster = cluster.with_workers(gpus)
    return replace(cluster, planning=None) if cluster.nodes_in_use == 1 else cluster


def fig4_cells_to_forecast(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
) -> list[Cell]:
    """Return the cells of Fig. 4, 252 of them by default, in the order of the figure's panels."""
    # Every file is read once.
    clusters = {network: fig4_cluster(network, max(GPUS)) for network in networks}
    return [
        Cell(workload, _with_gpus(clusters[network], count), as_run(method))
        for workload in map(fig4_workload, models)
        for network in networks
        for count in gpus
        for method in METHODS
    ]


def write_forecast(
    path: str | Path | None, *, draws: int = 1000, seed: int = 0, progress: bool = False
) -> pd.DataFrame:
    """Forecast all cells of Fig. 4, and write them as CSV with the columns FORECAST_COLUMNS.

    The forecast is made from the clusters and profiles in data alone.
    """
    from ddlnb.files import write_atomically
    from ddlnb.simulator.forecast import forecast_cells

    rows = forecast_cells(fig4_cells_to_forecast(), draws=draws, seed=seed, progress=progress)
    if path is not None:
        text = rows[FORECAST_COLUMNS].to_csv(index=False, float_format="%.6g")
        write_atomically(path, text)
    return rows
