"""The interfaces between the parts of an engine that executes plans on real processes.

A request in flight, which one thread awaits and another one answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

Callback = Callable[[], None] | None


class Handle(Protocol):
    """One request in flight."""

    def wait(self) -> Any:
        """Block until the answer is there. Raises when it cannot come any more."""


class Transport(Protocol):
    """Answers the requests of exchanges over a real network."""

    bytes_sent: float

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
    """The handle of a request that sums a tensor in place.

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
