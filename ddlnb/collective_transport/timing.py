"""What ranks measure of collectives: seconds by collective and size, in alternating rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddlnb.collective_transport.transport import CollectiveTransport, schedule_named
from ddlnb.launch.rank import RankContext, process_group


def time_collectives(
    context: RankContext, names: Sequence[str], sizes: Sequence[int], repetitions: int
) -> dict[tuple[str, int, int], float]:
    """Return this rank's seconds by all-reduce, bytes and repetition, each after a barrier.

    "" is the backend's own. Every repetition runs all collectives and sizes once, so that a drift
    of the machine hits all alike. The first round is not counted: in it the windows of connections
    open.
    """
    found = {}
    with (
        process_group(context, context.store(), context.count),
        CollectiveTransport(context.host, context.timeout_seconds) as transport,
    ):
        schedules = {name: schedule_named(name) if name else None for name in names}
        for repetition in range(-1, repetitions):
            for size in sizes:
                for name, schedule in schedules.items():
                    tensor = torch.ones(max(1, size // 4))
                    dist.barrier()
                    start = time.perf_counter()
                    if schedule is None:
                        dist.all_reduce(tensor)
                    else:
                        transport.carry(schedule, 0, tensor).wait()
                    found[name, size, repetition] = time.perf_counter() - start
    return {key: seconds for key, seconds in found.items() if key[2] >= 0}
