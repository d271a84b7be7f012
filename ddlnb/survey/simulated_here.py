"""A calibrated model's forecasts beside measurements of the same runs, kept in a folder.

The model is that of this machine, or of an emulated network on it (`ddlnb.survey.fig4_emulated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from ddlnb.calibration.calibrate import Calibrated
from ddlnb.calibration.calibrated_model import (
    calibrate_here,
    load_sentence,
    micro_benchmark,
    profile_path,
    save_profile,
    saving_load,
)
from ddlnb.calibration.observations import as_measured
from ddlnb.clusters.cluster import Cluster
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MEASURING, MeasurementSettings
from ddlnb.launch.ranks import Ranks
from ddlnb.progress import Show
from ddlnb.reading import read_text
from ddlnb.results.rows import read_rows
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.items import Findings, findings
from ddlnb.units import MS, counted
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task
from ddlnb.workloads.workload import Workload

COMPARED = "compared.csv"
MODELS = ("small-conv", "small-transformer")
COMPARISON = MeasurementSettings(iterations=10, repetitions=5, baselines=False)
PROBE_ITERATIONS = 3  # of every run of the micro-benchmark on an emulated network
WARMUP = 2  # iterations on an emulated network: connections open, then messages overlap
CLOSE = 0.15  # an error within which a forecast counts as close


def measure_and_forecast(
    clusters: Sequence[Cluster],
    folder: str | Path,
    *,
    models: Sequence[str | Task] = MODELS,
    settings: MeasurementSettings = COMPARISON,
    server_per_worker: bool = False,
    draws: int = 100,
    progress: Show = None,
    **options: Any,
) -> pd.DataFrame:
    """Measure all methods on every cluster's number of workers and return them with forecasts.

    What a forecast knows of a model is its profile, taken while all workers compute and none
    communicates, or the one that is replayed. ``options`` change the settings, as in
    `ddlnb.measure`. Everything is kept in the folder, and a second call completes what is missing.
    """
    folder, settings = Path(folder), settings.changed(**options)
    most = max(cluster.workers for cluster in clusters)
    servers = most if server_per_worker else settings.server_count
    with (
        saving_load(folder / COMPARED),
        Ranks.at(settings.site, most + servers, imports=MEASURING) as ranks,
    ):
        for model, cluster in product(models, clusters):
            count = cluster.workers
            if not profile_path(folder, get_task(model).name, count).exists():
                save_profile(folder, model, count, ranks)
            measure(
                model,
                settings=settings.changed(
                    workers=count,
                    servers=count if server_per_worker else settings.servers,
                    cost=cluster.planning,
                ),
                out=folder / COMPARED,
                ranks=ranks,
                progress=progress,
            )
    return saved_comparison(clusters, folder, draws=draws)


def saved_comparison(
    clusters: Sequence[Cluster], folder: str | Path, *, draws: int = 100
) -> pd.DataFrame:
    """Return forecasts of the cells that the folder keeps, and their measured rows; run nothing.

    Raises ResultsError if the folder holds no such comparison.
    """
    folder = Path(folder)
    measured = read_rows(folder / COMPARED)
    methods = measured[measured["engine"] == "torch"]
    on = {cluster.workers: cluster for cluster in clusters}
    cells = []
    for row in methods.to_dict("records"):
        path = profile_path(folder, row["model"], row["gpus"])
        workload = Workload.from_json(read_text(path))
        method, servers = as_measured(row), int(row["servers"]) or None
        cells.append(Cell(workload, on[row["gpus"]], method, servers))
    return pd.concat([forecast_cells(cells, draws=draws), measured], ignore_index=True)


def calibrate_and_compare(
    folder: str | Path,
    models: Sequence[str | Task],
    settings: MeasurementSettings,
    *,
    workers: Sequence[int],
    warmup: int = WARMUP,
    draws: int = 50,
    progress: Show = None,
) -> pd.DataFrame:
    """Calibrate a model of an emulated network, then measure the methods and forecast them.

    It knows the links from a micro-benchmark of made-up models. There are as many parameter
    servers as workers, on separate nodes, as in the survey. ``warmup`` iterations come before those
    that are timed. Everything is kept in the folder.
    """
    settings = settings.changed(warmup=WARMUP)
    probed = micro_benchmark(
        folder,
        workers=workers,
        settings=settings.changed(iterations=PROBE_ITERATIONS, repetitions=1, baselines=False),
        server_per_worker=True,
        progress=progress,
    )
    _, clusters = calibrate_here(probed)
    return measure_and_forecast(
        clusters,
        folder,
        models=models,
        settings=settings.changed(warmup=warmup),
        server_per_worker=True,
        draws=draws,
        progress=progress,
    )


def forecast_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell: measured and forecast seconds, their relative difference, the noise.

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


def error_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return `forecast_errors` to read: milliseconds and per cent, by model, workers and method."""
    table = errors.set_index(["model", "gpus", "method"])
    return pd.DataFrame(
        {
            "measured (ms)": (table["measured"] / MS).round(1),
            "forecast (ms)": (table["forecast"] / MS).round(1),
            "error (%)": (100 * table["error"]).round(1),
            "noise of one run (%)": (100 * table["noise"]).round(1),
            "inside the 90 % interval": table["inside"],
        }
    )


def error_sentence(errors: pd.DataFrame) -> str:
    """Return how far the forecasts are from what was measured, in one sentence."""
    size = errors["error"].abs()
    noise = errors["noise"].median()
    noisy = "" if noise != noise else f"; one run varies by {noise:.1%} (median)"
    return (
        f"Over {len(errors)} cells the median error of the seconds is {size.median():.1%} and the "
        f"largest {size.max():.1%}; {(size <= CLOSE).sum()} are within {CLOSE:.0%}, and "
        f"{errors['inside'].sum()} measured values lie inside the 90 % interval{noisy}."
    )


def forecast_then_measure(
    result: Calibrated,
    folder: str | Path,
    *,
    models: Sequence[str],
    iterations: int,
    repetitions: int,
) -> pd.DataFrame:
    """Return measurements of all methods and forecasts by the calibrated model, as tidy rows.

    Runs are kept in the folder; a second call makes those that are missing.
    """
    return measure_and_forecast(
        result.clusters, folder, models=models, iterations=iterations, repetitions=repetitions
    )


def twin_findings(rows: pd.DataFrame, folder: str | Path) -> Findings:
    """Return how far forecasts are off, for every model and number of workers, and the load.

    ``folder`` is that of the runs, which keeps how busy the machine was with other work.
    """
    errors = forecast_errors(rows)
    parts = errors.groupby(["model", "gpus"], sort=False)
    return findings(
        *(
            f"{model}, {counted(gpus, 'worker')}: {error_sentence(part)}"
            for (model, gpus), part in parts
        ),
        load_sentence(folder),
    )
