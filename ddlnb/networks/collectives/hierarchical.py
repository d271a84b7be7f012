"""Hierarchical: reduce-scatter inside the nodes, all-reduce across them, all-gather inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm, over_dimensions
from ddlnb.plans.transfers import Collective, Primitive


@dataclass(frozen=True)
class Hierarchical(Algorithm):
    """Rings inside the m nodes of g workers, and g rings across them, each for one g-th.

    2 (g - 1) + 2 (m - 1) steps, 2 (n - 1) / n M bytes from every worker, of which only
    2 (m - 1) / n M leave its node. ``per_node`` says how many neighbours count as a node, by
    default as many as the cluster has. Source: survey, section 3.2; Jia et al. 2018.
    """

    per_node: int | None = None

    name = "hierarchical"
    knows_nodes = True

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that nodes must be equally full, if they are not."""
        inside = self._inside(per_node)
        if inside > 0 and workers % inside == 0:
            return ""
        return (
            f"hierarchical({inside}) needs full nodes, and {workers} workers are no multiple of "
            f"{inside}; take a number of workers that is, or other nodes in brackets"
        )

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        ranks = np.arange(workers).reshape(-1, self._inside(per_node))
        return self.made(primitive, workers, workers, over_dimensions(ranks, (1, 0), 0, workers))

    def _inside(self, per_node: int) -> int:
        return per_node if self.per_node is None else self.per_node
