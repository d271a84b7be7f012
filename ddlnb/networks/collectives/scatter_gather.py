"""Broadcast of long messages: scatter the parts along a tree, then gather them round a ring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import Algorithm, after, powers, ring_all_gather
from ddlnb.plans.transfers import Collective, Primitive, transfers


@dataclass(frozen=True)
class ScatterGather(Algorithm):
    """ceil(log2 n) + n - 1 steps; 2 (n - 1) / n M bytes from rank 0, where a tree takes log2 n M.

    Source: Thakur, Rabenseifner and Gropp 2005, section 3 (van de Geijn's broadcast).
    """

    name = "scatter-gather"
    primitives = ("broadcast",)

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = "broadcast"
    ) -> Collective:
        """Return the transfers: a rank hands on the parts of those that are behind it."""
        rows = []
        for step, distance in enumerate(reversed(powers(workers))):
            source = np.arange(0, workers - distance, 2 * distance)
            target = source + distance
            stop = np.minimum(target + distance, workers)
            rows.append(transfers(step, source, target, target, stop, False))
        ring, bounds = np.arange(workers)[None, :], np.arange(workers + 1)[None, :]
        gather = after(len(powers(workers)), ring_all_gather(ring, bounds))
        return self.made(primitive, workers, workers, *rows, gather)
