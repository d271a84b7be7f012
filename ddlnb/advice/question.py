"""What advice is asked about: a model on machines, and what is known of both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ddlnb.advice.prices import Prices
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import UnknownName
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.simulator.profiles import workload_on
from ddlnb.workloads.footprint import Footprint, footprint, require_optimizer
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


def question_about(
    model: str | Workload,
    cluster: Cluster,
    local_batch: int | None = None,
    prices: Prices | None = None,
    optimizer: str = "adam",
) -> Question:
    """Return the question about a model on a cluster, with what is known of its memory.

    A built-in model is traced for its memory; of a workload without a model none is known. What the
    GPU has is looked up by the cluster's hardware. Raises UnknownName for an optimizer that is not
    known.
    """
    workload = workload_on(model, cluster, local_batch)
    require_optimizer(optimizer)
    return Question(
        workload,
        cluster,
        Prices() if prices is None else prices,
        _footprint(workload.model, optimizer),
        _gpu_memory(cluster.hardware),
    )


def _footprint(model: str, optimizer: str) -> Footprint | None:
    from ddlnb.workloads.catalogue import TASKS

    return footprint(TASKS[model], optimizer) if model in TASKS else None


def _gpu_memory(hardware: str) -> float:
    """Return the memory of a GPU of the catalogue, in bytes, NaN for other hardware."""
    if not hardware or hardware.startswith("cpu"):
        return math.nan
    try:
        return float(get_gpu(hardware).memory)
    except UnknownName:
        return math.nan
