"""Exchange: everyone sends everyone its whole message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm
from ddlnb.plans.transfers import Collective, Primitive, transfers


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
