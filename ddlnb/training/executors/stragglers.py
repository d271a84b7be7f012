"""Stragglers: laws of how long gradients take, which make workers wait for one another.

A law gives the seconds of a gradient from rank, step and number of workers, for `Clock.compute`.
Random seconds depend on seed, rank and step alone, so that the same worker is late at the same step
whatever the method and the order of events.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ddlnb.choices import parsed, shown
from ddlnb.errors import require, require_whole


class Straggler(ABC):
    """A law of how long gradients take."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, rank: int, step: int, workers: int) -> float:
        """Return the seconds of a gradient. Raises InputError if the law names a rank beyond."""

    def drawn_from(self, seed: int) -> Straggler:
        """Return the same law with this seed, if it draws random numbers."""
        return self

    def __str__(self) -> str:
        return shown(self.name, self)


@dataclass(frozen=True)
class Constant(Straggler):
    """Every gradient takes ``seconds``."""

    seconds: float = 1.0

    name = "constant"

    def __post_init__(self) -> None:
        _require_seconds(self.seconds)

    def __call__(self, rank: int, step: int, workers: int) -> float:
        return self.seconds


@dataclass(frozen=True)
class OneSlow(Straggler):
    """The worker of rank ``rank`` takes ``factor`` times as long as the others."""

    factor: float = 2.0
    rank: int = 0
    seconds: float = 1.0

    name = "one-slow"

    def __post_init__(self) -> None:
        _require_seconds(self.seconds)
        _require_factor(self.factor)
        require_whole(0, rank=self.rank)

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

    def __post_init__(self) -> None:
        _require_seconds(self.seconds)
        _require_factor(self.factor)
        require_whole(period=self.period)

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

    def __post_init__(self) -> None:
        _require_seconds(self.seconds)
        require(self.spread >= 0, f"spread {self.spread!r} must not be negative")

    def drawn_from(self, seed: int) -> Straggler:
        return replace(self, seed=seed)

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

    def __post_init__(self) -> None:
        _require_seconds(self.seconds)
        require(self.delay >= 0, f"delay {self.delay!r} s must not be negative")

    def drawn_from(self, seed: int) -> Straggler:
        return replace(self, seed=seed)

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


def _require_seconds(seconds: float) -> None:
    require(seconds > 0, f"seconds {seconds!r} of a gradient must be above 0")


def _require_factor(factor: float) -> None:
    require(factor > 0, f"factor {factor!r} of a slow worker must be above 0")
