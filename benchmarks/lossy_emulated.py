"""Forecasts of lossy methods against runs on emulated links: the error of every cell.

    python -m benchmarks.lossy_emulated [--out FOLDER] [--networks ...] [--method ...] [--kept]

Nodes wait where the recorded model would compute; gradients, compression, payloads and sockets are
real. The forecast knows the links from a micro-benchmark of lossless methods on made-up models,
and the model and the compressors from their profiles: no lossy run takes part in it. Nothing
overlaps in a lossy run on processes, so nothing does in its forecast. Everything is kept in the
folder; a second call completes it. The figure is drawn into build/lossy_emulated.png.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import mean

import pandas as pd
from tqdm.auto import tqdm

from benchmarks.command import command
from benchmarks.pictures import lossy_against_emulated
from ddlnb.calibration.calibrated_model import (
    PROBING,
    MicroBenchmark,
    calibrate_here,
    micro_benchmark,
    read_micro_benchmark,
)
from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.profile import CompressionProfile
from ddlnb.engines.settings import TRAINING
from ddlnb.errors import ResultsError, require_known, require_whole
from ddlnb.files import BUILD, provenance, write_atomically
from ddlnb.launch.options import emulated
from ddlnb.launch.ranks import Ranks
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.executors.distributed import train_on_ranks
from ddlnb.training.method import TrainingJob, training_method
from ddlnb.training.optimizers import get_optimizer
from ddlnb.training.worker import Worker
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.workload import read_profile

# Batches are chosen so that computing takes about as long as an all-reduce. Nothing is slowed,
# since compression cannot be.
PROFILES = {
    "1Gb/s 50us": "small-conv_b64_cpu-1thread",
    "1Gb/s 1ms": "small-conv_b64_cpu-1thread",
    "100Mb/s 50us": "small-conv_b1024_cpu-1thread",
    "100Mb/s 1ms": "small-conv_b1024_cpu-1thread",
}
METHODS = (
    *("bsp", "bsp + fp16", "bsp + qsgd", "bsp + terngrad", "bsp + signsgd"),
    *("bsp + top-k(0.01) + feedback", "bsp + top-k(0.01) + feedback + whole-model"),
    *("bsp + gtop-k(0.01) + feedback", "bsp + random-k(0.01) + feedback", "bsp + powersgd(4)"),
    *("local(4)", "d-psgd(ring)", "d-psgd(complete)", "choco + top-k(0.01)"),
)
KEPT = "lossy.csv"
LR = 1e-3  # has no effect: replayed gradients are constants
WARMUP = 1  # iteration, in which connections open; nothing else has to get warm
PROBE_ITERATIONS = 3


def lossy_on_emulated(
    folder: str | Path,
    networks: Sequence[str] = tuple(PROFILES),
    methods: Sequence[str] = METHODS,
    *,
    workers: int = 4,
    compression: str | CompressionProfile = "cpu-1thread",
    iterations: int = 8,
    repetitions: int = 3,
    only_kept: bool = False,
    progress: bool = False,
) -> pd.DataFrame:
    """Return measured and forecast seconds of an iteration by network, method and repetition.

    Methods take turns in every repetition. ``iterations`` are measured after a first one; they
    should be a multiple of the local steps of local SGD. Every run is kept in the folder, and a
    second call completes what is missing. With ``only_kept`` nothing runs: the rows are those of
    these methods and networks that the folder has, measured on any machine. Raises UnknownName,
    InputError, ResultsError for a folder without any, and MissingPart where networks cannot be
    emulated.
    """
    require_whole(iterations=iterations, repetitions=repetitions)
    require_whole(2, workers=workers)
    methods, found = [str(training_method(method)) for method in methods], []
    for network in networks:
        require_known("network", network, PROFILES)
        site, workload = emulated(network), read_profile(PROFILES[network])
        kept = Path(folder) / site.name
        if only_kept:
            if not (kept / KEPT).exists():
                continue
            cluster = _twin(read_micro_benchmark(kept, site))
            runs = pd.read_csv(kept / KEPT)
            runs = runs[runs["method"].isin(methods)].copy()
        else:
            cluster = _twin(_probed(kept, network, workers, progress))
            runs = _runs(
                kept / KEPT,
                [(repetition, method) for repetition in range(repetitions) for method in methods],
                partial(Ranks.at, site, workers, imports=(train_on_ranks.__module__, *TRAINING)),
                partial(_seconds, replayed(workload), workers, iterations),
                progress,
            )
        forecast = {
            method: iteration_cost(
                workload, cluster, method, compression=compression, overlap=False
            ).iteration_seconds
            for method in methods
        }
        runs["forecast"] = runs["method"].map(forecast)
        found.append(runs.assign(network=network, model=workload.model, workers=workers))
    if not found:
        raise ResultsError(f"{folder} has no {KEPT} of the networks {', '.join(networks)}")
    return pd.concat(found, ignore_index=True)


def lossy_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per network and method: median measured seconds, forecast, error and spread.

    ``error`` is forecast over measured, less one; ``spread`` the largest over the smallest measured
    value, less one.
    """
    cells = rows.groupby(["network", "method"], sort=False)
    measured = cells["iteration_seconds"].median()
    table = measured.rename("measured").to_frame()
    table["forecast"] = cells["forecast"].first()
    table["error"] = table["forecast"] / table["measured"] - 1
    table["spread"] = cells["iteration_seconds"].max() / cells["iteration_seconds"].min() - 1
    return table.reset_index()


