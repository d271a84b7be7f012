"""Round trips of messages over a channel, timed by two ranks."""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass

from ddlnb.launch.rank import RankContext
from ddlnb.studies.sec3_3_1_protocols.channels import Channel, connect

LEAST_TRIPS = 2


@dataclass(frozen=True)
class Trips:
    """Round trips of one size as one rank saw them; seconds are per message, half a trip."""

    seconds: float  # the median
    mean_seconds: float
    cpu_seconds: float  # mean, of this rank
    count: int


def time_trips(
    context: RankContext, kind: str, sizes: tuple[int, ...], trips: int, seconds: float
) -> dict[int, Trips]:
    """Time round trips of every size over a channel of this kind, after one that warms up.

    Rank 0 asks and decides when it is enough; rank 1 sends every message back. The first and the
    last byte are the number of the trip, 0 in the last one. Raises ConnectionError if one arrives
    torn.
    """
    channel = connect(context, kind, max(sizes))
    try:
        return {size: _trips_of(channel, context.rank, size, trips, seconds) for size in sizes}
    finally:
        channel.close()


def _trips_of(channel: Channel, rank: int, size: int, trips: int, seconds: float) -> Trips:
    message = memoryview(bytearray(size))
    lasted: list[float] = []
    number, until, busy = 1, 0.0, 0.0
    while number:
        start = time.perf_counter()
        if rank == 0:
            number = _next(len(lasted), trips, start > until)
            message[0] = message[-1] = number
            channel.send(message)
            _check(channel.receive(size), number)
        else:
            arrived = channel.receive(size)
            number = arrived[0]
            _check(arrived, number)
            message[0] = message[-1] = number
            channel.send(message)
        lasted.append((time.perf_counter() - start) / 2)
        if len(lasted) == 1:
            until, busy = time.perf_counter() + seconds, _cpu_seconds()
    counted = len(lasted) - 1
    cpu = (_cpu_seconds() - busy) / 2 / counted
    return Trips(statistics.median(lasted[1:]), statistics.fmean(lasted[1:]), cpu, counted)


def _next(done: int, trips: int, is_late: bool) -> int:
    """Return the number of the next trip, from 1 to 255, or 0 if it is to be the last."""
    is_last = done >= trips or (is_late and done >= LEAST_TRIPS)
    return 0 if is_last else 1 + done % 255


def _check(arrived: memoryview, number: int) -> None:
    if arrived[0] != number or arrived[-1] != number:
        raise ConnectionError(f"message {number} arrived as {arrived[0]} ... {arrived[-1]}")


def _cpu_seconds() -> float:
    """Return the CPU seconds of this thread, in the program and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime
