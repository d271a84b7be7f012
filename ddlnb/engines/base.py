"""The interfaces between the parts of an engine that executes plans on real processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

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
