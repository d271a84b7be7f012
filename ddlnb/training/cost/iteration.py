"""What an iteration costs, as a value: where its seconds go, and the bytes that it moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IterationCost:
    """Where the seconds of one worker's iteration go, and the bytes of the busiest worker.

    ``waiting_seconds`` are those of communication that nothing hides and of waiting for others.
    ``gathers`` is true when payloads go to all workers, so that traffic grows with their number.
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
    source: str = ""

    @property
    def bytes(self) -> float:
        """What passes the worker's link, both ways."""
        return self.bytes_sent + self.bytes_received
