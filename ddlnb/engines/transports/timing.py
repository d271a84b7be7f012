"""The seconds of collectives on real ranks, in alternating runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddlnb.engines.process_group import process_group
from ddlnb.engines.transports.course import Course
from ddlnb.engines.transports.streams import Streams
from ddlnb.launch.rank import RankContext
from ddlnb.networks.collectives.catalogue import get_collective

BYTES_PER_ELEMENT = 4


def time_collectives(
    context: RankContext, names: Sequence[str], sizes: Sequence[int], repetitions: int
) -> dict[tuple[str, int, int], float]:
    """Return this rank's seconds by all-reduce, bytes and repetition, each after a barrier.

    Every repetition runs all collectives and sizes once, so that a drift of the machine hits all
    alike. The first round is not counted: in it the windows of connections open.
    """
    found = {}
    with (
        process_group(context, context.store(), context.count),
        Streams(context.host, context.timeout_seconds) as streams,
    ):
        courses = {
            name: Course(get_collective(name, context.count), context.rank) for name in names
        }
        for repetition in range(-1, repetitions):
            for size in sizes:
                for name, course in courses.items():
                    tensor = torch.ones(max(1, size // BYTES_PER_ELEMENT))
                    dist.barrier()
                    start = time.perf_counter()
                    streams.carry(course, 0, tensor).wait()
                    found[name, size, repetition] = time.perf_counter() - start
    return {key: seconds for key, seconds in found.items() if key[2] >= 0}
