"""A calibrated model of this machine, or of a network emulated on it, from two minutes of runs.

The real engine trains two made-up models with every method and some numbers of workers; all-reduces
are timed beside them. The models whose speed is to be forecast take no part. On an emulated network
(see `LaunchOptions`) they are replayed, with as much computation as there is communication. The
load under which rows were measured is kept beside them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from ddlnb.calibration.clusters import MOST_MODEL_ERROR, Calibration, calibrate_parameters
from ddlnb.calibration.observations import (
    AllReduceTime,
    IterationTime,
    Observation,
    as_measured,
    noise_of,
    observe,
)
from ddlnb.calibration.parameters import Parameter
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.engines.bench import Bench
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MEASURING, MeasurementSettings
from ddlnb.engines.targets import ranks_needed, targets_of
from ddlnb.errors import ResultsError, require, require_whole
from ddlnb.files import held, machine, write_atomically
from ddlnb.launch.capacity import Load, watched_load
from ddlnb.launch.options import HERE, LaunchOptions
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta
from ddlnb.plans.methods import METHODS
from ddlnb.progress import Show
from ddlnb.reading import read_json, read_text, reading
from ddlnb.results.rows import read_rows
from ddlnb.results.schema import read_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.units import KIB, MIB
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

LOADS = "load.csv"
COLUMNS = ("rows", "before", "during", "stolen")


@contextmanager
def saving_load(rows: Path) -> Iterator[None]:
    """Watch the load while the body runs, and keep it if anything was written beside the rows.

    Also of a body that fails or is interrupted: what it has measured by then counts.
    """
    before, watch = _stamps(rows.parent), None
    try:
        with watched_load() as watch:
            yield
    finally:
        if watch is not None and _stamps(rows.parent) != before:
            kept = [*saved_loads(rows.parent), (rows.name, watch.load)]
            shares = [(name, load.before, load.during, load.stolen) for name, load in kept]
            table = pd.DataFrame(shares, columns=list(COLUMNS))
            write_atomically(rows.parent / LOADS, table.to_csv(index=False, float_format="%.4f"))


def saved_loads(folder: str | Path) -> list[tuple[str, Load]]:
    """Return the loads that a folder keeps, with the names of the files that got rows then.

    There are none in folders of earlier editions. Raises ResultsError for a file that is no table
    of loads.
    """
    path = Path(folder) / LOADS
    if not path.exists():
        return []
    try:
        return [
            (row["rows"], Load(*(float(row[name]) for name in COLUMNS[1:])))
            for row in read_cells(path)
        ]
    except (KeyError, ValueError) as error:
        raise ResultsError(f"{path} is no table of loads ({error}); remove it") from error


def load_sentence(folder: str | Path) -> str:
    """Return how busy the machine was while the rows of a folder were measured, in a sentence."""
    loads = [load for _, load in saved_loads(folder)]
    if not loads:
        return "How busy the machine was while this was measured is not known."
    return str(max(loads, key=_taken))


def _taken(load: Load) -> float:
    return load.during + load.stolen


def _stamps(folder: Path) -> dict[str, int]:
    """Return when each file with results in a folder was last written."""
    kept = [one for kind in ("*.csv", "*.json") for one in folder.glob(kind) if one.name != LOADS]
    return {one.name: one.stat().st_mtime_ns for one in kept}


def _mlp(layers: int, width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers))
    )


def _vectors(width: int, local_batch: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(local_batch, width, generator=generator),)


def _mean_square(module: nn.Module, batch: Batch) -> torch.Tensor:
    return module(batch[0]).square().mean()


def _probe(name: str, layers: int, width: int, local_batch: int) -> Task:
    return Task(
        name,
        partial(_mlp, layers, width),
        partial(_vectors, width),
        _mean_square,
        local_batch,
        "vectors",
        f"{layers} layers of width {width}, made up to calibrate with",
    )


PROBES = (_probe("probe-deep", 20, 160, 256), _probe("probe-wide", 4, 576, 96))
CARRIED = 2.0  # times the gradient: what a link carries while a replayed probe computes


def probes(site: LaunchOptions) -> tuple[Task, ...]:
    """Return the made-up models as they are trained at this site."""
    if not site.is_emulated:
        return PROBES
    return tuple(replayed(_with_seconds(trace(probe), site.link.bandwidth)) for probe in PROBES)


def _with_seconds(workload: Workload, bandwidth: float) -> Workload:
    """Return the workload with made-up seconds, a third of them forward, shared out by bytes."""
    seconds = CARRIED * workload.gradient_bytes / bandwidth
    size = Counter[str]()
    for gradient in workload.gradients:
        size[gradient.layer] += gradient.bytes
    share = {layer: bytes_ / workload.gradient_bytes for layer, bytes_ in size.items()}
    return workload.with_seconds(
        {layer: seconds / 3 * part for layer, part in share.items()},
        {
            gradient.name: 2 * seconds / 3 * gradient.bytes / workload.gradient_bytes
            for gradient in workload.gradients
        },
        f"made up: what {CARRIED:g} times the gradient take on a link of this bandwidth",
    )


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
    """What was measured: tidy rows, the probes' workloads by (model, workers), all-reduces.

    ``load`` is the busiest that the machine was meanwhile, None where nobody looked.
    """

    rows: pd.DataFrame
    workloads: dict[tuple[str, int], Workload]
    all_reduces: tuple[AllReduceTimes, ...]
    site: LaunchOptions = HERE
    load: Load | None = None

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
    if _is_complete(folder, workers, settings.repetitions):
        return read_micro_benchmark(folder, site)
    tasks, most = probes(site), max(workers)
    servers = most if server_per_worker else settings.server_count
    needed = ranks_needed(targets_of("all"), most, servers)
    folder.mkdir(parents=True, exist_ok=True)
    with (
        held(folder / ALL_REDUCES),
        saving_load(folder / ROWS),
        Ranks.at(site, needed, imports=MEASURING) as ranks,
    ):
        for task, count in product(tasks, workers):
            if not profile_path(folder, task.name, count).exists():
                save_profile(folder, task, count, ranks)
        known = completed(
            folder,
            workers,
            lambda count: _all_reduces(Bench(tasks[0], ranks, settings.changed(workers=count))),
        )
        for task, count in product(tasks, workers):
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


def _is_complete(folder: Path, workers: Sequence[int], repetitions: int) -> bool:
    """Return whether a folder holds all rows. Raises InputError for those of another machine."""
    if not (folder / ROWS).exists():
        return False
    rows = read_rows(folder / ROWS)
    known, here = set(rows["machine"]), machine()
    require(
        known <= {here},
        f"rows in {folder} are of {', '.join(sorted(known))}, but this machine is {here!r}; "
        f"choose another folder",
    )
    done = rows[(rows["repetitions"] >= repetitions) & rows["gpus"].isin(workers)]
    return len(done) >= len(PROBES) * len(workers) * len(METHODS)


def save_profile(folder: Path, task: str | Task, workers: int, ranks: Ranks) -> Workload:
    """Profile a task while this many workers compute; write the workload to the folder."""
    workload = Bench(task, ranks, MeasurementSettings(workers=workers)).workload
    write_atomically(profile_path(folder, workload.model, workers), workload.to_json() + "\n")
    return workload


def read_micro_benchmark(folder: str | Path, site: LaunchOptions = HERE) -> MicroBenchmark:
    """Return what `micro_benchmark` kept in a folder. Raises ResultsError if it lacks parts."""
    folder = Path(folder)
    rows = read_rows(folder / ROWS)
    try:
        workloads = {
            (model, int(count)): Workload.from_json(read_text(profile_path(folder, model, count)))
            for model, count in rows[["model", "gpus"]].drop_duplicates().to_records(index=False)
        }
        times = _read_all_reduces(folder)
    except OSError as error:
        raise ResultsError(
            f"{folder} lacks {error.filename}; measure again to complete it"
        ) from error
    loads = [load for name, load in saved_loads(folder) if name == ROWS]
    return MicroBenchmark(rows, workloads, times, site, max(loads, key=_taken, default=None))


def completed(
    folder: Path, workers: Sequence[int], timed: Callable[[int], list[AllReduceTimes]]
) -> tuple[AllReduceTimes, ...]:
    """Return the folder's all-reduces, after those of numbers of workers that it lacks."""
    path = folder / ALL_REDUCES
    known = _read_all_reduces(folder) if path.exists() else ()
    for count in [n for n in workers if n not in {one.workers for one in known}]:
        known = (*known, *timed(count))
        write_atomically(path, json.dumps([asdict(one) for one in known], indent=1))
    return known


