"""Measure methods in alternating runs, into one tidy table; an interrupted sweep can be resumed."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddlnb.engines.bench import Bench, slowed
from ddlnb.engines.catalogue import BASELINES, require_installed
from ddlnb.engines.job import Job, Report
from ddlnb.engines.settings import DEFAULTS, MEASURING, MeasurementSettings
from ddlnb.engines.targets import (
    Methods,
    Target,
    cells_of,
    missing_runs,
    ranks_needed,
    targets_of,
)
from ddlnb.errors import MissingPart, require, require_whole
from ddlnb.files import held, provenance, require_writable_file, temporary_folder
from ddlnb.launch.capacity import fitting_workers, require_room
from ddlnb.launch.options import is_here
from ddlnb.launch.ranks import Ranks
from ddlnb.progress import Show, bar
from ddlnb.questions import Answer, Table
from ddlnb.registry import several, supplied
from ddlnb.results.rows import ResultsFile, speedups
from ddlnb.results.timeline import Timeline
from ddlnb.units import counted, show_bytes, show_seconds
from ddlnb.workloads.memory import require_memory_for_training
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task


class LeftOut(UserWarning):
    """Something that was asked for was not measured, for a reason that the text gives."""


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Answer):
    """What was measured: a row for every method and number of workers."""

    rows: pd.DataFrame

    @property
    def tables(self) -> tuple[Table, ...]:
        """Throughput, and where the seconds of an iteration went."""
        first = self.rows.iloc[0]
        title = (
            f"{first['model']}, batch {first['local_batch']} per worker, {first['network']}, "
            f"{first['source']} on {first['machine']}; median and standard deviation of "
            f"{counted(int(first['repetitions']), 'run')}"
        )
        # The name of one engine says nothing, and baselines say theirs by their own.
        of_several = self.rows[~self.rows["method"].isin(BASELINES)]["engine"].nunique() > 1
        return (Table(title, [_shown(row, of_several) for row in self.rows.to_dict("records")]),)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Which plans took over from others, where plans could be made anew."""
        return tuple(takeovers(self.rows.to_dict("records")))


def _shown(row: dict[str, Any], with_engine: bool) -> dict[str, object]:
    return {
        "method": row["method"],
        **({"engine": row["engine"]} if with_engine else {}),
        "workers": row["gpus"],
        "samples/s": f"{row['throughput_samples_per_s']:.0f}",
        "std": f"{row['std']:.0f}" if row["repetitions"] > 1 else "-",
        "iteration": show_seconds(row["iteration_seconds"]),
        "exposed": show_seconds(row["exposed_communication_seconds"]),
        "sent": show_bytes(row["bytes_sent"]),
        "messages": row["messages"] or "-",
        "runs": row["repetitions"],
        **({"speed-up": f"{row['speedup']:.2f}"} if "speedup" in row else {}),
    }


def takeovers(rows: list[dict[str, Any]]) -> list[str]:
    """Return, for plans that could be made anew, which took over from them and when."""
    said = []
    for row in rows:
        if "replan=" not in str(row["settings"]):
            continue
        first, *later = row["plan"].split(", ")
        became = f"plan {first}" + "".join(f", then {one}" for one in later)
        if first == "several":
            became = "runs differ in their plans, and --out keeps those of each"
        elif not later:
            became += ", which no other took over from"
        said.append(f"{row['method']}, {counted(row['gpus'], 'worker')}: {became}.")
    return said


def measure(
    model: str | Task,
    methods: Methods = "all",
    *,
    settings: MeasurementSettings = DEFAULTS,
    ranks: Ranks | None = None,
    out: str | Path | None = None,
    progress: Show = None,
    **options: Any,
) -> Measurement:
    """Return the tidy table of these methods and the baselines on real workers, one row each.

    ``model`` is a Task or the name of one (``ddlnb models``), ``methods`` are "all", one, or a
    list. Every repetition runs all methods once, each time starting with another one, so that a
    drift of the machine hits all alike. Each run starts from the same parameters. ``options``
    change the settings: ``measure("small-conv", workers=4, iterations=10)``; they are the fields of
    `MeasurementSettings` and of its `LaunchOptions`. With ``ranks`` it uses processes that are
    already up, where they are. With ``out``, a CSV file, every finished run is on disk at once, and
    a second call runs only what is missing.

    The columns say what ran (model, local_batch, network, method, gpus, engine, settings, machine
    and more), what came out as the median over repetitions (throughput_samples_per_s;
    iteration_seconds, exposed_communication_seconds and bytes_sent per iteration and worker; std of
    the throughput), and where it is from (versions, commit, time). All seconds are real ones: those
    of a slowed network and replayed computation times the scale.

    Raises InputError for bad arguments before anything starts, ResultsError for an ``out`` that
    is not a results file or that another process measures into, RankError when a rank fails or a
    run exceeds ``timeout_seconds``.

    >>> import ddlnb
    >>> rows = ddlnb.measure(  # doctest: +SKIP
    ...     "small-conv", ["WFBP-A2A", "MG-WFBP"], iterations=2, warmup=1, repetitions=1
    ... )
    >>> rows["method"].to_list(), rows["gpus"].to_list()  # doctest: +SKIP
    (['single', 'DDP', 'WFBP-A2A', 'MG-WFBP'], [1, 2, 2, 2])
    """
    settings = settings.changed(**options)
    if ranks is not None:
        settings = settings.at(ranks.site)
    task, chosen = _checked(model, methods, settings, out)
    with held(out):
        return Measurement(_measured(task, chosen, settings, ranks, out, progress))


def _measured(
    task: Task,
    chosen: list[Target],
    settings: MeasurementSettings,
    ranks: Ranks | None,
    out: str | Path | None,
    progress: Show,
) -> pd.DataFrame:
    """Return the rows of `measure`, of runs that are there and of those that are missing."""
    cells = cells_of(task, chosen, settings)
    require(
        out is None or "<lambda>" not in str(cells[0]["optimizer"]),
        "rows that are kept name their optimizer, and a lambda has no name; give a function",
    )
    results = ResultsFile(out)
    missing = missing_runs(cells, settings.repetitions, results)
    if not missing:
        return _ordered(results.rows, cells)
    with _ranks_or(ranks, chosen, settings) as up:
        bench = Bench(task, up, settings)
        for repetition, index in _with_progress(missing, chosen, progress):
            job, reports = bench.run(
                chosen[index], iterations=settings.iterations, warmup=settings.warmup
            )
            results.add(
                {
                    **provenance(),
                    **cells[index],  # whose machine may name a device as well
                    "repetition": repetition,
                    **_measures(job, reports),
                    "messages": len(job.plan.messages) if job.plan else 0,
                    "plan": ", ".join(
                        [job.plan.digest if job.plan else "", *map(str, reports[0].switches)]
                    ),
                }
            )
    return _ordered(results.rows, cells)


def measure_scaling(
    model: str | Task,
    methods: Methods = "all",
    *,
    workers: int | Sequence[int] = (2, 4),
    only_fitting: bool = False,
    settings: MeasurementSettings = DEFAULTS,
    out: str | Path | None = None,
    progress: Show = None,
    **options: Any,
) -> Measurement:
    """Return the rows of `measure` for every number of workers, with a column ``speedup``.

    The ranks are started once. The one-worker baseline is measured once, together with the first
    number of workers, and ``speedup`` is the throughput over that baseline's; there is none without
    the baseline. With ``only_fitting``, numbers of workers that the site has no room for (see
    `fitting_workers`) are left out, and a LeftOut warning says so. The other arguments and what is
    raised are those of `ddlnb.measure`.

    >>> import ddlnb
    >>> rows = ddlnb.measure_scaling(  # doctest: +SKIP
    ...     "small-conv", "BSP-A2A", workers=[1, 2], iterations=2, warmup=1, repetitions=1
    ... )
    >>> rows.loc[rows["method"] == "BSP-A2A", "gpus"].to_list()  # doctest: +SKIP
    [1, 2]
    >>> rows.loc[rows["method"] == "single", "speedup"].to_list()  # doctest: +SKIP
    [1.0]
    """
    workers = several(workers)
    require(bool(workers), "workers is empty; give at least one number of workers")
    require_whole(**{f"workers[{i}]": count for i, count in enumerate(workers)})
    settings = settings.changed(workers=max(workers), **options)
    if only_fitting:
        workers, left_out = fitting_workers(workers, settings.site, settings.device)
        if left_out:
            warnings.warn(left_out, LeftOut, stacklevel=2)
    each = [settings.changed(workers=count) for count in workers]  # refused before any starts
    most = settings.changed(workers=max(workers))
    _, chosen = _checked(model, methods, most, out)
    with (
        held(out),
        temporary_folder() as folder,
        _ranks_or(None, chosen, most) as ranks,
    ):
        file = out or folder / "rows.csv"
        rows = []
        for own in each:
            at_count = own.at(ranks.site)
            task, chosen = _checked(model, methods, at_count, file)
            rows.append(_measured(task, chosen, at_count, ranks, file, progress))
    joined = pd.concat(rows, ignore_index=True)
    repeated = joined.duplicated(["method", "gpus", "engine", "settings"])
    rows_once = joined[~repeated].reset_index(drop=True)
    return Measurement(speedups(rows_once) if "single" in set(rows_once["method"]) else rows_once)


