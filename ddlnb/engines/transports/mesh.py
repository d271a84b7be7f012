"""All-reduce for links with long delays: a mesh, and a ring.

A ring of n workers passes 2 (n-1) delays one after the other, and gloo's each takes two (it asks
for room first); a mesh, in which every worker sums one part of the tensor for all, passes two, with
the same 2 (n-1) / n of the bytes from every worker. On links with long delays that is most of a
small message's cost. Small tensors are not even cut: every worker sends its own to all others and
sums them itself, in one hop. Large ones go round a ring in blocks, with room made for them: there
only the bytes count, and steady streams fill links better than everybody's bursts. Where "large"
begins depends on the links, so the workers measure it before they start.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from ddlnb.engines.transports.collective import CollectiveExecutor, group_or_default
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.units import KIB, MIB

SMALL_BYTES = 8 * KIB
PROBE_BYTES = 64 * KIB, MIB
PROBES = 3
BLOCK_BYTES = 128 * KIB


class MeshAllReduce:
    """Sums a tensor over all workers, in place; the same bits on each. Two hops up to a size.

    ``two_hops_up_to`` are bytes, the same on all workers.
    """

    def __init__(self, two_hops_up_to: float, group: dist.ProcessGroup | None = None):
        workers = group_or_default(group).size()
        self.two_hops_up_to = two_hops_up_to
        self.one_hop = CollectiveExecutor(get_collective("exchange", workers), group)
        self.two_hops = CollectiveExecutor(get_collective("direct", workers), group)
        self.ring = CollectiveExecutor(get_collective("ring", workers), group, BLOCK_BYTES)

    def __call__(self, tensor: torch.Tensor) -> None:
        """Sum by the collective that its size asks for."""
        self._chosen(tensor)(tensor)

    def bytes_sent(self, tensor: torch.Tensor) -> int:
        """Return the bytes that this rank sends for such a tensor, without headers."""
        return self._chosen(tensor).bytes_sent(tensor)

    def _chosen(self, tensor: torch.Tensor) -> CollectiveExecutor:
        size = tensor.numel() * tensor.element_size()
        if size <= SMALL_BYTES:
            return self.one_hop
        return self.two_hops if size <= self.two_hops_up_to else self.ring


def measured_limit(group: dist.ProcessGroup | None = None) -> float:
    """Measure up to what size this group should stay with the mesh, and agree on it.

    Mesh and ring are timed with a smaller and with a larger message, and taken for straight lines
    between; beyond the larger one always the ring, because bursts that fill the buffers on the way
    cost more than in proportion.
    """
    both = MeshAllReduce(0.0, group)
    tensors = [torch.zeros(size // 4) for size in PROBE_BYTES]
    lost: list[list[float]] = [[], []]  # seconds that the ring takes longer
    for _ in range(PROBES + 1):
        for tensor, seconds in zip(tensors, lost, strict=True):
            by_ring = _seconds(both.ring, tensor)
            seconds.append(by_ring - _seconds(both.two_hops, tensor))
    medians = [statistics.median(seconds[1:]) for seconds in lost]  # first, connections open
    agreed = torch.tensor(medians, dtype=torch.float64)
    dist.all_reduce(agreed, group=group)
    return _crossing(*agreed.tolist())


def _seconds(all_reduce: CollectiveExecutor, tensor: torch.Tensor) -> float:
    start = time.perf_counter()
    all_reduce(tensor)
    return time.perf_counter() - start


def _crossing(lost_small: float, lost_large: float) -> float:
    """Return the bytes at which a line through both probes is zero, between 0 and the larger.

    >>> round(_crossing(0.02, -0.01) / 1024)
    704
    >>> _crossing(0.02, 0.01), _crossing(-0.01, -0.02)
    (1048576, 0.0)
    """
    small, large = PROBE_BYTES
    if lost_small <= 0:
        return 0.0
    if lost_large >= 0:
        return large
    return small + (large - small) * lost_small / (lost_small - lost_large)
