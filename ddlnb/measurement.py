"""Measure methods beside one another: alternating runs, one tidy table, resumable."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.bench import Bench, Contender, contenders, ranks_needed
from ddlnb.engines.job import Job, Report, get_optimizer
from ddlnb.engines.replica import MakeOptimizer
from ddlnb.errors import require, require_whole
from ddlnb.machine import machine, provenance
from ddlnb.methods import Method
from ddlnb.models import Task, get_task
from ddlnb.ranks import Ranks
from ddlnb.results import ResultsFile
from ddlnb.timeline import Timeline
from ddlnb.tracing import trace

if TYPE_CHECKING:
    import pandas as pd

Methods = str | Method | list[str | Method]


def measure(
    model: str | Task,
    methods: Methods = "all",
    *,
    workers: int = 2,
    servers: int = 1,
    engine: str = "torch",
    baselines: bool = True,
    local_batch: int | None = None,
    iterations: int = 20,
    warmup: int = 5,
    repetitions: int = 3,
    optimizer: str | MakeOptimizer = "sgd",
    partition: str | int | None = None,
    credit: str | int | None = None,
    out: str | Path | None = None,
    launcher: str = "local",
    ranks: Ranks | None = None,
    device: str = "cpu",
    backend: str = "gloo",
    timeout_seconds: float = 300.0,
    progress: bool = False,
) -> pd.DataFrame:
    """The tidy table of these methods (and baselines) on real workers, one row per method.

    Every repetition runs all methods once, each time starting with another one, so that a drift of
    the machine hits all alike. Each run starts from the same parameters. With ``out`` every
    finished run is on disk at once, and a second call runs only what is missing. Give ``ranks`` to
    use processes that are already up. ``partition`` and ``credit`` (bytes, or text such as
    "256KB") replace those of the methods that have them.

    Raises InputError for bad arguments before anything starts, ResultsError for an ``out`` that
    is not a results file, RankError when a rank fails or a run exceeds ``timeout_seconds``.
    """
    task = get_task(model)
    local_batch = task.local_batch if local_batch is None else local_batch
    require_whole(
        workers=workers,
        servers=servers,
        local_batch=local_batch,
        iterations=iterations,
        repetitions=repetitions,
    )
    require_whole(0, warmup=warmup)
    make_optimizer = get_optimizer(optimizer)
    trace(task)  # refuses a model that cannot be trained this way before anything starts
    chosen = contenders(
        methods, engine=engine, baselines=baselines, partition=partition, credit=credit
    )
    common = {
        "model": task.name,
        "local_batch": local_batch,
        "network": "loopback" if launcher == "local" else launcher,
        "source": "measured",
        "optimizer": optimizer if isinstance(optimizer, str) else _name_of(make_optimizer),
        "iterations": iterations,
        "warmup": warmup,
        "machine": machine() if device == "cpu" else f"{machine()}, {device}",
    }
    cells = [{**common, **_of(contender, workers, servers)} for contender in chosen]
    results = ResultsFile(out)
    missing = [
        (repetition, index)
        for repetition in range(repetitions)
        for index in _rotated(len(chosen), repetition)
        if not results.has(cells[index], repetition)
    ]
    if not missing:
        return _ordered(results.rows, cells)
    with _ranks_or(ranks, ranks_needed(chosen, workers, servers), launcher) as up:
        bench = Bench(
            task,
            up,
            workers=workers,
            servers=servers,
            local_batch=local_batch,
            optimizer=make_optimizer,
            device=device,
            backend=backend,
            timeout_seconds=timeout_seconds,
        )
        for repetition, index in _with_progress(missing, chosen, progress):
            job, reports = bench.run(chosen[index], iterations=iterations, warmup=warmup)
            results.add(
                {
                    **cells[index],
                    "repetition": repetition,
                    **_measures(job, reports),
                    "messages": len(job.plan.messages) if job.plan else 0,
                    "plan": job.plan.digest if job.plan else "",
                    **provenance(),
                }
            )
    return _ordered(results.rows, cells)


def record_timelines(
    model: str | Task,
    methods: Methods = "all",
    *,
    workers: int = 2,
    servers: int = 1,
    local_batch: int | None = None,
    iterations: int = 3,
    warmup: int = 3,
    partition: str | int | None = None,
    credit: str | int | None = None,
    launcher: str = "local",
    ranks: Ranks | None = None,
    progress: bool = False,
) -> dict[str, Timeline]:
    """Measured timelines by method name: what every rank computed and sent, span by span."""
    chosen = contenders(methods, baselines=False, partition=partition, credit=credit)
    with _ranks_or(ranks, ranks_needed(chosen, workers, servers), launcher) as up:
        bench = Bench(model, up, workers=workers, servers=servers, local_batch=local_batch)
        steps = _with_progress([(0, i) for i in range(len(chosen))], chosen, progress)
        return {
            chosen[i].name: bench.timeline(chosen[i], iterations=iterations, warmup=warmup)
            for _, i in steps
        }


def speedups(rows: pd.DataFrame, baseline: str = "single") -> pd.DataFrame:
    """The rows with a column ``speedup``: throughput over that of the baseline's row.

    The baseline is the one of the same model and local batch. Raises InputError without one.
    """
    single = rows[rows["method"] == baseline].set_index(["model", "local_batch"])
    require(not single.empty, f"the table has no row of {baseline!r} to compare with")
    base = single["throughput_samples_per_s"].groupby(level=[0, 1]).median()
    keys = list(zip(rows["model"], rows["local_batch"], strict=True))
    return rows.assign(speedup=rows["throughput_samples_per_s"].to_numpy() / base.loc[keys].array)


def _of(contender: Contender, workers: int, servers: int) -> dict[str, object]:
    """The columns of a cell that depend on who runs."""
    on_servers = contender.method is not None and contender.method.exchange == "push_pull"
    return {
        "method": contender.name,
        "gpus": 1 if contender.engine == "single" else workers,
        "engine": contender.engine,
        "servers": servers if on_servers else 0,
        "settings": contender.settings,
    }


def _measures(job: Job, reports: list[Report]) -> dict[str, float]:
    """Throughput counts the slowest worker; the rest are means over workers and iterations."""
    seconds = max(report.seconds for report in reports)
    samples = job.workers * job.local_batch * job.iterations
    waited = statistics.fmean(report.waited_seconds for report in reports)
    return {
        "throughput_samples_per_s": samples / seconds,
        "iteration_seconds": seconds / job.iterations,
        "exposed_communication_seconds": waited / job.iterations,
        "bytes_sent": statistics.fmean(report.bytes_sent for report in reports) / job.iterations,
    }


def _rotated(count: int, by: int) -> list[int]:
    return [(index + by) % count for index in range(count)]


def _ordered(rows: pd.DataFrame, cells: list[dict[str, object]]) -> pd.DataFrame:
    """The rows of these cells, in their order; a file may hold others besides."""
    import pandas as pd

    frame = pd.DataFrame(cells)
    keys = list(frame.columns)
    order = {tuple(map(str, cell.values())): index for index, cell in enumerate(cells)}
    found = rows[keys].astype(str).apply(tuple, axis=1).map(order)
    return (
        rows.assign(_order=found)
        .dropna(subset="_order")
        .sort_values("_order")
        .drop(columns="_order")
        .reset_index(drop=True)
    )


def _name_of(make_optimizer: MakeOptimizer) -> str:
    inner = getattr(make_optimizer, "func", make_optimizer)
    return getattr(inner, "__name__", type(make_optimizer).__name__)


@contextmanager
def _ranks_or(ranks: Ranks | None, count: int, launcher: str) -> Iterator[Ranks]:
    if ranks is not None:
        yield ranks
    else:
        with Ranks(count, launcher=launcher) as started:
            yield started


def _with_progress(
    steps: list[tuple[int, int]], chosen: list[Contender], show: bool
) -> Iterator[tuple[int, int]]:
    from tqdm.auto import tqdm

    with tqdm(steps, unit="run", disable=not show) as bar:
        for repetition, index in bar:
            bar.set_description(f"{chosen[index].name}, repetition {repetition + 1}")
            yield repetition, index
