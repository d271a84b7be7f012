"""Random delays: how much later than planned a worker begins each of its iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import UnknownName, require, require_whole

Numbers = NDArray[np.floating[Any]]


class Distribution(NamedTuple):
    """A distribution of delays with mean 1: how to draw so many, and what its shape means.

    ``shape`` is the default one, None if the distribution has none; it must be above ``least``.
    """

    draw: Callable[[np.random.Generator, int, float], Numbers]
    shape: float | None = None
    least: float = 0.0
    meaning: str = ""


def _exponential(generator: np.random.Generator, count: int, shape: float) -> Numbers:
    return generator.standard_exponential(count)


def _log_normal(generator: np.random.Generator, count: int, shape: float) -> Numbers:
    drawn: Numbers = np.exp(shape * generator.standard_normal(count) - shape**2 / 2)
    return drawn


def _pareto(generator: np.random.Generator, count: int, shape: float) -> Numbers:
    return generator.pareto(shape, count) * (shape - 1)


DISTRIBUTIONS = {
    "exponential": Distribution(_exponential),
    "log-normal": Distribution(_log_normal, 1.0, 0.0, "standard deviation of the logarithm"),
    "pareto": Distribution(_pareto, 2.5, 1.0, "index of the tail"),
}


@dataclass(frozen=True)
class Delay:
    """A random delay of every worker before every iteration, ``mean`` seconds long on average.

    ``distribution`` is exponential, log-normal (``shape`` is the standard deviation of the
    logarithm, by default 1) or pareto (of the second kind, from zero on; ``shape`` is the index of
    its tail, by default 2.5). What a worker draws depends on seed, rank and iteration alone, so
    that the same worker is late in the same iteration whatever the method. Raises InputError for a
    negative mean or a shape that the distribution cannot have, UnknownName for another
    distribution.

    >>> Delay("exponential", 0.02).seconds(rank=1, count=3).round(3).tolist()
    [0.049, 0.018, 0.014]
    """

    distribution: str
    mean: float
    shape: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.distribution not in DISTRIBUTIONS:
            raise UnknownName("distribution of delays", self.distribution, DISTRIBUTIONS)
        require_whole(0, seed=self.seed)
        require(
            isinstance(self.mean, int | float) and 0 <= self.mean < float("inf"),
            f"mean {self.mean!r} of a delay must be a number of seconds, not negative",
        )
        kind = DISTRIBUTIONS[self.distribution]
        if kind.shape is None:
            require(
                self.shape is None,
                f"shape {self.shape!r}: {self.distribution} delays have none; leave it out",
            )
        elif self.shape is None:
            object.__setattr__(self, "shape", kind.shape)
        else:
            require(
                isinstance(self.shape, int | float) and kind.least < self.shape < float("inf"),
                f"shape {self.shape!r} of {self.distribution} delays, the {kind.meaning}, must be "
                f"above {kind.least:g}",
            )

    def seconds(self, rank: int, count: int) -> Numbers:
        """Return the delays of a worker in its first iterations; longer draws begin alike."""
        return _drawn(self, rank, count)


@lru_cache(maxsize=4096)
def _drawn(delay: Delay, rank: int, count: int) -> Numbers:
    generator = np.random.default_rng((delay.seed, rank))
    drawn = DISTRIBUTIONS[delay.distribution].draw(generator, count, delay.shape or 0.0)
    drawn = delay.mean * drawn
    drawn.setflags(write=False)
    return drawn
