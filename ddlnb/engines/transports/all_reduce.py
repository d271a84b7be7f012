"""Answers AllReduce with torch.distributed: gloo on CPU, nccl where GPUs are.

Answers AllGather beside what another transport answers: payloads of compressors, to all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle, Transport
from ddlnb.errors import MissingPart
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllGather, AllReduce


class AllReduceTransport:
    """Asynchronous all-reduces on the default process group.

    ``bytes_sent`` is not counted on the wire but follows from the ring that both backends use for
    large messages: 2 (n-1) / n of every message.
    """

    def __init__(self) -> None:
        self.bytes_sent = 0.0
        self._workers = dist.get_world_size()

    def start(
        self,
        message: int,
        request: AllReduce,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start the all-reduce of the request's tensor, in place.

        It is released when it is answered: all ranks start their all-reduces in the same order.
        """
        tensor = request.tensor
        if tensor.is_cuda and (released or answered):
            raise MissingPart(
                "on GPUs the end of an all-reduce is not observed, so credit (ByteScheduler-A2A) "
                "and timelines are not available there; use another method, or device 'cpu'"
            )
        self.bytes_sent += ring_bytes_sent(tensor.numel() * tensor.element_size(), self._workers)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        for callback in (answered, released):
            if callback is not None:
                work.get_future().then(lambda _, callback=callback: callback())
        return _InPlace(work, tensor)

    def close(self) -> None:
        """Do nothing: the process group belongs to the caller."""


class _InPlace:
    def __init__(self, work: dist.Work, tensor: torch.Tensor):
        self._work, self._tensor = work, tensor

    def wait(self) -> torch.Tensor:
        self._work.wait()
        return self._tensor


class GatheringTransport:
    """Gathers payloads on the default process group; all other requests go to ``inner``.

    ``bytes_sent`` counts a payload once for every other worker.
    """

    def __init__(self, inner: Transport):
        self.bytes_sent = 0.0
        self._inner = inner
        self._workers = dist.get_world_size()

    def start(
        self, message: int, request: Any, released: Callback = None, answered: Callback = None
    ) -> Handle:
        """Start a request; a gather is released when it is answered."""
        if not isinstance(request, AllGather):
            before = self._inner.bytes_sent
            handle = self._inner.start(message, request, released, answered)
            self.bytes_sent += self._inner.bytes_sent - before
            return handle
        payload = request.payload.contiguous()
        self.bytes_sent += (self._workers - 1) * payload.nbytes
        into = [torch.empty_like(payload) for _ in range(self._workers)]
        work = dist.all_gather(into, payload, async_op=True)
        assert work is not None
        for callback in (answered, released):
            if callback is not None:
                work.get_future().then(lambda _, callback=callback: callback())
        return _Gather(work, into, payload)

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


class _Gather:
    def __init__(self, work: dist.Work, into: list[torch.Tensor], payload: torch.Tensor):
        self._work, self._into = work, into
        self._payload = payload  # must outlive the sending

    def wait(self) -> list[torch.Tensor]:
        self._work.wait()
        return self._into
