"""Ring: parts go round, summed in n - 1 steps and handed on in n - 1 more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import (
    ALL_REDUCE,
    Algorithm,
    after,
    ring_all_gather,
    ring_reduce_scatter,
    shares,
)
from ddlnb.plans.transfers import Collective, Primitive


@dataclass(frozen=True)
class Ring(Algorithm):
    """One ring through all workers in the order of ranks; its halves are primitives as well.

    All-reduce: 2 (n - 1) steps, 2 (n - 1) / n M bytes from every worker. With ``parts``, such as 64
    over 1,024 workers, a step carries so many transfers only: a part is longer then, links idle in
    between, and the first and last of a rank's parts make some send up to a part more than others.
    Source: Patarasuk and Yuan 2009; survey, section 3.2.
    """

    parts: int | None = None

    name = "ring"
    primitives = (ALL_REDUCE, "reduce-scatter", "all-gather")

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that there must be parts, if there are none."""
        if self.parts is None or self.parts > 0:
            return ""
        return f"ring({self.parts}) cuts the message into {self.parts} parts; give at least 1"

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        parts = self.parts or workers
        ring, bounds = np.arange(workers)[None, :], shares(parts, workers)[None, :]
        scatter, gather = ring_reduce_scatter(ring, bounds), ring_all_gather(ring, bounds)
        rows = {
            ALL_REDUCE: (scatter, after(workers - 1, gather)),
            "reduce-scatter": (scatter,),
            "all-gather": (gather,),
        }
        return self.made(primitive, workers, parts, *rows[primitive])
