"""What the parts of an engine call one another: trainers, transports, and requests in flight."""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

import torch

Callback = Callable[[], None] | None

_CLOSED = "this rank closed its connections before the message was answered"


class Handle(Protocol):
    """One request in flight."""

    def wait(self) -> Any:
        """Block until the answer is there. Raises when it cannot come any more."""


class Transport(Protocol):
    """Answers the requests of exchanges over a real network."""

    @property
    def bytes_sent(self) -> float:
        """The payload bytes that this worker has sent."""

    def start(
        self, message: int, request: Any, released: Callback = None, answered: Callback = None
    ) -> Handle:
        """Start a request for message number ``message``.

        ``answered`` is called when the answer is there; ``released`` when the message no longer
        fills the network, which must not depend on which messages the other workers start next.
        Both may be called from any thread, even before `start` returns.
        """

    def close(self) -> None:
        """Close connections; every request must have been answered."""


class Trainer(Protocol):
    """One worker's training loop body; the engines and the baselines look alike from here."""

    waited_seconds: float
    bytes_sent: float

    def step(self, loss: Callable[[], Any]) -> Any:
        """Run one iteration and return the loss of this worker's batch, a scalar tensor."""

    def synchronize(self) -> None:
        """Finish what is in flight, so that parameters are those after all steps so far."""

    def close(self) -> None:
        """Remove the hooks from the model and close connections."""


class Pending:
    """The handle of a request that sums a tensor in place: one thread waits, another one answers.

    ``callbacks`` are called when the sum is there; ``by`` says who makes it.
    """

    def __init__(
        self,
        message: int,
        tensor: torch.Tensor,
        callbacks: tuple[Callback, ...],
        by: str,
        timeout_seconds: float,
    ):
        self.message, self.tensor = message, tensor
        self._callbacks = callbacks
        self._by, self._timeout = by, timeout_seconds
        self._finished = threading.Event()
        self._error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """Note that the sum is there, or what went wrong."""
        self._error = error
        if error is None:
            for callback in self._callbacks:
                if callback is not None:
                    callback()
        self._finished.set()

    def wait(self) -> torch.Tensor:
        """Return the tensor once it holds the sum. Raises TimeoutError, or what went wrong."""
        if not self._finished.wait(self._timeout):
            raise TimeoutError(
                f"{self._by} did not answer message {self.message} within {self._timeout} s"
            )
        if self._error is not None:
            raise self._error
        return self.tensor


Request = TypeVar("Request", bound=Pending)


class ThreadedTransport(ABC, Generic[Request]):
    """A transport whose connections belong to a thread, while the training loop computes.

    Requests go to the thread by an outbox, and a pipe wakes it; ``_pending`` has those that it has
    taken and not answered. It ends with `close`, or with the first error, which all hear that wait.
    """

    def __init__(self, name: str, timeout_seconds: float):
        self.bytes_sent = 0.0
        self._timeout = timeout_seconds
        self._pending: dict[Any, Request] = {}
        self._outbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._closed = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and close the connections; safe to call twice.

        Who waits for a message that was not answered hears that it never will be.
        """
        if self._closed:
            return
        self._closed = True
        self._put(None)
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"{self._thread.name} did not end within {self._timeout} s")
        os.close(self._woken)
        os.close(self._wake)

    def _put(self, request: Request | None) -> None:
        """Hand the thread a request. Raises ConnectionError, or what has ended the thread."""
        if request is not None and self._closed:
            raise ConnectionError(_CLOSED)
        self._outbox.put(request)
        with suppress(BlockingIOError):  # a full pipe wakes the thread just as well
            os.write(self._wake, b"\0")
        if request is not None and self._failure is not None:
            raise self._failure  # the thread may have ended before it could see this one

    def _taken(self) -> Iterator[Request | None]:
        """Yield what is in the outbox, in the thread; None at the end of all."""
        while not self._outbox.empty():
            yield self._outbox.get()

    def _run(self) -> None:
        reason: Exception = ConnectionError(_CLOSED)
        try:
            self._connect()
            while self._turn():
                pass
        except Exception as error:
            reason = error
        self._failure = reason
        for request in (*self._pending.values(), *self._taken()):
            if request is not None:
                request.finish(reason)
        self._disconnect()

    def _connect(self) -> None:
        """Open, in the thread, what belongs to it."""

    @abstractmethod
    def _turn(self) -> bool:
        """Wait for something to do and do it; return whether there may be more to come."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connections, in the thread."""
