"""Links that carry messages between workers in virtual time, and share their bandwidth fairly.

A fluid model: n messages under way on a link get 1/n of its bytes per second each. All of them have
been given the same number of bytes since the start, so that the order in which they arrive is known
when they leave.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

Event = Callable[[float], None]
At = Callable[[float, Event], None]  # calls the event at that time


class Link(NamedTuple):
    """What carries a message from one worker to another.

    Messages on links of one ``name`` share its bandwidth. Each message occupies its sender for
    ``latency`` seconds, one after the other.
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
    """The links of a run. ``at`` is the executor's way to schedule an event."""

    def __init__(self, at: At):
        self._at = at
        self._shared: dict[Hashable, _Shared] = {}
        self._serial = 0

    def carry(self, link: Link, size: int, arrived: Event, now: float) -> None:
        """Call ``arrived`` when the ``size`` bytes that leave now have arrived."""
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
