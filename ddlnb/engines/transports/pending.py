"""A request in flight, which one thread awaits and another one answers."""

from __future__ import annotations

import threading

import torch

from ddlnb.engines.base import Callback


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
