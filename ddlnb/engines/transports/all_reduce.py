"""Answers AllReduce with torch.distributed: gloo on CPU, nccl where GPUs are."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle
from ddlnb.errors import MissingPart
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce


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
