"""Answers AllReduce and AllGather with torch.distributed: gloo on CPU, nccl where GPUs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle, Transport
from ddlnb.errors import MissingPart
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllGather, AllReduce


class AllReduceTransport:
    """Asynchronous all-reduces and all-gathers on a process group, or on the default one.

    ``bytes_sent`` is not counted on the wire but follows from the ring that both backends use for
    large messages: 2 (n-1) / n of every message; of what is gathered, it once for every other
    worker.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.bytes_sent = 0.0
        self._group, self._workers = group, dist.get_world_size(group)

    def start(
        self,
        message: int,
        request: AllReduce | AllGather,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start the all-reduce of the request's tensor, in place, or gather its payload.

        It is released when it is answered: all ranks start their all-reduces in the same order.
        """
        answer: Any
        if isinstance(request, AllGather):
            tensor = request.payload.contiguous()
            self.bytes_sent += (self._workers - 1) * tensor.nbytes
            answer = [torch.empty_like(tensor) for _ in range(self._workers)]
        else:
            answer = tensor = request.tensor
            self.bytes_sent += ring_bytes_sent(tensor.nbytes, self._workers)
        if tensor.is_cuda and (released or answered):
            raise MissingPart(
                "on GPUs the end of an all-reduce is not observed, so credit (ByteScheduler-A2A) "
                "and timelines are not available there; use another method, or device 'cpu'"
            )
        if isinstance(request, AllGather):
            work = dist.all_gather(answer, tensor, self._group, async_op=True)
        else:
            work = dist.all_reduce(tensor, group=self._group, async_op=True)
        assert work is not None
        for callback in (answered, released):
            if callback is not None:
                work.get_future().then(lambda _, callback=callback: callback())
        return _Started(work, tensor, answer)

    def close(self) -> None:
        """Let go of the process group, which belongs to the caller.

        Its threads end with the last reference. Python must not end before them: one that then asks
        for the interpreter's lock, to call back, ends the process.
        """
        self._group = None


class _Started:
    def __init__(self, work: dist.Work, tensor: torch.Tensor, answer: Any):
        self._work, self._answer = work, answer
        self._tensor = tensor  # must outlive the sending

    def wait(self) -> Any:
        self._work.wait()
        return self._answer


class ChoosingTransport:
    """Answers each request by one of several transports, which ``choose`` returns."""

    def __init__(self, choose: Callable[[int, Any], Transport], *transports: Transport):
        self._choose, self._transports = choose, transports

    @property
    def bytes_sent(self) -> float:
        """What all of them have sent."""
        return sum(one.bytes_sent for one in self._transports)

    def start(
        self, message: int, request: Any, released: Callback = None, answered: Callback = None
    ) -> Handle:
        """Start a request where it belongs."""
        return self._choose(message, request).start(message, request, released, answered)

    def close(self) -> None:
        """Close all of them."""
        for one in self._transports:
            one.close()
