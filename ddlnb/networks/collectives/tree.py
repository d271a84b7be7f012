"""Binomial tree: whole messages go up to rank 0, and the sum goes down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import (
    ALL_REDUCE,
    Algorithm,
    after,
    joined,
    powers,
    reversed_steps,
)
from ddlnb.plans.transfers import Collective, Primitive, Transfers, transfers


@dataclass(frozen=True)
class Tree(Algorithm):
    """Reduce and broadcast along a binomial tree, or broadcast alone.

    All-reduce: 2 ceil(log2 n) steps of M bytes; broadcast: half of them. The root receives, and
    later sends, the message in every step. Source: survey, section 3.2 (MPI's way).
    """

    name = "tree"
    primitives = (ALL_REDUCE, "broadcast")

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        levels, up = len(powers(workers)), up_binomial(workers)
        down = reversed_steps(up, levels)
        rows = (down,) if primitive == "broadcast" else (up, after(levels, down))
        return self.made(primitive, workers, 1, *rows)


def up_binomial(workers: int) -> Transfers:
    """Return the rows that reduce one part to rank 0: those 1 away first, then those 2 away, ..."""
    rows = []
    for step, distance in enumerate(powers(workers)):
        parents = np.arange(0, workers - distance, 2 * distance)
        rows.append(transfers(step, parents + distance, parents, 0, 1, True))
    return joined(*rows)
