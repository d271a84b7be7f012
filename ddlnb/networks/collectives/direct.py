"""Everyone sends everyone: a part and then its sum (direct), or the whole message (exchange)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm, after, joined
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


@dataclass(frozen=True)
class Exchange(Algorithm):
    """One step, (n - 1) M bytes from everyone; all make the same sum, in the order of ranks.

    For messages of which only the latency counts.
    """

    name = "exchange"

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        source = np.arange(workers)[:, None]
        target = (source + np.arange(1, workers)) % workers  # not all to the same one first
        rows = transfers(0, source, target, 0, 1, True)
        return self.made(primitive, workers, 1, rows)
