"""Virtual time: what a gradient and a message cost in lockstep execution."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

# Messages on links that several share, each of which gets as much of the bandwidth as the
# others. A fluid model: n messages under way on a link get 1/n of its bytes per second each.
# What every one of them was given since the start is the same number for all, so that one knows
# the order in which they arrive when they leave.
Event = Callable[[float], None]
At = Callable[[float, Event], None]  # calls the event at that time


class Link(NamedTuple):
    """What carries a message from one worker to another.

    Messages on links of one ``name`` share its bandwidth. ``latency`` are seconds of the sender for
    every message, one after the other.
    """

    name: Hashable
    latency: float = 0.0
    seconds_per_byte: float = 0.0


@dataclass
class _Shared:
    """Bytes that each message was ``given`` until ``now``, and those at which each has arrived."""

    given: float = 0.0
    now: float = 0.0
    ends: list[tuple[float, int, Event]] = field(default_factory=list)  # a heap
    changes: int = 0


class Links:
    """The links of a run. ``at`` is the executor's."""

    def __init__(self, at: At):
        self._at = at
        self._shared: dict[Hashable, _Shared] = {}
        self._serial = 0

    def carry(self, link: Link, size: int, arrived: Event, now: float) -> None:
        """Call ``arrived`` when so many bytes that leave now are there."""
        if not link.seconds_per_byte:
            arrived(now)
            return
        shared = self._shared.setdefault(link.name, _Shared())
        if shared.ends:
            share = link.seconds_per_byte * len(shared.ends)
            shared.given += (now - shared.now) / share
        shared.now = now
        self._serial += 1
        heapq.heappush(shared.ends, (shared.given + size, self._serial, arrived))
        self._await_next(link, shared)

    def _await_next(self, link: Link, shared: _Shared) -> None:
        shared.changes += 1
        left = max(0.0, shared.ends[0][0] - shared.given)
        when = shared.now + left * link.seconds_per_byte * len(shared.ends)
        self._at(when, partial(self._next_arrives, link, shared, shared.changes))

    def _next_arrives(self, link: Link, shared: _Shared, change: int, now: float) -> None:
        if change != shared.changes:  # another message has left since
            return
        shared.given, _, arrived = heapq.heappop(shared.ends)
        shared.now = now
        if shared.ends:
            self._await_next(link, shared)
        arrived(now)


def _one_second(rank: int, step: int, workers: int) -> float:
    return 1.0


def _nothing(kind: type, bytes_: int, workers: int) -> float:
    return 0.0


def _of_the_sender(sender: int, receiver: int) -> Link:
    return Link(sender)


@dataclass(frozen=True)
class Clock:
    """Seconds of computation by (rank, step, workers), of communication by (request type, bytes,
    workers).

    Bytes are those of the tensor of an AllReduce and of one payload of an AllGather. A PushPull is
    asked for twice: for the bytes up and for those down. Messages take what their links do, by
    (sender, receiver). By default a gradient takes a second and communication no time.
    """

    compute: Callable[[int, int, int], float] = _one_second
    communicate: Callable[[type, int, int], float] = _nothing
    link: Callable[[int, int], Link] = _of_the_sender