def record_timelines(
    model: str | Task,
    methods: Methods = "all",
    *,
    settings: MeasurementSettings = DEFAULTS,
    ranks: Ranks | None = None,
    progress: Show = None,
    iterations: int = 3,
    warmup: int = 3,
    **options: Any,
) -> dict[str, Timeline]:
    """Return measured timelines by method name: what every rank computed and sent, span by span.

    ``options`` change the settings, as in `measure`; there are no baselines. A timeline holds
    ``iterations`` after ``warmup`` more. Its spans have a rank, a kind, a name, and start and
    stop in seconds; ``to_frame()`` makes a table of them. Raises what `ddlnb.measure` raises.

    >>> import ddlnb
    >>> from ddlnb.engines import record_timelines
    >>> timelines = record_timelines("small-conv", "MG-WFBP", workers=2)  # doctest: +SKIP
    >>> timelines["MG-WFBP"].source, timelines["MG-WFBP"].iterations  # doctest: +SKIP
    ('measured', 3)
    >>> sorted({span.rank for span in timelines["MG-WFBP"].spans})  # doctest: +SKIP
    [0, 1]
    """
    options |= {"iterations": iterations, "warmup": warmup, "baselines": False}
    settings = settings.changed(**options)
    _, chosen = _checked(model, methods, settings, None)
    with _ranks_or(ranks, chosen, settings) as up:
        bench = Bench(model, up, settings)
        steps = _with_progress([(0, i) for i in range(len(chosen))], chosen, progress)
        return {
            chosen[i].name: bench.timeline(chosen[i], iterations=iterations, warmup=warmup)
            for _, i in steps
        }


def _checked(
    model: str | Task, methods: Methods, settings: MeasurementSettings, out: str | Path | None
) -> tuple[Task, list[Target]]:
    """Return what is to run, before anything starts; raise what `measure` raises then."""
    if out is not None:
        require_writable_file(out, "rows.csv")  # before hours of work
    task = get_task(model)
    batch = settings.batch_of(task)
    _require_device(settings)
    slowed(task, settings.site.scale)  # refuses a scale for what really computes
    chosen = targets_of(methods, settings)
    for name in {target.engine for target in chosen}:
        require_installed(name)
    if settings.topology == "mesh":
        supplied("transport over a mesh")  # refuses what only an extension has
    if (
        task.recorded is None
        and settings.device == "cpu"
        and is_here(settings.site.launcher, "")
        and not (out and Path(out).exists())  # what has gone well goes on
    ):
        count = settings.workers if any(one.engine != "single" for one in chosen) else 1
        require_room(count, settings.site.launcher, "")
        require_memory_for_training(task, batch, count)
    return task, chosen


def _measures(job: Job, reports: list[Report]) -> dict[str, float]:
    """Return throughput by the slowest worker, and means over workers and iterations."""
    seconds = max(report.seconds for report in reports)
    samples = job.workers * job.local_batch * job.iterations
    waited = statistics.fmean(report.waited_seconds for report in reports)
    return {
        "throughput_samples_per_s": samples / seconds,
        "iteration_seconds": seconds / job.iterations,
        "exposed_communication_seconds": waited / job.iterations,
        "bytes_sent": statistics.fmean(report.bytes_sent for report in reports) / job.iterations,
    }


def _ordered(rows: pd.DataFrame, cells: list[dict[str, object]]) -> pd.DataFrame:
    """Return the rows of these cells, in their order; a file may hold others as well."""
    keys = list(pd.DataFrame(cells).columns)
    order = {tuple(map(str, cell.values())): index for index, cell in enumerate(cells)}
    found = rows[keys].astype(str).apply(tuple, axis=1).map(order)
    return (
        rows.assign(_order=found)
        .dropna(subset="_order")
        .sort_values("_order")
        .drop(columns="_order")
        .reset_index(drop=True)
    )


def _require_device(settings: MeasurementSettings) -> None:
    """Raise MissingPart if local ranks would have no GPU."""
    import torch

    local = settings.site.launcher == "local"
    if settings.device == "cuda" and local and not torch.cuda.is_available():
        raise MissingPart("device 'cuda' needs an NVIDIA GPU, and torch sees none; use 'cpu'")


@contextmanager
def _ranks_or(
    ranks: Ranks | None, chosen: Sequence[Target], settings: MeasurementSettings
) -> Iterator[Ranks]:
    """Lend the ranks, or start as many as these targets need."""
    if ranks is not None:
        yield ranks
        return
    needed = ranks_needed(chosen, settings.workers, settings.server_count)
    with Ranks.at(
        settings.site,
        needed,
        imports=MEASURING,
        timeout_seconds=settings.timeout_seconds,
        start_timeout_seconds=settings.start_timeout_seconds,
    ) as started:
        yield started


def _with_progress(
    steps: list[tuple[int, int]], chosen: list[Target], show: Show
) -> Iterator[tuple[int, int]]:
    with bar(steps, unit="run", progress=show) as runs:
        for repetition, index in runs:
            runs.set_description(f"{chosen[index].name}, repetition {repetition + 1}")
            yield repetition, index