def _read_all_reduces(folder: Path) -> tuple[AllReduceTimes, ...]:
    path = folder / ALL_REDUCES
    listed = read_json(path)
    with reading(path):
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


LEAST_DELAY = 1e-5  # seconds of a hop through an emulated network without a delay
LEAST_SPREAD = 0.03  # of a median of three runs on a shared machine, however alike they are
ALL_REDUCE_SPREAD = 0.3  # timed apart from the runs, where waking up is a part of it


def uncalibrated(
    workers: int, planning: AlphaBeta | None = None, site: LaunchOptions = HERE
) -> Cluster:
    """Return this machine with a number of workers, joined as the site says, without effects.

    Every worker is a node of one GPU; the parameter servers are processes beside them, or nodes.
    """
    about = "Processes of one machine, joined by its loopback, which share its cores"
    if site.is_emulated:
        about = f"Nodes emulated on one machine, joined by {site.network_name}"
    return Cluster(
        name=f"{site.name}-{workers}-workers",
        network=site.network_name,
        nodes=workers,
        gpus_per_node=1,
        effects=Effects(),
        server_place="extra machines",
        planning=planning,
        about=about,
        facts={"machine": machine()},
    )


def here_parameters(clusters: Sequence[Cluster], site: LaunchOptions = HERE) -> list[Parameter]:
    """Return what is fitted; only how cores are shared depends on the number of workers.

    A hop takes no time of its own between processes of one machine. On an emulated network it
    takes the delay that the network was asked for, and what the system adds.
    """
    shared = [
        Parameter("update_latency", low=1e-7, high=1e-3, prior=2e-5, prior_spread=1.0),
        Parameter("update_bandwidth", low=1e8, high=1e11, prior=2e9, prior_spread=1.0),
        Parameter("priority_latency", low=1e-7, high=1e-2, prior=3e-5, prior_spread=1.5),
        Parameter("sum_bandwidth", low=1e8, high=1e11, prior=2e9, prior_spread=1.0),
    ]
    if site.is_emulated:
        delay = max(site.link.latency, LEAST_DELAY)
        shared.append(
            Parameter(
                "between_latency", low=delay / 10, high=10 * delay, prior=delay, prior_spread=1.0
            )
        )
    return shared + [
        Parameter(effect, (cluster.name,), low=low, high=high, prior=prior, prior_spread=spread)
        for cluster in clusters
        for effect, low, high, prior, spread in (
            ("operation_latency", 1e-6, 1e-1, 5e-4, 1.5),
            ("between_bandwidth", 1e7, 1e11, 1e9, 1.0),
            ("between_share", 0.02, 1.0, 0.4, 1.0),
            ("latency_share", 0.02, 1.0, 0.4, 1.0),
            ("occupied_share", 0.02, 1.0, 0.4, 1.0),
            ("compute_share", 0.05, 1.0, 0.7, 0.5),
            ("message_compute", 1e-6, 1e-2, 1e-4, 1.0),
            ("server_latency", 1e-6, 1e-2, 1e-4, 1.5),
        )
    ]


