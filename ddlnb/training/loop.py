"""What a training method asks its executor for, beside the communication of `ddlnb.plans.requests`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gradient:
    """Ask for the gradient of this worker's next batch at its present parameters, a flat tensor.

    The tensor is overwritten by the next request.
    """


@dataclass(frozen=True)
class StepDone:
    """Tell that an iteration, the use of one gradient, is over. Executors count, look and stop."""