def order_kept(errors: pd.DataFrame) -> float:
    """Return the share of pairs of methods on one network that are forecast in measured order."""
    kept = [
        (one.measured < other.measured) == (one.forecast < other.forecast)
        for _, cell in errors.groupby("network")
        for other, one in combinations(cell.itertuples(), 2)
    ]
    return mean(kept)


def _probed(folder: Path, network: str, workers: int, progress: bool) -> MicroBenchmark:
    settings = PROBING.changed(
        site=emulated(network), iterations=PROBE_ITERATIONS, warmup=WARMUP, repetitions=1
    )
    return micro_benchmark(
        folder, workers=[workers], settings=settings, server_per_worker=True, progress=progress
    )


def _twin(probed: MicroBenchmark) -> Cluster:
    _, [cluster] = calibrate_here(probed)
    return cluster


def _runs(
    path: Path,
    wanted: Sequence[tuple[int, str]],
    start_ranks: Callable[[], Ranks],
    seconds: Callable[[Ranks, str], float],
    progress: bool,
) -> pd.DataFrame:
    """Return the wanted rows of the file, after making and adding each run that it lacks."""
    kept = pd.read_csv(path).to_dict("records") if path.exists() else []
    there = {(row["repetition"], row["method"]): row for row in kept}
    if missing := [cell for cell in wanted if cell not in there]:
        with start_ranks() as ranks:
            for cell in tqdm(missing, unit="run", desc=path.parent.name, disable=not progress):
                there[cell] = {
                    **dict(zip(("repetition", "method"), cell, strict=True)),
                    "iteration_seconds": seconds(ranks, cell[1]),
                    "source": "emulated",
                    **provenance(),
                }
                write_atomically(path, pd.DataFrame(there.values()).to_csv(index=False))
    return pd.DataFrame([there[cell] for cell in wanted])


def _seconds(task: Task, workers: int, iterations: int, ranks: Ranks, method: str) -> float:
    """Return the seconds of one iteration, on average over workers and iterations."""
    job = TrainingJob(
        training_method(method),
        task.build,
        task.loss,
        partial(_batches, task, workers),
        partial(get_optimizer("sgd").make, lr=LR),
        workers,
        WARMUP + iterations,
        observe=_now,
    )
    reports = train_on_ranks(ranks, job).workers
    return mean((one.observed[-1] - one.observed[WARMUP - 1]) / iterations for one in reports)


def _batches(task: Task, workers: int) -> list[Callable[[int], Batch]]:
    return [lambda step: task.batch(1, step)] * workers


def _now(worker: Worker, iterations: int, seconds: float) -> float:
    return seconds


def main(
    *,
    out: Path = BUILD / "lossy-emulated",
    networks: Sequence[str] = tuple(PROFILES),
    method: Sequence[str] = METHODS,
    workers: int = 4,
    repetitions: int = 3,
    kept: bool = False,
) -> None:
    """Run what is missing, or nothing with --kept; print every cell, and how large errors are."""
    rows = lossy_on_emulated(
        out,
        networks,
        method,
        workers=workers,
        repetitions=repetitions,
        only_kept=kept,
        progress=True,
    )
    errors = lossy_errors(rows)
    BUILD.mkdir(parents=True, exist_ok=True)
    lossy_against_emulated(rows).savefig(BUILD / "lossy_emulated.png", dpi=110)
    print(f"{rows['workers'].iloc[0]} workers, emulated on {rows['machine'].iloc[0]}")
    print(errors.round(3).to_string(index=False))
    size = errors["error"].abs()
    print(
        f"forecast against emulated: median error {size.median():.1%}, within 10 %: "
        f"{(size <= 0.1).sum()} of {len(size)}, within 25 %: {(size <= 0.25).sum()}, largest "
        f"{size.max():.1%}; {order_kept(errors):.1%} of pairs in the right order"
    )


if __name__ == "__main__":
    command(main)
