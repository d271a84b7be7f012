"""Pairs of ranks 1, 2, 4, ... away swap halves, quarters, eighths and back, or whole messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import (
    ALL_REDUCE,
    Algorithm,
    after,
    halving_and_doubling,
    is_power_of_two,
    paired,
    powers,
)
from ddlnb.plans.transfers import Collective, Primitive, transfers


@dataclass(frozen=True)
class HalvingDoubling(Algorithm):
    """2 log2 n steps, 2 (n - 1) / n M bytes: as few bytes as a ring in far fewer steps.

    The largest messages go to the nearest ranks. Unless n is a power of two, workers beyond one
    lean on a neighbour: two more steps of M bytes. Source: Rabenseifner 2004; Thakur, Rabenseifner
    and Gropp 2005, section 4.
    """

    name = "halving-doubling"

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        parts = 1 << (workers.bit_length() - 1)
        pairs = paired(workers, parts)
        index = np.arange(parts)
        rows = halving_and_doubling(pairs.ranks, [index ^ distance for distance in powers(parts)])
        result = after(pairs.lead + 2 * pairs.levels, pairs.result)
        return self.made(primitive, workers, parts, pairs.before, after(pairs.lead, rows), result)


@dataclass(frozen=True)
class RecursiveHalving(Algorithm):
    """The first half alone, farthest ranks first, so that worker r ends with part r.

    log2 n steps and (n - 1) / n M bytes; for a power of two of workers. Source: Thakur,
    Rabenseifner and Gropp 2005, section 4 (recursive halving; recursive doubling for all-gather).
    """

    name = "recursive-halving"
    primitives = ("reduce-scatter", "all-gather")

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that the number of workers must be a power of two."""
        return powers_only(self.name, workers, "ring")

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        index = np.arange(workers)
        distances = powers(workers)
        rows = halving_and_doubling(index, [index ^ distance for distance in reversed(distances)])
        first = rows["step"] < len(distances)
        chosen = rows[first] if primitive == "reduce-scatter" else rows[~first]
        lead = 0 if primitive == "reduce-scatter" else len(distances)
        return self.made(primitive, workers, workers, after(-lead, chosen))


def powers_only(name: str, workers: int, instead: str) -> str:
    """Return why an algorithm for powers of two refuses other numbers of workers."""
    if is_power_of_two(workers):
        return ""
    below = 1 << (workers.bit_length() - 1)
    return (
        f"{name} needs a power of two of workers, and {workers} is none; "
        f"take {below} or {2 * below} workers, or {instead}"
    )


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
