"""What advice is asked about: a model on machines, and what is known of both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ddlnb.advice.prices import Prices
from ddlnb.clusters.cluster import Cluster
from ddlnb.workloads.footprint import Footprint
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class Question:
    """A workload, the cluster with the workers in use, prices, and memory where it is known.

    ``footprint`` is what training takes of a GPU's memory, None where the model itself is not at
    hand, and ``gpu_memory`` what the GPU has, in bytes, NaN where nobody knows.
    """

    workload: Workload
    cluster: Cluster
    prices: Prices = field(default_factory=Prices)
    footprint: Footprint | None = None
    gpu_memory: float = math.nan

    def memory_bytes(self, local_batch: int) -> float:
        """Return the bytes that training at this batch takes of one GPU, NaN if unknown."""
        return math.nan if self.footprint is None else self.footprint.bytes_at(local_batch)

    def fits(self, local_batch: int) -> bool | None:
        """Return whether training at this batch fits into a GPU's memory, None if unknown."""
        needed = self.memory_bytes(local_batch)
        if math.isnan(needed) or math.isnan(self.gpu_memory):
            return None
        return needed <= self.gpu_memory
