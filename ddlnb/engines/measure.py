"""Measure methods beside one another: alternating runs, one tidy table, resumable."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.engines.bench import (
    BACKENDS,
    DEVICES,
    Bench,
    Contender,
    contenders,
    ranks_needed,
    slowed,
)
from ddlnb.engines.catalogue import require_installed
from ddlnb.engines.job import Job, Report, get_optimizer
from ddlnb.engines.replica import MakeOptimizer
from ddlnb.engines.transports.connect import TOPOLOGIES
from ddlnb.errors import InputError, MissingPart, UnknownName, require, require_whole
from ddlnb.launch.emulation.links import Link
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.site import EMULATED, Site
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import Method
from ddlnb.provenance import machine, provenance
from ddlnb.results.rows import CELL, ResultsFile
from ddlnb.results.timeline import Timeline
from ddlnb.workloads.tasks import Task, get_task
from ddlnb.workloads.tracing import trace

if TYPE_CHECKING:
    import pandas as pd


Methods = str | Method | list[str | Method]


def measure(
    model: str | Task,
    methods: Methods = "all",
    *,
    workers: int = 2,
    servers: int | None = None,
    engine: str | Sequence[str] = "torch",
    baselines: bool | Sequence[str] = True,
    local_batch: int | None = None,
    iterations: int = 20,
    warmup: int = 5,
    repetitions: int = 3,
    optimizer: str | MakeOptimizer = "sgd",
    partition: str | int | None = None,
    credit: str | int | None = None,
    cost: AlphaBeta | None = None,
    out: str | Path | None = None,
    launcher: str = "local",
    host: str = "127.0.0.1",
    hosts: tuple[str, ...] = (),
    network: str | Link | Sequence[str | Link] | None = None,
    scale: float = 1.0,
    ranks_per_node: int = 1,
    ranks: Ranks | None = None,
    device: str = "cpu",
    backend: str = "gloo",
    topology: str = "ring",
    timeout_seconds: float = 300.0,
    progress: bool = False,
) -> pd.DataFrame:
    """The tidy table of these methods (and baselines) on real workers, one row per method.

    Every repetition runs all methods once, each time starting with another one, so that a drift of
    the machine hits all alike. Each run starts from the same parameters. With ``out`` every
    finished run is on disk at once, and a second call runs only what is missing. Give ``ranks`` to
    use processes that are already up, or ``launcher``, ``host`` and ``hosts`` for those of `Ranks`;
    ``network`` is what the table calls the network between them; with launcher "emulated" it is
    the network to emulate, slowed to ``scale``, with so many ranks on a node (see `Ranks`). All
    seconds in the table are real ones: those of the slowed world times the scale. ``servers`` is
    the number of parameter servers, by default one per host. ``partition`` and ``credit`` (bytes,
    or text such as "256KB") replace those of the methods that have them. ``topology`` of our own
    engine's all-reduces is "ring" (the backend's own) or "mesh" (two hops, for links with long
    delays). ``cost`` is the time of an all-reduce by which methods plan, by default as measured.

    Raises InputError for bad arguments before anything starts, ResultsError for an ``out`` that
    is not a results file, RankError when a rank fails or a run exceeds ``timeout_seconds``.
    """
    task = get_task(model)
    site = Site(launcher, host, hosts, network, scale, ranks_per_node)
    if ranks is not None:
        site = replace(ranks.site, network=network or ranks.site.network)
    launcher, scale, ranks_per_node = site.launcher, site.scale, site.ranks_per_node
    servers = max(1, len(hosts)) if servers is None else servers
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
    _require_device(device, backend, launcher)
    if topology not in TOPOLOGIES:
        raise UnknownName("topology", topology, TOPOLOGIES)
    require(
        task.recorded is None or local_batch == task.local_batch,
        f"local_batch={local_batch}: {task.name!r} replays a batch of {task.local_batch}",
    )
    slowed(task, scale)  # refuses a scale for what really computes
    workload = task.recorded or trace(task, local_batch)  # which refuses what cannot be trained
    chosen = contenders(
        methods, engine=engine, baselines=baselines, partition=partition, credit=credit
    )
    for name in {contender.engine for contender in chosen}:
        require_installed(name)
    common = {
        "model": task.name,
        "structure": workload.structure,
        "local_batch": local_batch,
        "network": site.network_name,
        "source": site.source,
        "optimizer": optimizer if isinstance(optimizer, str) else _name_of(make_optimizer),
        "iterations": iterations,
        "warmup": warmup,
        "machine": machine() if device == "cpu" else f"{machine()}, {device}",
    }
    extra = _circumstances(task, scale, ranks_per_node)
    cells = [{**common, **_of(one, workers, servers, topology, extra)} for one in chosen]
    results = ResultsFile(out)
    missing = [
        (repetition, index)
        for repetition in range(repetitions)
        for index in _rotated(len(chosen), repetition)
        if not results.has(cells[index], repetition)
    ]
    if not missing:
        return _ordered(results.rows, cells)
    needed = ranks_needed(chosen, workers, servers)
    emulated = {"network": network, "scale": scale, "ranks_per_node": ranks_per_node}
    placed = emulated if launcher == EMULATED else {"host": host, "hosts": hosts}
    with _ranks_or(ranks, needed, launcher=launcher, **placed) as up:
        bench = Bench(
            task,
            up,
            workers=workers,
            servers=servers,
            local_batch=local_batch,
            optimizer=make_optimizer,
            device=device,
            backend=backend,
            topology=topology,
            cost=cost,
            timeout_seconds=timeout_seconds,
        )
        for repetition, index in _with_progress(missing, chosen, progress):
            job, reports = bench.run(chosen[index], iterations=iterations, warmup=warmup)
            results.add(
                {
                    **provenance(),
                    **cells[index],  # whose machine may name a device besides
                    "repetition": repetition,
                    **_measures(job, reports),
                    "messages": len(job.plan.messages) if job.plan else 0,
                    "plan": job.plan.digest if job.plan else "",
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
    cost: AlphaBeta | None = None,
    launcher: str = "local",
    ranks: Ranks | None = None,
    progress: bool = False,
) -> dict[str, Timeline]:
    """Measured timelines by method name: what every rank computed and sent, span by span.

    ``cost`` is the time of an all-reduce by which methods plan, by default as measured here.
    """
    chosen = contenders(methods, baselines=False, partition=partition, credit=credit)
    require_whole(workers=workers, servers=servers, iterations=iterations)
    require_whole(0, warmup=warmup)
    with _ranks_or(ranks, ranks_needed(chosen, workers, servers), launcher=launcher) as up:
        bench = Bench(
            model, up, workers=workers, servers=servers, local_batch=local_batch, cost=cost
        )
        steps = _with_progress([(0, i) for i in range(len(chosen))], chosen, progress)
        return {
            chosen[i].name: bench.timeline(chosen[i], iterations=iterations, warmup=warmup)
            for _, i in steps
        }


def speedups(rows: pd.DataFrame, baseline: str = "single") -> pd.DataFrame:
    """The rows with a column ``speedup``: throughput over that of the baseline's row.

    The baseline is that of the same model, batch, network, optimizer, machine and source, whatever
    its engine and number of workers. Raises InputError where there is none.
    """
    free = {"method", "gpus", "engine", "servers", "settings"}
    keys = [column for column in CELL if column in rows and column not in free]
    single = rows[rows["method"] == baseline]
    base = single.groupby(keys, dropna=False)["throughput_samples_per_s"].median().rename("base")
    joined = rows.merge(base.reset_index(), on=keys, how="left")
    if joined["base"].isna().any():
        lacking = joined[joined["base"].isna()].iloc[0][keys].to_dict()
        raise InputError(f"the table has no row of {baseline!r} to compare with for {lacking}")
    speedup = joined["throughput_samples_per_s"] / joined["base"]
    return rows.assign(speedup=speedup.to_numpy())


def _circumstances(task: Task, scale: float, ranks_per_node: int) -> str:
    """How a run differed from a plain one, in words for the column ``settings``."""
    words = ["replayed"] if task.recorded is not None else []
    words += [f"scale={scale:g}"] if scale != 1 else []
    words += [f"ranks_per_node={ranks_per_node}"] if ranks_per_node != 1 else []
    return " ".join(words)


def _of(
    contender: Contender, workers: int, servers: int, topology: str, extra: str
) -> dict[str, object]:
    """The columns of a cell that depend on who runs."""
    asks = contender.method.exchange if contender.method and contender.engine == "torch" else ""
    shape = f"topology={topology}" if asks == "all_reduce" and topology != "ring" else ""
    on_servers = contender.method is not None and contender.method.exchange == "push_pull"
    return {
        "method": contender.name,
        "gpus": 1 if contender.engine == "single" else workers,
        "engine": contender.engine,
        "servers": servers if on_servers else 0,
        "settings": " ".join(filter(None, (contender.settings, shape, extra))),
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
    """What the table calls an optimizer factory: its name, and its keywords if it is a partial."""
    inner = getattr(make_optimizer, "func", make_optimizer)
    keywords = getattr(make_optimizer, "keywords", {})
    shown = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
    return getattr(inner, "__name__", type(make_optimizer).__name__) + (f"({shown})" * bool(shown))


def _require_device(device: str, backend: str, launcher: str) -> None:
    for what, name, known in (("device", device, DEVICES), ("backend", backend, BACKENDS)):
        if name not in known:
            raise UnknownName(what, name, known)
    if (device, backend) == ("cpu", "nccl"):
        raise InputError("backend 'nccl' exchanges gradients of GPUs; use it with device='cuda'")
    import torch

    if device == "cuda" and launcher == "local" and not torch.cuda.is_available():
        raise MissingPart("device 'cuda' needs an NVIDIA GPU, and torch sees none; use 'cpu'")


@contextmanager
def _ranks_or(
    ranks: Ranks | None,
    count: int,
    *,
    launcher: str,
    **placed: Any,
) -> Iterator[Ranks]:
    if ranks is not None:
        yield ranks
    else:
        with Ranks(count, launcher=launcher, **placed) as started:
            yield started


def _with_progress(
    steps: list[tuple[int, int]], chosen: list[Contender], show: bool
) -> Iterator[tuple[int, int]]:
    from tqdm.auto import tqdm

    with tqdm(steps, unit="run", disable=not show) as bar:
        for repetition, index in bar:
            bar.set_description(f"{chosen[index].name}, repetition {repetition + 1}")
            yield repetition, index


# The same measurement with several numbers of workers, on processes that are started once.
def measure_scaling(
    model: str | Task,
    methods: Methods = "all",
    *,
    workers: Sequence[int] = (2, 4),
    servers: int = 1,
    local_batch: int | None = None,
    iterations: int = 20,
    warmup: int = 5,
    repetitions: int = 3,
    out: str | Path | None = None,
    launcher: str = "local",
    progress: bool = False,
) -> pd.DataFrame:
    """The tidy table of these methods and baselines for every number of workers, with ``speedup``.

    The one-worker baseline is measured once, together with the first number of workers. With
    ``out`` every finished run is on disk at once, and a second call runs only what is missing.
    Raises what `ddlnb.measure` raises.
    """
    require(bool(workers), "workers is empty; give at least one number of workers")
    require_whole(servers=servers, **{f"workers[{i}]": count for i, count in enumerate(workers)})
    needed = ranks_needed(contenders(methods), max(workers), servers)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ranks(needed, launcher=launcher, timeout_seconds=300) as ranks,
    ):
        rows = [
            measure(
                model,
                methods,
                workers=count,
                servers=servers,
                local_batch=local_batch,
                iterations=iterations,
                warmup=warmup,
                repetitions=repetitions,
                out=out or Path(folder, "rows.csv"),
                launcher=launcher,
                ranks=ranks,
                progress=progress,
            )
            for count in workers
        ]
    import pandas as pd

    joined = pd.concat(rows, ignore_index=True)
    repeated = joined.duplicated(["method", "gpus", "engine", "settings"])
    return speedups(joined[~repeated].reset_index(drop=True))
