"""What an iteration costs, as a value: where its seconds go, and the bytes that it moves."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def bytes(self) -> float:
        """What passes the worker's link, both ways."""
        return self.bytes_sent + self.bytes_received