def here_observations(found: MicroBenchmark) -> list[Observation]:
    """Return the rows and the idle all-reduces of a micro-benchmark as observations."""
    observed = []
    bases = {
        workers: uncalibrated(workers, found.planning_cost(workers), found.site)
        for workers in map(int, found.rows["gpus"].unique())
    }
    for row in found.rows.to_dict("records"):
        workers = int(row["gpus"])
        workload = found.workloads[row["model"], workers]
        servers = int(row["servers"]) or None
        cell = Cell(workload, bases[workers], as_measured(row), servers)
        spread = max(LEAST_SPREAD, noise_of(row) / row["repetitions"] ** 0.5)
        observed.append(
            observe(IterationTime(cell), row["iteration_seconds"], spread, row["source"])
        )
    for one in found.all_reduces:
        if not one.while_computing:
            on = uncalibrated(one.workers, site=found.site)
            timed = AllReduceTime(on, one.message_bytes)
            observed.append(observe(timed, one.seconds, ALL_REDUCE_SPREAD, "measured"))
    return observed


def calibrate_here(found: MicroBenchmark, *, seed: int = 0) -> tuple[Calibration, list[Cluster]]:
    """Fit to a micro-benchmark; return the fit, and a cluster for each number of workers.

    What others took of the machine meanwhile adds to the model error, as they may be gone later.
    """
    workers = sorted({one.workers for one in found.all_reduces})
    bases = [uncalibrated(count, found.planning_cost(count), found.site) for count in workers]
    fitted = calibrate_parameters(
        here_observations(found),
        here_parameters(bases, found.site),
        robust=True,
        starts=3,
        seed=seed,
    )
    others = 0.0 if found.load is None else found.load.spread
    error = min(math.hypot(fitted.model_error, others), MOST_MODEL_ERROR)
    fitted = replace(fitted, model_error=error)
    return fitted, fitted.clusters(bases)
