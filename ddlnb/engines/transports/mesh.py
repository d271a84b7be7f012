"""All-reduce for links with long delays: a mesh, and a ring.

A ring of n workers passes 2 (n-1) delays one after the other; a mesh, in which every worker sums
one part of the tensor for all, passes two, with the same 2 (n-1) / n of the bytes from every
worker. On links with long delays that is most of a small message's cost. Small tensors are not even
cut: every worker sends its own to all others and sums them itself, in one hop. Large ones go round
a ring in blocks: there only the bytes count, and steady streams fill links better than everybody's
bursts. Where "large" begins depends on the links, so the workers measure it before they start.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from ddlnb.engines.transports.carrying import CarryingTransport
from ddlnb.engines.transports.course import Course
from ddlnb.engines.transports.peers import group_or_default
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.requests import AllReduce
from ddlnb.units import KIB, MIB

SMALL_BYTES = 8 * KIB
PROBE_BYTES = 64 * KIB, MIB
PROBES = 3
BLOCK_BYTES = 128 * KIB


class MeshTransport(CarryingTransport):
    """Sums tensors over all workers, in place; the same bits on each. Two hops up to a size.

    ``two_hops_up_to`` are bytes, the same on all workers, which they measure if it is None.
    """

    def __init__(
        self,
        host: str,
        timeout_seconds: float,
        group: dist.ProcessGroup | None = None,
        two_hops_up_to: float | None = None,
    ):
        group = group_or_default(group)
        rank, workers = group.rank(), group.size()
        self.one_hop = Course(get_collective("exchange", workers), rank)
        self.two_hops = Course(get_collective("direct", workers), rank)
        self.ring = Course(get_collective("ring", workers), rank, BLOCK_BYTES)
        super().__init__(host, timeout_seconds, group)
        try:
            measured = self._measured_limit(group) if two_hops_up_to is None else two_hops_up_to
        except BaseException:
            self.close()
            raise
        self.two_hops_up_to = measured

    def _course(self, message: int, request: AllReduce) -> Course:
        size = request.tensor.nbytes
        if size <= SMALL_BYTES:
            return self.one_hop
        return self.two_hops if size <= self.two_hops_up_to else self.ring

    def _measured_limit(self, group: dist.ProcessGroup) -> float:
        """Measure up to what size these workers should stay with the mesh, and agree on it.

        Mesh and ring are timed with a smaller and with a larger message, and taken for straight
        lines between; beyond the larger one always the ring, because bursts that fill the buffers
        on the way cost more than in proportion.
        """
        tensors = [torch.zeros(size // 4) for size in PROBE_BYTES]
        lost: list[list[float]] = [[], []]  # seconds that the ring takes longer
        for _ in range(PROBES + 1):
            for tensor, seconds in zip(tensors, lost, strict=True):
                by_ring = self._seconds(self.ring, tensor)
                seconds.append(by_ring - self._seconds(self.two_hops, tensor))
        medians = [statistics.median(seconds[1:]) for seconds in lost]  # windows open in the first
        agreed = torch.tensor(medians, dtype=torch.float64)
        group.allreduce([agreed]).wait()
        self.bytes_sent = 0.0
        return _crossing(*agreed.tolist())

    def _seconds(self, course: Course, tensor: torch.Tensor) -> float:
        start = time.perf_counter()
        self.carry(course, 0, tensor).wait()
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
