"""Direct: everyone sends everyone a part, and then its sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm
from ddlnb.networks.collectives.phases import after, joined
from ddlnb.plans.transfers import Collective, Primitive, transfers


@dataclass(frozen=True)
class Direct(Algorithm):
    """Worker r sums part r for all: 2 steps, in each n - 1 messages of M / n bytes from everyone.

    The fewest steps with the fewest bytes, for networks that carry everybody's messages at once.
    Its halves are primitives as well. Source: survey, section 3.3.2 (a full mesh).
    """

    name = "direct"
    primitives = (ALL_REDUCE, "reduce-scatter", "all-gather")

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        source = np.arange(workers)[:, None]
        target = (source + np.arange(1, workers)) % workers  # not all to the same one first
        scatter = joined(transfers(0, source, target, target, target + 1, True))
        gather = joined(transfers(0, source, target, source, source + 1, False))
        rows = {
            ALL_REDUCE: (scatter, after(1, gather)),
            "reduce-scatter": (scatter,),
            "all-gather": (gather,),
        }
        return self.made(primitive, workers, workers, *rows[primitive])
