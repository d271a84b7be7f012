"""Answers AllReduce by functions that block: some process groups of their own, a thread for each.

All workers start their messages in the same order and take the groups in turn, so that the same
message meets itself.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle
from ddlnb.errors import MissingPart

CHANNELS = 3  # all-reduces in flight at a time


class BlockingAllReduce(Protocol):
    """Sums a tensor over the ranks of a process group, in place; the same bits on each."""

    def __call__(self, tensor: torch.Tensor) -> None:
        """Sum, and return when this rank has the sum."""

    def bytes_sent(self, tensor: torch.Tensor) -> float:
        """Return the bytes that this rank sends for such a tensor, without headers."""


class ThreadTransport:
    """Runs all-reduces in threads; ``make`` returns one for a process group.

    A subclass may make several for a group, and choose one for every request. ``bytes_sent`` is
    what is sent to the others, without headers.
    """

    def __init__(self, make: Callable[[dist.ProcessGroup], Any], timeout_seconds: float):
        self.bytes_sent = 0.0
        self._timeout = timeout_seconds
        self._started = 0
        self._made = [make(dist.new_group()) for _ in range(CHANNELS)]
        self._queues: list[queue.SimpleQueue[_Request | None]] = []
        self._threads = []
        for number in range(CHANNELS):
            waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=_serve, args=(waiting,), name=f"channel-{number}", daemon=True
            )
            thread.start()
            self._queues.append(waiting)
            self._threads.append(thread)

    def start(
        self,
        message: int,
        request: Any,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start what the request asks for, in place of its tensor; released when it is answered."""
        tensor = request.tensor
        if tensor.is_cuda:
            raise MissingPart(
                "a topology or collective of ours works on CPUs; leave both options out on GPUs, "
                "where NCCL's is taken"
            )
        channel = self._started % CHANNELS
        carrier = self._carrier(self._made[channel], message, request)
        self.bytes_sent += carrier.bytes_sent(tensor)
        pending = _Request(message, tensor, carrier, released, answered, self._timeout)
        self._queues[channel].put(pending)
        self._started += 1
        return pending

    def _carrier(self, made: Any, message: int, request: Any) -> BlockingAllReduce:
        """Return what carries the request out, of what was made for a group."""
        return made

    def close(self) -> None:
        """End the threads; the groups end with the default one."""
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join(self._timeout)


def _serve(waiting: queue.SimpleQueue) -> None:
    while (request := waiting.get()) is not None:
        try:
            request.carrier(request.tensor)
            request.finish()
        except Exception as error:
            request.finish(error)


class _Request:
    def __init__(
        self,
        message: int,
        tensor: torch.Tensor,
        carrier: BlockingAllReduce,
        released: Callback,
        answered: Callback,
        timeout: float,
    ):
        self.message, self.tensor, self.carrier = message, tensor, carrier
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
                f"exchange of message {self.message} was not done within {self._timeout} s"
            )
        if self._error is not None:
            raise self._error
        return self.tensor
