"""Virtual time in lockstep: what gradients take, and what messages take on links that they share.

Stragglers are laws of how long gradients take, which make workers wait for one another. A law gives
the seconds of a gradient from rank, step and number of workers. Random seconds depend on seed, rank
and step alone, so that the same worker is late at the same step whatever the method and the order
of events.

Links between workers share their bandwidth fairly, a fluid model: n messages under way on a link
get 1/n of its bytes per second each. All of them have been given the same number of bytes since the
start, so that the order in which they arrive is known when they leave.

Links to parameter servers are finite, with a queue in front of each. A link passes one message at a
time, in the order in which workers have them ready, and a message travels while it passes: one of s
seconds on a link that is free from time f on, and of t seconds on the way, is through at
max(now + t, max(f, now) + s). So a lone push takes as long as its travel, and many at once take as
long as the link needs for all of them: the congestion that round-robin synchronisation promises to
avoid.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ddlnb.errors import require, require_whole
from ddlnb.plans.requests import PushPull
from ddlnb.registry import Choice, parsed


class Straggler(Choice):
    """A law of how long gradients take."""

    def __post_init__(self) -> None:
        """Raise InputError for numbers out of range. All laws give them the same names."""
        for name, value in vars(self).items():
            if name in ("seconds", "factor"):
                what = "of a gradient" if name == "seconds" else "of a slow worker"
                require(value > 0, f"{name} {value!r} {what} must be above 0")
            elif name in ("spread", "delay"):
                require(value >= 0, f"{name} {value!r} must not be negative")
            elif name in ("rank", "period"):
                require_whole(int(name == "period"), **{name: value})

    @abstractmethod
    def __call__(self, rank: int, step: int, workers: int) -> float:
        """Return the seconds of a gradient. Raises InputError if the law names a rank beyond."""

    def drawn_from(self, seed: int) -> Straggler:
        """Return the same law with this seed, if it draws random numbers."""
        return replace(self, seed=seed) if "seed" in vars(self) else self  # type: ignore[type-var]


@dataclass(frozen=True)
class Constant(Straggler):
    """Every gradient takes ``seconds``."""

    seconds: float = 1.0

    name = "constant"

    def __call__(self, rank: int, step: int, workers: int) -> float:
        return self.seconds


@dataclass(frozen=True)
class OneSlow(Straggler):
    """The worker of rank ``rank`` takes ``factor`` times as long as the others."""

    factor: float = 2.0
    rank: int = 0
    seconds: float = 1.0

    name = "one-slow"

    def __call__(self, rank: int, step: int, workers: int) -> float:
        require(
            self.rank < workers,
            f"{self} slows a worker that is not there: {workers} have ranks 0 to {workers - 1}",
        )
        return self.seconds * (self.factor if rank == self.rank else 1.0)


@dataclass(frozen=True)
class Alternating(Straggler):
    """One worker takes ``factor`` times as long; after ``period`` steps it is the next one."""

    factor: float = 2.0
    period: int = 5
    seconds: float = 1.0

    name = "alternating"

    def __call__(self, rank: int, step: int, workers: int) -> float:
        slow = rank == step // self.period % workers
        return self.seconds * (self.factor if slow else 1.0)


@dataclass(frozen=True)
class LogNormal(Straggler):
    """Log-normal with mean ``seconds``; ``spread`` is the standard deviation of the logarithm."""

    spread: float = 0.3
    seed: int = 0
    seconds: float = 1.0

    name = "log-normal"

    def __call__(self, rank: int, step: int, workers: int) -> float:
        exponent = self.spread * _draw(self.seed, rank, step).standard_normal()
        return self.seconds * math.exp(exponent - self.spread**2 / 2)


@dataclass(frozen=True)
class ExponentialTail(Straggler):
    """``seconds`` plus an exponential delay with mean ``delay``."""

    delay: float = 0.5
    seed: int = 0
    seconds: float = 1.0

    name = "exponential"

    def __call__(self, rank: int, step: int, workers: int) -> float:
        return self.seconds + self.delay * _draw(self.seed, rank, step).standard_exponential()


STRAGGLERS: dict[str, type[Straggler]] = {
    kind.name: kind for kind in (Constant, OneSlow, Alternating, LogNormal, ExponentialTail)
}


def get_straggler(text: str | Straggler) -> Straggler:
    """Return the law that a text names. Raises UnknownName and InputError.

    >>> [get_straggler("one-slow(4)")(rank, 7, workers=2) for rank in range(2)]
    [4.0, 1.0]
    """
    return text if isinstance(text, Straggler) else parsed("straggler", text, STRAGGLERS)


def _draw(seed: int, rank: int, step: int) -> np.random.Generator:
    return np.random.default_rng((seed, rank, step))


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


PUSH, PULL, HELD_PULL = "push", "pull", "held pull"  # an answer at once, or one after waiting


def _no_time(request: type, bytes_: int, workers: int) -> float:
    return 0.0


def _link_of_sender(sender: int, receiver: int) -> Link:
    return Link(sender)


@dataclass(frozen=True)
class Clock:
    """Seconds of everything that takes time in lockstep.

    ``compute(rank, step, workers)`` is the time of a gradient, ``communicate(request type, bytes,
    workers)`` that of a request; bytes are those of the tensor of an AllReduce and of one payload
    of an AllGather. Messages take what their ``link(sender, receiver)`` takes. A PushPull is asked
    for twice, for the bytes up and for those down: ``trip(rank, way, bytes, workers)`` says what
    they take and which links they pass, where way is PUSH, PULL for an answer that comes at once,
    or HELD_PULL for one that its worker was made to wait for; without it they take what
    ``communicate`` says, and share no link. By default a gradient takes a second and communication
    no time.
    """

    compute: Callable[[int, int, int], float] = Constant()
    communicate: Callable[[type, int, int], float] = _no_time
    link: Callable[[int, int], Link] = _link_of_sender
    trip: Callable[[int, str, int, int], Trip] | None = None

    def trip_of(self, rank: int, way: str, bytes_: int, workers: int) -> Trip:
        """Return what a push of this worker, or the answer to it, takes."""
        if self.trip is None:
            return Trip(self.communicate(PushPull, bytes_, workers))
        return self.trip(rank, way, bytes_, workers)
