"""Answers AllReduce by our own algorithms, for links with long delays: a mesh, and a ring.

A ring of n workers passes 2 (n-1) delays one after the other, and gloo's each takes two (it asks
for room first); a mesh, in which every worker sums one part of the tensor for all, passes two, with
the same 2 (n-1) / n of the bytes from every worker. On links with long delays that is most of a
small message's cost. Small tensors are not even cut: every worker sends its own to all others and
sums them itself, in one hop. Large ones go round a ring in pieces, with room made for them: there
only the bytes count, and steady streams fill links better than everybody's bursts. Where "large"
begins depends on the links, so the workers measure it before they start.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.transports.algorithms import everyone, mesh, ring
from ddlnb.errors import MissingPart
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce

CHANNELS = 3  # all-reduces in flight at a time, on a process group and a thread each
SMALL_BYTES = 8192
PROBE_BYTES = 1 << 16, 1 << 20
PROBES = 3
SEGMENT_ELEMENTS = 1 << 15


@dataclass(frozen=True)
class MeshAllReduce:
    """Sums a tensor over all workers, in place; the same bits on each. Two hops up to a size."""

    two_hops_up_to: float  # bytes, the same on all workers

    @classmethod
    def measured(cls, group: dist.ProcessGroup | None = None) -> MeshAllReduce:
        """Measure at what size this group should leave the mesh for the ring, and agree on it.

        Both are timed with a smaller and with a larger message, and taken for straight lines
        between; beyond the larger one always the ring, because bursts that fill the buffers on the
        way cost more than in proportion.
        """
        tensors = [torch.zeros(size // 4) for size in PROBE_BYTES]
        lost: list[list[float]] = [[], []]  # seconds that the ring takes longer
        for _ in range(PROBES + 1):
            for tensor, seconds in zip(tensors, lost, strict=True):
                by_ring = _seconds(_ring, tensor, group)
                seconds.append(by_ring - _seconds(mesh, tensor, group))
        medians = [statistics.median(seconds[1:]) for seconds in lost]  # first, connections open
        agreed = torch.tensor(medians, dtype=torch.float64)
        dist.all_reduce(agreed, group=group)
        return cls(_crossing(*agreed.tolist()))

    def __call__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        size = tensor.numel() * tensor.element_size()
        if size <= SMALL_BYTES:
            everyone(tensor, group)
        elif size <= self.two_hops_up_to:
            mesh(tensor, group)
        else:
            _ring(tensor, group)


def _ring(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    ring(tensor, group, SEGMENT_ELEMENTS)


def _seconds(all_reduce: Callable, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    start = time.perf_counter()
    all_reduce(tensor, group)
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


class MeshTransport:
    """All-reduces on some process groups of their own, a thread for each.

    All workers start their messages in the same order, and take the groups in turn: so the same
    message meets itself. ``bytes_sent`` follows from what is sent to the others, without headers.
    """

    def __init__(self, timeout_seconds: float):
        self.bytes_sent = 0.0
        self._timeout = timeout_seconds
        self._workers = dist.get_world_size()
        self._started = 0
        self._queues: list[queue.SimpleQueue[_Request | None]] = []
        self._threads = []
        all_reduce = MeshAllReduce.measured()
        for number in range(CHANNELS):
            waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
            group = dist.new_group()
            thread = threading.Thread(
                target=_serve, args=(waiting, group, all_reduce), name=f"mesh-{number}", daemon=True
            )
            thread.start()
            self._queues.append(waiting)
            self._threads.append(thread)

    def start(
        self,
        message: int,
        request: AllReduce,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start the all-reduce of the request's tensor, in place; released when it is answered."""
        tensor = request.tensor
        if tensor.is_cuda:
            raise MissingPart("topology 'mesh' works on CPUs; take 'ring' on GPUs, which is NCCL's")
        size = tensor.numel() * tensor.element_size()
        others = self._workers - 1
        self.bytes_sent += (
            others * size if size <= SMALL_BYTES else ring_bytes_sent(size, self._workers)
        )
        pending = _Request(message, tensor, released, answered, self._timeout)
        self._queues[self._started % CHANNELS].put(pending)
        self._started += 1
        return pending

    def close(self) -> None:
        """End the threads; the groups end with the default one."""
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join(self._timeout)


def _serve(
    waiting: queue.SimpleQueue, group: dist.ProcessGroup | None, all_reduce: MeshAllReduce
) -> None:
    while (request := waiting.get()) is not None:
        try:
            all_reduce(request.tensor, group)
            request.finish()
        except Exception as error:
            request.finish(error)


class _Request:
    def __init__(
        self,
        message: int,
        tensor: torch.Tensor,
        released: Callback,
        answered: Callback,
        timeout: float,
    ):
        self.message, self.tensor = message, tensor
        self._callbacks = (answered, released)
        self._timeout = timeout
        self._finished = threading.Event()
        self._error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        self._error = error
        if error is None:
            for callback in self._callbacks:
                if callback is not None:
                    callback()
        self._finished.set()

    def wait(self) -> torch.Tensor:
        if not self._finished.wait(self._timeout):
            raise TimeoutError(
                f"all-reduce of message {self.message} was not done within {self._timeout} s"
            )
        if self._error is not None:
            raise self._error
        return self.tensor
