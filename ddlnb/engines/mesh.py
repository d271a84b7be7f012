"""Answers AllReduce in two hops over a mesh: every worker sums one part of the tensor for all.

A ring of n workers passes 2 (n-1) delays one after the other, and gloo's each takes two (it asks
for room first); a mesh passes two, with the same 2 (n-1) / n of the bytes from every worker. On
links with long delays that is most of a small message's cost. Small tensors are not even cut: every
worker sends its own to all others and sums them itself, in one hop. Large ones go round the ring:
there only the bytes count, and one steady stream fills a link better than everybody's bursts. Where
"large" begins depends on the links, so the workers measure it before they start.
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

from ddlnb.collectives import ring_bytes_sent
from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.topologies import everyone, mesh
from ddlnb.errors import MissingPart
from ddlnb.exchange import AllReduce

LINES = 3  # all-reduces under way at a time
SMALL_BYTES = 8192
PROBE_BYTES = SMALL_BYTES, 1 << 20
PROBES = 3
# A mesh takes about so much longer than the ring for the same bytes: 10 to 40 % were measured on
# emulated links of 20 and 12 MB/s with 4 and 8 nodes.
SLOWER = 0.3


@dataclass(frozen=True)
class MeshAllReduce:
    """Sums a tensor over all workers, in place; the same bits on each. Two hops up to a size."""

    two_hops_up_to: float  # bytes, the same on all workers

    @classmethod
    def measured(cls, group: dist.ProcessGroup | None = None) -> MeshAllReduce:
        """Where this group's workers should leave the mesh for the ring, in agreement.

        The mesh saves start-up, by the difference that a small message shows; the ring saves
        `SLOWER` of the time of the bytes. Both are equal at the size that is returned.
        """
        small, large = (torch.zeros(size // 4) for size in PROBE_BYTES)
        mesh_seconds, ring_seconds, large_seconds = [], [], []
        for _ in range(PROBES + 1):
            mesh_seconds.append(_seconds(lambda: mesh(small, group)))
            ring_seconds.append(_seconds(lambda: dist.all_reduce(small, group=group)))
            large_seconds.append(_seconds(lambda: dist.all_reduce(large, group=group)))
        start_up = statistics.median(ring_seconds[1:])  # connections opened in the first round
        saved = start_up - statistics.median(mesh_seconds[1:])
        per_byte = (statistics.median(large_seconds[1:]) - start_up) / PROBE_BYTES[1]
        means = torch.tensor([saved, per_byte], dtype=torch.float64)
        dist.all_reduce(means, group=group)
        saved, per_byte = means.tolist()
        if per_byte <= 0:
            return cls(float("inf"))
        return cls(max(0.0, saved) / (SLOWER * per_byte))

    def __call__(self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        size = tensor.numel() * tensor.element_size()
        if size <= SMALL_BYTES:
            everyone(tensor, group)
        elif size <= self.two_hops_up_to:
            mesh(tensor, group)
        else:
            dist.all_reduce(tensor, group=group)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


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
        for number in range(LINES):
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
        self._queues[self._started % LINES].put(pending)
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
