"""What ranks measure before a plan is made: layer times, and the time of an all-reduce."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from ddlnb.engines.base import Transport
from ddlnb.engines.torch_engine import reducing
from ddlnb.errors import require
from ddlnb.launch.rank import RankContext, local_device, process_group
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta
from ddlnb.plans.requests import AllReduce
from ddlnb.plans.transfers import Collective
from ddlnb.units import KIB, MIB
from ddlnb.workloads.profiling import profile
from ddlnb.workloads.task import Task
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class Probe:
    """So many all-reduces of so many bytes, started together."""

    bytes: int
    count: int = 1


COST_SIZES = (4 * KIB, 256 * KIB, 4 * MIB)  # bytes to which a + b M is fitted
SMALL, BURST = 256, 8  # bytes, and how many: one after the other, they take more than all together
COST_PROBES = (*map(Probe, COST_SIZES), Probe(SMALL), Probe(SMALL, BURST))
LEAST_SECONDS = 0.5  # of measuring: a moment of other work on the machine must not decide
FEWEST, MOST_SECONDS = 5, 2.0  # repetitions of a probe, and seconds after which there are no more


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


def time_all_reduces(
    context: RankContext,
    probes: Sequence[Probe],
    repetitions: int,
    backend: str = "gloo",
    device: str = "cpu",
    while_computing: bool = False,
    topology: str = "ring",
    collective: Collective | None = None,
) -> list[float]:
    """Return the seconds of this rank's all-reduces per probe, medians of repetitions.

    A probe ends after so many repetitions, or after `MOST_SECONDS` if `FEWEST` are done: where
    ranks share cores, an all-reduce takes hundreds of milliseconds. ``while_computing`` keeps every
    rank busy with matrix products meanwhile, as a backward pass does: where computation and
    communication share cores, that multiplies the latency. A message then either gets a core at
    once or waits for its turn, so the mean is taken instead.
    """
    on = local_device(context, device)
    with process_group(context, context.store(), context.count, backend):
        how = (while_computing, topology, collective)
        return timed_all_reduces(context, probes, repetitions, on, *how)


def timed_all_reduces(
    context: RankContext,
    probes: Sequence[Probe],
    repetitions: int,
    device: torch.device,
    while_computing: bool = False,
    topology: str = "ring",
    collective: Collective | None = None,
) -> list[float]:
    """Return what `time_all_reduces` does, in the default process group, which is there already."""
    typical = statistics.fmean if while_computing else statistics.median
    found = []
    with closing(reducing(context, topology, collective)) as transport:
        for probe in probes:
            requests = [
                AllReduce(torch.zeros(max(1, probe.bytes // 4), device=device))
                for _ in range(probe.count)
            ]
            with _computing() if while_computing else nullcontext():
                few = min(repetitions, FEWEST)
                seconds = _seconds_of(requests, transport, few + 1, device)[1:]
                affordable = int(MOST_SECONDS / statistics.fmean(seconds))
                agreed = torch.tensor([min(repetitions, affordable)], device=device)
                dist.all_reduce(agreed, dist.ReduceOp.MIN)
                seconds += _seconds_of(requests, transport, int(agreed) - few, device)
                dist.barrier()
            found.append(typical(seconds))
    return found


def _seconds_of(
    requests: Sequence[AllReduce], transport: Transport, repetitions: int, device: torch.device
) -> list[float]:
    """Return the seconds of repetitions of these all-reduces."""
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        started = [transport.start(*each) for each in enumerate(requests)]
        for handle in started:
            handle.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds


def cost_of(seconds: Sequence[float]) -> AlphaBeta:
    """Return the cost of an all-reduce for which these are the seconds of `COST_PROBES`.

    Raises InputError for another number of seconds.

    >>> cost = cost_of([2e-3 + size * 1e-9 for size in COST_SIZES] + [2e-3, 5.5e-3])
    >>> print(cost, f"{cost.occupied_share:.2f}")
    2 ms + M / (8 Gb/s) 0.25
    """
    require(len(seconds) == len(COST_PROBES), f"{len(seconds)} seconds for {len(COST_PROBES)}")
    *large, one, together = seconds
    cost = fit_alpha_beta(COST_SIZES, large)
    each = (together - one) / (BURST - 1) - cost.seconds_per_byte * SMALL
    share = each / cost.latency_seconds if cost.latency_seconds else 1.0
    return replace(cost, occupied_share=min(1.0, max(0.0, share)))


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
