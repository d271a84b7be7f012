"""Measure for two minutes what the simulated twin of this machine is calibrated with.

The real engine trains two made-up models (`ddlnb.calibration.probes`) with every method and some
numbers of workers; all-reduces are timed beside them. The models whose speed is to be forecast take
no part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.calibration.kept_load import keeping_load
from ddlnb.calibration.probes import PROBES, probes
from ddlnb.engines.bench import Bench
from ddlnb.engines.contenders import contenders, ranks_needed
from ddlnb.engines.imports import MEASURING
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.errors import ResultsError, require, require_whole
from ddlnb.files import write_atomically
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.site import HERE, Site
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta
from ddlnb.plans.methods import METHODS
from ddlnb.progress import Show
from ddlnb.provenance import machine
from ddlnb.results.rows import read_rows
from ddlnb.units import KIB, MIB
from ddlnb.workloads.tasks import Task
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

ALL_REDUCES = "all_reduces.json"  # the files in the folder
ROWS = "rows.csv"
SIZES = (4 * KIB, 64 * KIB, MIB, 4 * MIB)  # bytes of the all-reduces


@dataclass(frozen=True)
class AllReduceTimes:
    """Seconds of one all-reduce of some bytes among some workers."""

    workers: int
    message_bytes: int
    seconds: float
    while_computing: bool


@dataclass(frozen=True)
class MicroBenchmark:
    """What was measured: tidy rows, the probes' workloads by (model, workers), all-reduces."""

    rows: pd.DataFrame
    workloads: dict[tuple[str, int], Workload]
    all_reduces: tuple[AllReduceTimes, ...]
    site: Site = HERE

    def planning_cost(self, workers: int) -> AlphaBeta:
        """Return the time of an all-reduce, while the workers compute if known; plans use it."""
        return _planning_cost(self.all_reduces, workers)


PROBING = MeasurementSettings(iterations=10, baselines=False)  # of the probes


def micro_benchmark(
    folder: str | Path,
    *,
    workers: Sequence[int] = (2, 4),
    settings: MeasurementSettings = PROBING,
    server_per_worker: bool = False,
    progress: Show = None,
) -> MicroBenchmark:
    """Measure, keep everything in the folder and return it; a second call completes it.

    A workload is profiled while all of the run's workers compute, because they share the cores.
    There are as many parameter servers as the settings say, or one per worker. Raises what
    `ddlnb.measure` raises.
    """
    require(bool(workers), "workers is empty; give at least one number of workers")
    require_whole(2, **{f"workers[{i}]": count for i, count in enumerate(workers)})
    folder, site = Path(folder), settings.site
    _require_this_machine(folder)
    if _is_complete(folder, workers, settings.repetitions):
        return read_micro_benchmark(folder, site)
    tasks = probes(site)
    most = max(workers)
    servers = most if server_per_worker else settings.server_count
    times = folder / ALL_REDUCES
    missing = [
        (task, count)
        for task in tasks
        for count in workers
        if not profile_path(folder, task.name, count).exists()
    ]
    needed = ranks_needed(contenders("all"), most, servers)
    with (
        keeping_load(folder / ROWS),
        Ranks.at(site, needed, imports=MEASURING) as ranks,
    ):
        for task, count in missing:
            keep_profile(folder, task, count, ranks)
        if not times.exists():
            benches = [Bench(tasks[0], ranks, settings.changed(workers=n)) for n in workers]
            found = [one for bench in benches for one in _all_reduces(bench)]
            write_atomically(times, json.dumps([asdict(one) for one in found], indent=1))
        known = _read_all_reduces(folder)
        for task in tasks:
            for count in workers:
                measure(
                    task,
                    settings=settings.changed(
                        workers=count,
                        servers=count if server_per_worker else settings.servers,
                        cost=_planning_cost(known, count),
                    ),
                    out=folder / ROWS,
                    ranks=ranks,
                    progress=progress,
                )
    return read_micro_benchmark(folder, site)


def _require_this_machine(folder: Path) -> None:
    if not (folder / ROWS).exists():
        return
    known, here = set(read_rows(folder / ROWS)["machine"]), machine()
    require(
        known <= {here},
        f"rows in {folder} are of {', '.join(sorted(known))}, but this machine is {here!r}; "
        f"choose another folder",
    )


def _is_complete(folder: Path, workers: Sequence[int], repetitions: int) -> bool:
    if not (folder / ROWS).exists():
        return False
    rows = read_rows(folder / ROWS)
    done = rows[(rows["repetitions"] >= repetitions) & rows["gpus"].isin(workers)]
    return len(done) >= len(PROBES) * len(workers) * len(METHODS)


def keep_profile(folder: Path, task: str | Task, workers: int, ranks: Ranks) -> Workload:
    """Profile a task while this many workers compute; write the workload to the folder."""
    workload = Bench(task, ranks, MeasurementSettings(workers=workers)).workload
    write_atomically(profile_path(folder, workload.model, workers), workload.to_json() + "\n")
    return workload


def read_micro_benchmark(folder: str | Path, site: Site = HERE) -> MicroBenchmark:
    """Return what `micro_benchmark` kept in a folder. Raises ResultsError if it lacks parts."""
    folder = Path(folder)
    rows = read_rows(folder / ROWS)
    try:
        workloads = {
            (model, int(count)): Workload.from_json(profile_path(folder, model, count).read_text())
            for model, count in rows[["model", "gpus"]].drop_duplicates().to_records(index=False)
        }
        times = _read_all_reduces(folder)
    except OSError as error:
        raise ResultsError(
            f"{folder} lacks {error.filename}; measure again to complete it"
        ) from error
    return MicroBenchmark(rows, workloads, times, site)


def _read_all_reduces(folder: Path) -> tuple[AllReduceTimes, ...]:
    listed = json.loads((folder / ALL_REDUCES).read_text())
    return tuple(AllReduceTimes(**one) for one in listed)


def _planning_cost(known: Sequence[AllReduceTimes], workers: int) -> AlphaBeta:
    among = [one for one in known if one.workers == workers]
    chosen = [one for one in among if one.while_computing] or among
    return fit_alpha_beta([one.message_bytes for one in chosen], [one.seconds for one in chosen])


def _all_reduces(bench: Bench) -> list[AllReduceTimes]:
    return [
        AllReduceTimes(bench.settings.workers, size, seconds, computing)
        for computing in ((False,) if bench.task.recorded else (False, True))
        for size, seconds in bench.all_reduce_seconds(SIZES, 25, while_computing=computing)
    ]


def profile_path(folder: Path, model: str, workers: int) -> Path:
    """Return the path of a model's workload, profiled with this many workers."""
    return folder / f"{model}_{workers}-workers.json"
