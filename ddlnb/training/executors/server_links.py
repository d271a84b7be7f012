"""Links to parameter servers in virtual time: finite, and with a queue in front of each.

A link passes one message at a time, in the order in which workers have them ready, and a message
travels while it passes: one of s seconds on a link that is free from time f on, and of t seconds on
the way, is through at max(now + t, max(f, now) + s). So a lone push takes as long as its travel,
and many at once take as long as the link needs for all of them: the congestion that round-robin
synchronisation promises to avoid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import NamedTuple


class Passage(NamedTuple):
    """The ``seconds`` for which a message occupies the link of this name."""

    link: Hashable
    seconds: float


class Trip(NamedTuple):
    """The ``seconds`` of a push or an answer on idle links, and the links that it passes.

    ``early`` is how many seconds before a message is complete its first part can be on a link, for
    messages that leave layer by layer.
    """

    seconds: float
    passages: tuple[Passage, ...] = ()
    early: float = 0.0


class ServerLinks:
    """The links of a run, and until when each is taken."""

    def __init__(self) -> None:
        self._free: dict[Hashable, float] = defaultdict(float)

    def arrival(self, trip: Trip, now: float) -> float:
        """Return when a message that is complete now is through, and take its links until then."""
        end = now + trip.seconds
        for link, seconds in trip.passages:
            through = max(self._free[link], now - trip.early) + seconds
            self._free[link] = through
            end = max(end, through)
        return end
