"""BlueConnect: reduce-scatter dimension after dimension, all-gather the other way round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm, misfit, over_dimensions
from ddlnb.plans.transfers import Collective, Primitive


@dataclass(frozen=True)
class BlueConnect(Algorithm):
    """Rings along every dimension of an array of workers, the last one first.

    ``dimensions`` are lengths, that of neighbouring ranks last: ``blueconnect((4, 2, 8))`` for 8
    GPUs in a node, 2 nodes in a rack and 4 racks. Takes 2 (d - 1) steps for every dimension d, and
    2 (n - 1) / n M bytes, most of them along the last dimension. By default nodes and the workers
    in them, which makes it `Hierarchical`. Source: Cho et al. 2019.
    """

    dimensions: tuple[int, ...] = ()

    name = "blueconnect"
    knows_nodes = True

    def shape(self, workers: int, per_node: int = 1) -> tuple[int, ...]:
        """Return the lengths of the dimensions."""
        return self.dimensions or (workers // per_node, per_node)

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that the dimensions do not hold the workers, if they do not."""
        return misfit(self.name, self.shape(workers, per_node), workers)

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        shape = self.shape(workers, per_node)
        ranks, inwards = np.arange(workers).reshape(shape), range(len(shape))
        rows = over_dimensions(ranks, tuple(reversed(inwards)), 0, workers)
        return self.made(primitive, workers, workers, rows)
