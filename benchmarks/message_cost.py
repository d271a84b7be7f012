"""What one small all-reduce costs every rank: seconds, and processor time of threads and kernel.

    python -m benchmarks.message_cost [--workers 4] [--bytes 256] [--count 600]

Three ways take turns: gloo alone, the engine's scheduler on gloo, and the scheduler on the mesh of
`topology="mesh"`. Beside them stands the scheduler with a network that answers at once: that much
of a message is ours.
"""

import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command import command
from ddlnb.files import machine
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import get_method
from ddlnb.plans.plan import Plan
from ddlnb.workloads.workload import Gradient, Layer, Workload

WAYS = ("gloo", "scheduler on gloo", "scheduler on mesh", "scheduler alone")


class Cost(NamedTuple):
    """Of one message on one rank: seconds, processor seconds, those in the kernel, wake-ups."""

    wall: float
    processor: float
    kernel: float
    waits: float


class Instant:
    """A network that answers at once."""

    bytes_sent = 0.0

    def start(self, message: int, request: Any, released: Any = None, answered: Any = None) -> Any:
        """Return a handle that has the answer."""
        return _Answer(request.tensor)

    def close(self) -> None:
        """Do nothing: nothing was opened."""


class _Answer:
    def __init__(self, tensor: Any):
        self._tensor = tensor

    def wait(self) -> Any:
        return self._tensor


def plan_of(count: int, size: int) -> Plan:
    """Return the plan of WFBP for gradients of so many bytes, each of a layer of its own."""
    names = [f"layer{number}" for number in range(count)]
    workload = Workload(
        "messages",
        1,
        tuple(Layer(name, forward_seconds=1e-6) for name in names),
        tuple(
            Gradient(f"{name}.weight", name, max(1, size // 4), backward_seconds=1e-6)
            for name in reversed(names)
        ),
        "made up: equal layers",
    )
    return get_method("WFBP-A2A").plan(workload)


def costs(context: RankContext, size: int, count: int, rounds: int) -> list[dict[str, Cost]]:
    """Return the mean cost of a message in a burst, by the way it takes, round by round.

    Every round begins with another way.
    """
    import torch
    import torch.distributed as dist

    from ddlnb.engines.torch_engine import transport_for
    from ddlnb.launch.rank import process_group

    plan = plan_of(count, size)
    with process_group(context, context.store(), context.count):
        tensors = [torch.zeros(max(1, size // 4)) for _ in range(count)]

        def alone() -> None:
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        gloo, mesh = (transport_for(context, None, plan, name) for name in ("ring", "mesh"))
        bursts = (alone, *(_scheduler(plan, one) for one in (gloo, mesh, Instant())))
        ways = list(zip(WAYS, bursts, strict=True))
        for _, burst in ways:
            burst()
        found = [
            {name: _timed(burst, count) for name, burst in (*ways[at:], *ways[:at])}
            for at in (one % len(ways) for one in range(rounds))
        ]
        dist.barrier()
        mesh.close()
    return found


def _scheduler(plan: Plan, transport: Any) -> Callable[[], None]:
    """Return a burst of the plan's messages, as an iteration of training makes them."""
    import torch

    from ddlnb.engines.scheduler import GradientMemory, MessageScheduler

    scheduler = MessageScheduler(plan, GradientMemory(plan, torch.float32), transport)

    def burst() -> None:
        scheduler.begin()
        for position in range(len(plan.gradients)):
            scheduler.gradient_ready(position)
        scheduler.backward_done()
        for message in range(len(plan.messages)):
            scheduler.wait(message)

    return burst


def _timed(burst: Callable[[], None], count: int) -> Cost:
    import torch.distributed as dist

    dist.barrier()
    start, used = time.perf_counter(), _used()
    burst()
    now = _used()
    wall = time.perf_counter() - start
    user, system, waits = (after - before for after, before in zip(now, used, strict=True))
    return Cost(*(value / count for value in (wall, user + system, system, waits)))


def _used() -> tuple[float, float, float]:
    """Return user and system seconds of all threads, and how often one of them had to wait."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime, float(usage.ru_nvcsw)


def main(*, workers: int = 4, bytes: int = 256, count: int = 600, repetitions: int = 5) -> None:
    """Print the costs of each way, medians over rounds and ranks."""
    with Ranks(workers) as ranks:
        rank_by_rank = ranks.run(costs, bytes, count, repetitions)
    found = [one for rounds in rank_by_rank for one in rounds]
    print(f"{bytes} bytes among {workers} workers on {machine()}, of one message:")
    for way in WAYS:
        wall, processor, kernel, waits = np.median([one[way] for one in found], axis=0)
        print(
            f"{way:16} {1e3 * wall:6.3f} ms, {1e3 * processor:6.3f} ms of processor time on every "
            f"rank ({1e3 * kernel:.3f} in the kernel), {waits:.1f} waits"
        )


if __name__ == "__main__":
    command(main)
