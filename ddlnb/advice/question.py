"""What advice is asked about: a model on machines, and what is known of both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddlnb.advice.prices import Prices
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import ModelError
from ddlnb.hardware.catalogue import gpu_in
from ddlnb.simulator.profiles import workload_on
from ddlnb.workloads.footprint import Footprint, footprint, require_optimizer
from ddlnb.workloads.kept_models import kept_model
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    from ddlnb.workloads.tasks import Task


@dataclass(frozen=True)
class Question:
    """A workload, the cluster with the workers in use, prices, and memory where it is known.

    ``footprint`` is what training takes of a GPU's memory, None where nobody knows, for the reason
    ``why_no_footprint``, and ``gpu_memory`` what the GPU has, in bytes, NaN where nobody knows.
    """

    workload: Workload
    cluster: Cluster
    prices: Prices = field(default_factory=Prices)
    footprint: Footprint | None = None
    gpu_memory: float = math.nan
    why_no_footprint: str = "its model is not at hand"

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
    model: str | Task | Workload,
    cluster: Cluster,
    local_batch: int | None = None,
    prices: Prices | None = None,
    optimizer: str = "adam",
    *,
    sequence: int | None = None,
    throughput: float | None = None,
    precision: str = "",
) -> Question:
    """Return the question about a model on a cluster, with what is known of its memory.

    ``model``, ``sequence``, ``throughput`` and ``precision`` are those of `workload_on`. A model is
    traced for its memory; of a workload without a model none is known. What the GPU has is looked
    up by the cluster's hardware. Raises UnknownName for an optimizer that is not known.
    """
    require_optimizer(optimizer)
    workload = workload_on(
        model,
        cluster,
        local_batch,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
    )
    asked = Question(
        workload,
        cluster,
        Prices() if prices is None else prices,
        gpu_memory=gpu_memory(cluster.hardware),
    )
    try:
        return replace(asked, footprint=_footprint(model, sequence, optimizer))
    except ModelError as error:
        return replace(asked, why_no_footprint=str(error))


def _footprint(
    model: str | Task | Workload, sequence: int | None, optimizer: str
) -> Footprint | None:
    """Return the footprint of a model that is at hand, None for a workload whose model is not."""
    from ddlnb.workloads.catalogue import TASKS
    from ddlnb.workloads.resolve import resolve

    found = resolve(model, sequence=sequence)
    if isinstance(found, Workload):
        if found.model not in TASKS:
            return None
        found = TASKS[found.model]
    if found is TASKS.get(found.name) and (kept := kept_model(found.name)):
        return kept.footprint(optimizer)
    return footprint(found, optimizer)


def gpu_memory(hardware: str) -> float:
    """Return the memory of a GPU of the catalogue, in bytes, NaN for other hardware."""
    gpu = gpu_in(hardware)
    return math.nan if gpu is None else float(gpu.memory)
