"""What ranks measure before a plan is made: layer times, and the time of an all-reduce."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.engines.process_group import local_device, process_group
from ddlnb.engines.transports.carrying import CollectiveTransport
from ddlnb.engines.transports.mesh import MeshTransport
from ddlnb.launch.rank import RankContext
from ddlnb.networks.transfers import Collective
from ddlnb.plans.requests import AllReduce
from ddlnb.units import KIB, MIB
from ddlnb.workloads.profiling import profile
from ddlnb.workloads.tasks import Task
from ddlnb.workloads.workload import Workload

COST_SIZES = (4 * KIB, 256 * KIB, 4 * MIB)  # bytes to which a + b M is fitted
LEAST_SECONDS = 0.5  # of measuring: a moment of other work on the machine must not decide


def profile_rank(
    context: RankContext, task: Task, local_batch: int, iterations: int, device: str = "cpu"
) -> Workload:
    """Return the workload as this rank measures it while all ranks of the run compute.

    Profiling under the load of the real run is what makes its layer times those of the real run.
    All ranks begin together, and those that are done go on computing until the last one is.
    """
    on = str(local_device(context, device))
    store = context.store()
    start = time.perf_counter()
    profile(task, local_batch, iterations=1, warmup=1, device=on)
    seconds = (time.perf_counter() - start) / 2
    store.add("ready to profile", 1)
    while store.add("ready to profile", 0) < context.count:
        time.sleep(0.001)
    enough = max(iterations, min(50, math.ceil(LEAST_SECONDS / seconds)))
    found = profile(task, local_batch, iterations=enough, device=on)
    store.add("profiled", 1)
    while store.add("profiled", 0) < context.count:
        profile(task, local_batch, iterations=1, warmup=0, device=on)
    return found


def time_all_reduce(
    context: RankContext,
    sizes: tuple[int, ...],
    repetitions: int,
    backend: str = "gloo",
    device: str = "cpu",
    while_computing: bool = False,
    topology: str = "ring",
    collective: Collective | None = None,
) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of this rank's all-reduces per size, medians of repetitions.

    ``while_computing`` keeps every rank busy with matrix products meanwhile, as a backward pass
    does: where computation and communication share cores, that multiplies the latency. A message
    then either gets a core at once or waits for its turn, so the mean is taken instead.
    """
    on = local_device(context, device)
    with process_group(context, context.store(), context.count, backend):
        how = (while_computing, topology, collective)
        return timed_all_reduces(context, sizes, repetitions, on, *how)


def timed_all_reduces(
    context: RankContext,
    sizes: tuple[int, ...],
    repetitions: int,
    device: torch.device,
    while_computing: bool = False,
    topology: str = "ring",
    collective: Collective | None = None,
) -> list[tuple[int, float]]:
    """Return what `time_all_reduce` does, in the default process group, which is there already."""
    typical = statistics.fmean if while_computing else statistics.median
    found = []
    with _all_reduce(context, topology, collective) as all_reduce:
        for size in sizes:
            tensor = torch.zeros(max(1, size // 4), device=device)
            seconds = []
            with _computing() if while_computing else nullcontext():
                for _ in range(repetitions + 1):
                    start = time.perf_counter()
                    all_reduce(tensor)
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    seconds.append(time.perf_counter() - start)
                dist.barrier()
            found.append((size, typical(seconds[1:])))
    return found


@contextmanager
def _all_reduce(
    context: RankContext, topology: str, collective: Collective | None
) -> Iterator[Callable[[torch.Tensor], Any]]:
    """Yield what sums a tensor over all ranks as the engine does, and returns when that is done."""
    if collective is None and topology == "ring":
        yield dist.all_reduce
        return
    reached = context.host, context.timeout_seconds
    ours = CollectiveTransport(collective, *reached) if collective else MeshTransport(*reached)
    with ours:
        yield lambda tensor: ours.start(0, AllReduce(tensor)).wait()


def shares_cores(task: Task, device: str) -> bool:
    """Return whether a run computes on the cores that its communication needs.

    It does not on GPUs, nor where computation is replayed.
    """
    return device == "cpu" and task.recorded is None


@contextmanager
def _computing() -> Iterator[None]:
    stop = threading.Event()
    matrix = torch.ones(512, 512)

    def compute() -> None:
        while not stop.is_set():
            torch.mm(matrix, matrix)

    thread = threading.Thread(target=compute, name="computing")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
