"""What an iteration costs, as a value: where its seconds go, and the bytes that it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddlnb.training.cost.uneven import PlayedIteration

NOTHING, BACKWARD, BOTH_PASSES = "nothing", "backward pass", "backward and next forward pass"


@dataclass(frozen=True)
class IterationCost:
    """Where the seconds of one worker's iteration go, and the bytes of the busiest worker.

    ``waiting_seconds`` are those of communication that nothing hides and of waiting for others.
    ``gathers`` is true when payloads go to all workers, so that traffic grows with their number.
    ``hidden_behind`` is the computation that communication may overlap, NOTHING where it follows
    all of it. ``server_machines`` are those that parameter servers take beside the workers'.
    ``source`` says how the seconds were found.
    """

    method: str
    iteration_seconds: float
    compute_seconds: float
    compression_seconds: float
    waiting_seconds: float
    bytes_sent: float
    bytes_received: float
    gathers: bool = False
    hidden_behind: str = NOTHING
    server_machines: int = 0
    source: str = ""

    @classmethod
    def of_played(
        cls, method: str, played: PlayedIteration, bytes_: float, coding: float = 0.0, **told: Any
    ) -> IterationCost:
        """Return the cost of a played iteration, of whose busy seconds ``coding`` are compression.

        A worker sends ``bytes_`` and receives as many; ``told`` are the other fields.
        """
        return cls(
            method,
            played.iteration_seconds,
            compute_seconds=played.busy_seconds - coding,
            compression_seconds=coding,
            waiting_seconds=played.iteration_seconds - played.busy_seconds,
            bytes_sent=bytes_,
            bytes_received=bytes_,
            **told,
        )

    @property
    def bytes(self) -> float:
        """What passes the worker's link, both ways."""
        return self.bytes_sent + self.bytes_received
