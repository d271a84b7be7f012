"""Swing: halves are swapped with ranks that are near on a ring or torus, to the left and right."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np

from ddlnb.networks.collectives.base import (
    ALL_REDUCE,
    Algorithm,
    Numbers,
    halving_and_doubling,
    misfit,
)
from ddlnb.networks.collectives.halving_doubling import powers_only
from ddlnb.plans.transfers import Collective, Primitive, Transfers


@dataclass(frozen=True)
class Swing(Algorithm):
    """Halving-doubling whose partners in step s are (1 - (-2)^(s+1)) / 3 = 1, -1, 3, -5, ... away.

    Partners are 1/2 to 3/4 as far as those of halving-doubling after the first step, two thirds
    in the limit, which matters where far messages cross many links. On a torus of ``rows`` (by
    default 1, a ring) steps alternate between the dimensions; each dimension and direction
    begins one of as many parallel collectives, for an equal share of the message each. 2 log2 n
    steps, 2 (n - 1) / n M bytes. Needs powers of two.
    Source: De Sensi et al., NSDI 2024 (bandwidth-optimal version).
    """

    rows: int = 1
    columns: int | None = None

    name = "swing"

    def shape(self, workers: int) -> tuple[int, int]:
        """Return rows and columns; as many columns as there must be, if they are not given."""
        return self.rows, workers // max(1, self.rows) if self.columns is None else self.columns

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that the shape does not hold the workers, or that they are no power of two."""
        return misfit(self.name, self.shape(workers), workers) or powers_only(
            self.name, workers, "ring"
        )

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        shape = self.shape(workers)
        starts = [axis for axis, length in enumerate(shape) if length > 1] or [0]
        ways = [(axis, sign) for axis in starts for sign in (1, -1)]
        rows = [_one_way(shape, way, number * workers) for number, way in enumerate(ways)]
        return self.made(primitive, workers, len(ways) * workers, *rows)


def _one_way(shape: tuple[int, int], way: tuple[int, int], first: int) -> Transfers:
    """Return one of the parallel collectives: it begins along an axis, in a direction."""
    axis, sign = way
    ranks = np.arange(shape[0] * shape[1])
    left = {axis: length.bit_length() - 1 for axis, length in enumerate(shape)}
    taken = dict.fromkeys(left, 0)
    partners: list[Numbers] = []
    order = islice(cycle((axis, 1 - axis)), 2 * max(left.values()))
    for now in order:
        if taken[now] < left[now]:
            partners.append(_partners(ranks, shape, now, sign * swing_distance(taken[now])))
            taken[now] += 1
    return halving_and_doubling(ranks, partners, first)


def _partners(ranks: Numbers, shape: tuple[int, int], axis: int, distance: int) -> Numbers:
    """Return everyone's partner: to the right along the axis for even places, else to the left."""
    place = list(np.unravel_index(ranks, shape))
    here = place[axis]
    place[axis] = (here + np.where(here % 2 == 0, distance, -distance)) % shape[axis]
    return np.ravel_multi_index(tuple(place), shape)


def swing_distance(step: int) -> int:
    """Return how far away, and to which side, the partner of an even rank is in a step.

    >>> [swing_distance(step) for step in range(5)]
    [1, -1, 3, -5, 11]
    """
    distance = 1
    for _ in range(step):
        distance = 1 - 2 * distance
    return distance
