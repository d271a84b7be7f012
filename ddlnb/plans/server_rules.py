"""What a parameter server does with a push, and when it answers a pull: synchronisation as a rule.

A rule knows nothing of networks; the real server (`ddlnb.engines.transports.push_pull`) and the
lockstep executor run the same one. The bulk-synchronous rule answers with a sum of gradients;
others are those of `ddlnb.training.server_rules`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import torch


class Rule(Protocol):
    """When is a pull answered, and with what?"""

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Take in a worker's value for a key, which arrived at ``now`` seconds.

        The tensor may be kept but not written to.
        """

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """The answer for this worker, or None while it must wait. Never written to afterwards."""


@dataclass
class _Sum:
    """The sum of one key in one iteration, taken in rank order so that it is reproducible."""

    total: torch.Tensor | None = None
    summed: int = 0
    early: dict[int, torch.Tensor] = field(default_factory=dict)
    pulled: int = 0

    def add(self, worker: int, value: torch.Tensor) -> None:
        self.early[worker] = value
        while self.summed in self.early:
            part = self.early.pop(self.summed)
            # A fresh tensor per iteration: the last one's may still be on its way to a slow worker.
            self.total = part.clone() if self.total is None else self.total.add_(part)
            self.summed += 1


class BulkSynchronous:
    """Answer when every worker has pushed, with the sum (BSP)."""

    def __init__(self, workers: int):
        self.workers = workers
        self._sums: dict[tuple[int, int], _Sum] = defaultdict(_Sum)

    def push(
        self, worker: int, key: int, clock: int, value: torch.Tensor, now: float = 0.0
    ) -> None:
        """Add the value to the sum of this key and iteration."""
        self._sums[key, clock].add(worker, value)

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """Return the sum over all workers, or None while a push is missing."""
        entry = self._sums[key, clock]
        if entry.summed < self.workers:
            return None
        entry.pulled += 1
        if entry.pulled == self.workers:
            del self._sums[key, clock]
        return entry.total
