"""Random delays: how much later than planned a worker begins each of its iterations.

Workers that are not alike: slower GPUs, slower links, random delays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, require, require_known, require_whole
from ddlnb.units import show_seconds

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
        require_known("distribution of delays", self.distribution, DISTRIBUTIONS)
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


Factors = Mapping[int, float] | Sequence[float]
BLOCK = 256  # iterations whose delays are drawn at once
Named = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Heterogeneity:
    """How workers differ from those that the effects of a cluster describe.

    ``compute`` pairs ranks with the seconds of their computation over those of the others, ``link``
    pairs nodes with the seconds per byte of their link to the network over those of the others;
    who is not named has factor 1. ``delay`` comes before every iteration of every worker. What has
    no effect is left out, so that workers who are alike compare equal to `HOMOGENEOUS`. Raises
    InputError for factors that are not above 0, and for ranks and nodes that are none.

    >>> Heterogeneity(compute=((1, 2.0), (0, 1.0)))
    Heterogeneity(compute=((1, 2.0),), link=(), delay=None)
    """

    compute: Named = ()
    link: Named = ()
    delay: Delay | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute", _sound("compute", "worker", self.compute))
        object.__setattr__(self, "link", _sound("link", "node", self.link))
        require(
            self.delay is None or isinstance(self.delay, Delay),
            f"delay {self.delay!r} is no Delay; give one, such as Delay('exponential', 0.02)",
        )
        if self.delay is not None and self.delay.mean == 0:
            object.__setattr__(self, "delay", None)

    def compute_factor(self, rank: int) -> float:
        """Return the seconds that this worker computes over those of the cluster's effects."""
        return dict(self.compute).get(rank, 1.0)

    def link_factor(self, node: int) -> float:
        """Return the seconds per byte of this node's link over those of the cluster's effects."""
        return dict(self.link).get(node, 1.0)

    def delay_seconds(self, rank: int, iteration: int) -> float:
        """Return the seconds by which this worker begins this iteration late."""
        if self.delay is None:
            return 0.0
        count = BLOCK * (1 + iteration // BLOCK)
        return float(self.delay.seconds(rank, count)[iteration])

    def slowest_link(self, nodes: int) -> float:
        """Return the largest link factor of so many nodes: the pace of a collective of them all."""
        factors = [factor for node, factor in self.link if node < nodes]
        return max(factors if len(factors) == nodes else [1.0, *factors])

    def __str__(self) -> str:
        """Return in words who differs, empty if all are alike."""
        said = [f"worker {rank} computes {factor:g} times as long" for rank, factor in self.compute]
        said += [
            f"the link of node {node} takes {factor:g} times as long" for node, factor in self.link
        ]
        if self.delay is not None:
            mean = show_seconds(self.delay.mean)
            said.append(f"{self.delay.distribution} delays of {mean} on average")
        return "; ".join(said)

    def among(self, workers: int, nodes: int) -> str:
        """Return in words who differs of the first workers and nodes, empty if all are alike."""
        used = replace(
            self,
            compute=tuple((rank, factor) for rank, factor in self.compute if rank < workers),
            link=tuple((node, factor) for node, factor in self.link if node < nodes),
        )
        return str(used)

    def require_within(self, workers: int, nodes: int, name: str) -> None:
        """Raise InputError for a worker or a node that the cluster of this name does not have."""
        for what, named, count in (
            ("worker", self.compute, workers),
            ("node", self.link, nodes),
        ):
            beyond = [number for number, _ in named if number >= count]
            require(
                not beyond,
                f"{what} {beyond[:1] and beyond[0]} is slowed down, and cluster {name!r} has "
                f"{what}s 0 to {count - 1}; name one of these",
            )


def named(what: str, of: str, factors: Factors, count: int) -> Named:
    """Return factors as pairs of a number and its factor.

    ``factors`` are given for some by number, or for all ``count`` in order. Raises InputError for
    a list of another length.
    """
    if isinstance(factors, Mapping):
        return tuple(factors.items())
    factors = factors.tolist() if hasattr(factors, "tolist") else factors
    if factors == ():
        return ()
    require(
        not isinstance(factors, str) and isinstance(factors, Sequence),
        f"{what} {factors!r} must be factors by {of}, such as {{0: 2.0}}, or one for each {of}",
    )
    require(
        len(factors) == count,
        f"{what} has {len(factors)} factors for {count} {of}s; give one for each, or name those "
        f"that differ, as in {{0: 2.0}}",
    )
    return tuple(enumerate(factors))


def _sound(what: str, of: str, pairs: Named) -> Named:
    found: dict[int, float] = {}
    for number, factor in pairs:
        require_whole(0, **{of: number})
        if number in found:
            raise InputError(f"{what} names {of} {number} twice; give it one factor")
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        require(
            is_number and 0 < factor < float("inf"),
            f"{what} factor {factor!r} of {of} {number} must be a number above 0: 2 is twice as "
            f"slow",
        )
        found[number] = float(factor)
    return tuple(sorted((number, factor) for number, factor in found.items() if factor != 1.0))


HOMOGENEOUS = Heterogeneity()
