"""How long a measurement takes on this machine, told before it starts: to be asked, not quoted.

Every run is simulated on links as they were asked for. Computation is that of the recorded
workload, or the traced work at the speed at which a core multiplies matrices here, shared by all
workers that have no core of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.engines.targets import Contender, Methods, cells_of, contenders, missing_runs
from ddlnb.files import cores
from ddlnb.plans.methods import METHODS, Method
from ddlnb.registry import several
from ddlnb.results.rows import ResultsFile
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.workloads.profiling import torch_threads
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.roofline import FLOPS_PER_BYTE, from_throughput
from ddlnb.workloads.task import Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

START_SECONDS = 8.0  # until ranks are up and have loaded torch
RUN_SECONDS = 1.5  # of every run, before its first iteration and after its last
MESSAGE_SECONDS = 1e-3  # of software on a CPU, for every message (`benchmarks.message_cost`)
LOOPBACK = 1e9  # bytes per second between processes of one machine
LIKE_DDP = METHODS["MG-WFBP"]  # it merges gradients into buckets, too
ON_THIS_MACHINE = ("local", "emulated")
SIDE = 512  # of the matrices by which the speed of a core is found


def estimated_seconds(
    model: str | Task,
    methods: Methods,
    *,
    workers: int | Sequence[int],
    settings: MeasurementSettings,
    out: str | Path | None = None,
) -> float | None:
    """Return the real seconds that `ddlnb.measure_scaling` takes for what is not in ``out`` yet.

    None where ranks do not run on this machine's CPU. Raises what it raises for wrong arguments.
    """
    if settings.site.launcher not in ON_THIS_MACHINE or settings.device != "cpu":
        return None
    task = get_task(model)
    workload = _workload(task, settings)
    done = ResultsFile(out if out is not None and Path(out).exists() else None)
    total, seen = START_SECONDS, set()
    for count in several(workers):
        at_count = settings.changed(workers=count)
        chosen = contenders(methods, at_count)
        each = _run_seconds(workload, chosen, at_count)
        cells = cells_of(task, chosen, at_count)
        for repetition, index in missing_runs(cells, settings.repetitions, done):
            run = (repetition, *map(str, cells[index].values()))
            if run not in seen:  # the one worker alone is measured once
                seen.add(run)
                total += each[index]
    return total if seen else 0.0


def _run_seconds(
    workload: Workload, chosen: Sequence[Contender], settings: MeasurementSettings
) -> list[float]:
    """Return the real seconds of one run of each."""
    alone = workload.compute_seconds
    total = [RUN_SECONDS] * len(chosen)
    for at_site, count in _phases(settings):
        cluster, servers = _cluster(at_site), settings.server_count
        cells = [Cell(workload, cluster, _estimated_as(one), servers) for one in chosen]
        iterations = count / settings.site.scale
        for index, (one, found) in enumerate(zip(chosen, steady_seconds(cells), strict=True)):
            seconds = alone if one.engine == "single" else found.iteration_seconds
            total[index] += iterations * seconds
    return total


def _phases(settings: MeasurementSettings) -> Iterator[tuple[MeasurementSettings, int]]:
    """Yield the settings on each network that a run sees, and how many iterations it has there."""
    begin, site = 0, settings.site
    for change in settings.changes:
        yield settings.changed(site=site, becomes=()), change.iteration - begin
        begin, site = change.iteration, change.site(site)
    last = settings.warmup + settings.iterations
    yield settings.changed(site=site, becomes=()), last - begin


def _estimated_as(contender: Contender) -> Method:
    """Return the method that stands for a contender; a search takes too long for an estimate."""
    method = contender.method
    return LIKE_DDP if method is None or method.planner is not None else method


def _workload(task: Task, settings: MeasurementSettings) -> Workload:
    if task.recorded is not None:
        return task.recorded
    traced = trace(task, settings.batch_of(task))
    memory = sum(layer.forward_bytes + layer.backward_bytes for layer in traced.layers)
    seconds = (traced.flops + FLOPS_PER_BYTE * memory) / core_flops()
    return from_throughput(traced, traced.local_batch / seconds, "estimated")


def _cluster(settings: MeasurementSettings) -> Cluster:
    """Return the workers on nodes of their own, joined by the slowest link that is asked for."""
    site = settings.site
    bandwidth, latency = LOOPBACK, 0.0
    if site.is_emulated:
        wiring = site.wiring(settings.workers)
        bandwidth = min(wire.link.bandwidth for wire in wiring.wires)
        latency = max(
            sum(wiring.wires[number].link.latency for number in route)
            for routes in wiring.routes.values()
            for route in routes
        )
    is_computed = site.scale == 1.0
    return Cluster(
        name="this machine",
        network=site.network_name,
        nodes=settings.workers,
        gpus_per_node=1,
        effects=Effects(
            between_bandwidth=bandwidth,
            between_latency=latency,
            operation_latency=MESSAGE_SECONDS * site.scale,
            compute_factor=max(1.0, settings.workers / cores()) if is_computed else 1.0,
        ),
        server_place="extra machines",
    )


@cache
def core_flops() -> float:
    """Return the FLOP/s of one core of this machine at multiplying matrices; it takes 0.1 s."""
    left, right = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    with torch_threads(1):
        torch.mm(left, right)
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.1:
            torch.mm(left, right)
            done += 1
        return 2 * SIDE**3 * done / (time.perf_counter() - begin)
