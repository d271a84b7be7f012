"""The price of the model that a curve evaluates: the mean of the workers' models.

After an iteration of BSP every worker has that model. Within a round of local SGD, and in gossip at
any time, nobody does: it takes one average of the workers' models more, which the method itself
does not ask for. SSP and ASP keep a common model on the server; the mean of the workers' copies
stands for it and costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce
from ddlnb.training.executors.clock import HELD_PULL, PUSH, Clock
from ddlnb.training.method import TrainingMethod


@dataclass(frozen=True)
class Averaging:
    """One average of the models: bytes that a worker sends, and receives, and seconds (or NaN)."""

    bytes_sent: float
    seconds: float

    @classmethod
    def of(
        cls, method: TrainingMethod, workers: int, parameters: int, clock: Clock | None
    ) -> Averaging:
        """Return the price for models of float32 ``parameters``, averaged as it averages."""
        size = 4 * parameters
        if method.synchronisation.model_on_server:
            return cls(0.0, 0.0)
        if method.architecture == "PS":
            return cls(float(size), _through_server(clock, size, workers) if clock else math.nan)
        seconds = clock.communicate(AllReduce, size, workers) if clock else math.nan
        return cls(ring_bytes_sent(size, workers), seconds)

    def columns(self, consensus_distance: float) -> dict[str, object]:
        """Return the columns of a row whose workers are at this mean squared distance."""
        needed = consensus_distance != 0
        return {
            "averaging_bytes_sent": self.bytes_sent if needed else 0.0,
            "averaging_bytes_received": self.bytes_sent if needed else 0.0,
            "averaging_seconds": self.seconds if needed else 0.0,
        }


def _through_server(clock: Clock, size: int, workers: int) -> float:
    return sum(clock.trip_of(0, way, size, workers).seconds for way in (PUSH, HELD_PULL))
