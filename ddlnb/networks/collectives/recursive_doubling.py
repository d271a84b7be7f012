"""Recursive doubling: swap whole messages with ranks 1, 2, 4, ... away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm
from ddlnb.networks.collectives.phases import after, paired, powers
from ddlnb.plans.transfers import Collective, Primitive, transfers


@dataclass(frozen=True)
class RecursiveDoubling(Algorithm):
    """log2 n steps of M bytes: the fewest steps, for messages that are all latency.

    Unless n is a power of two, workers beyond one lean on a neighbour: two more steps, and one more
    message from the neighbour. Source: Thakur, Rabenseifner and Gropp 2005, section 4.
    """

    name = "recursive-doubling"

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        pairs = paired(workers, 1)
        ranks, index = pairs.ranks, np.arange(len(pairs.ranks))
        rows = [
            transfers(pairs.lead + step, ranks, ranks[index ^ distance], 0, 1, True)
            for step, distance in enumerate(powers(len(ranks)))
        ]
        result = after(pairs.lead + pairs.levels, pairs.result)
        return self.made(primitive, workers, 1, pairs.before, *rows, result)
