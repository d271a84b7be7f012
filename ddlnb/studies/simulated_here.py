"""This machine, simulated and measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.calibration.micro_benchmark import keep_profile, profile_path
from ddlnb.calibration.twin import _as_run
from ddlnb.clusters.cluster import Cluster
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.launch.ranks import Ranks
from ddlnb.results.rows import read_rows
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.workloads.tasks import Task, get_task
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


COMPARED = "compared.csv"


COMPARISON = MeasurementSettings(iterations=10, repetitions=5, baselines=False)


def compare_here(
    clusters: Sequence[Cluster],
    folder: str | Path,
    *,
    models: Sequence[str | Task] = ("small-conv", "small-transformer"),
    settings: MeasurementSettings = COMPARISON,
    server_per_worker: bool = False,
    draws: int = 100,
    progress: bool = False,
    **options: Any,
) -> pd.DataFrame:
    """Return measurements of all methods and forecasts of them, as tidy rows of both sources.

    What the forecast knows of a model is its profile, taken while all workers compute and none
    communicates, or the one that is replayed. ``options`` change the settings, as in
    `ddlnb.measure`. Kept in the folder; a second call completes what is missing.
    """
    folder, settings = Path(folder), settings.changed(**options)
    most = max(cluster.workers for cluster in clusters)
    servers = most if server_per_worker else settings.server_count
    with Ranks.at(settings.site, most + servers) as ranks:
        for model in models:
            for cluster in clusters:
                name = get_task(model).name
                if not profile_path(folder, name, cluster.workers).exists():
                    keep_profile(folder, model, cluster.workers, ranks)
                measure(
                    model,
                    settings=settings.changed(
                        workers=cluster.workers,
                        servers=cluster.workers if server_per_worker else settings.servers,
                        cost=cluster.planning,
                    ),
                    out=folder / COMPARED,
                    ranks=ranks,
                    progress=progress,
                )
    return kept_comparison(clusters, folder, draws=draws)


def kept_comparison(
    clusters: Sequence[Cluster], folder: str | Path, *, draws: int = 100
) -> pd.DataFrame:
    """Forecasts of the cells that `compare_here` measured, and its rows. Runs nothing.

    Raises ResultsError if the folder holds no such comparison.
    """
    import pandas as pd

    folder = Path(folder)
    measured = read_rows(folder / COMPARED)
    methods = measured[measured["engine"] == "torch"]
    on = {cluster.workers: cluster for cluster in clusters}
    cells = []
    for row in methods.to_dict("records"):
        path = profile_path(folder, row["model"], row["gpus"])
        workload = Workload.from_json(path.read_text())
        method, servers = _as_run(row), int(row["servers"]) or None
        cells.append(Cell(workload, on[row["gpus"]], method, servers))
    return pd.concat([forecast_cells(cells, draws=draws), measured], ignore_index=True)


def errors_here(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: measured and forecast seconds, their relative difference, the noise.

    ``noise`` is the standard deviation of one run over the median; ``inside`` whether the measured
    throughput lies in the forecast's 90 % interval.
    """
    keys = ["model", "gpus", "method"]
    simulated = rows[rows["source"] == "simulated"].set_index(keys)
    done = rows[(rows["source"] != "simulated") & (rows["engine"] == "torch")]
    measured = done.set_index(keys)
    rate = measured["throughput_samples_per_s"]
    ratio = simulated["iteration_seconds"] / measured["iteration_seconds"]
    frame = measured[["iteration_seconds"]].rename(columns={"iteration_seconds": "measured"})
    frame["forecast"] = simulated["iteration_seconds"]
    frame["error"] = ratio - 1
    frame["noise"] = measured["std"] / rate
    frame["inside"] = (rate >= simulated["low"]) & (rate <= simulated["high"])
    return frame.reset_index()
