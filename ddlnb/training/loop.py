"""What a training loop yields besides communication: the start and the end of an iteration.

A loop (`ddlnb.training.synchronisation`) is a generator. Its executor answers these two requests
and those of `ddlnb.plans.requests`, which are the communication.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NextGradient:
    """Ask for the flat gradient of this worker's next batch at its present parameters.

    The next request overwrites the tensor.
    """


@dataclass(frozen=True)
class StepDone:
    """Report that an iteration, the use of one gradient, is over. Executors count and observe."""
