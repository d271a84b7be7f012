"""Observations: what was seen, how exactly, and which of it may be fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddlnb.calibration.quantities import Labels, Quantity
from ddlnb.errors import InputError, UnknownName, require
from ddlnb.results.published import MOST_GPUS

LABELS = ("model", "network", "method", "gpus", "group")  # by which observations are left out


@dataclass(frozen=True)
class Observation:
    """A quantity, its observed value, and the standard deviation of the value's logarithm."""

    quantity: Quantity
    value: float
    spread: float
    labels: Labels

    def __post_init__(self) -> None:
        for name in ("value", "spread"):
            number = getattr(self, name)
            require(
                0 < number < math.inf,
                f"{name} {number} of {self.labels.group!r} must be positive and finite",
            )


def observe(quantity: Quantity, value: float, spread: float, source: str) -> Observation:
    """Return the observation with the labels of its quantity."""
    return Observation(quantity, value, spread, replace(quantity.labels, source=source))


@dataclass(frozen=True)
class Row:
    """One observation beside one prediction of it.

    ``left_out`` is the label value without which the prediction was made, "" if with everything.
    """

    model: str | None
    network: str
    method: str | None
    gpus: int | None
    group: str
    source: str
    forecast: str
    left_out: str
    observed: float
    spread: float
    predicted: float
    relative_error: float


def row_of(observation: Observation, predicted: float, forecast: str, left_out: str = "") -> Row:
    """Return the row of an observation and its prediction."""
    labels = observation.labels
    return Row(
        **{name: getattr(labels, name) for name in (*LABELS, "source")},
        forecast=forecast,
        left_out=left_out,
        observed=observation.value,
        spread=observation.spread,
        predicted=predicted,
        relative_error=predicted / observation.value - 1,
    )


def require_small(observations: Sequence[Observation]) -> None:
    """Raise InputError for a published cell with more GPUs than may be fitted.

    The number of GPUs is that of the simulated cells, whatever the labels say.
    """
    for observation in observations:
        labels = observation.labels
        gpus = max(labels.gpus or 0, observation.quantity.labels.gpus or 0)
        if labels.source == "published" and gpus > MOST_GPUS:
            raise InputError(
                f"published cell {labels.model} {labels.method} on {labels.network} with {gpus} "
                f"GPUs must not be fitted: cells with more than {MOST_GPUS} GPUs are held out to "
                f"test forecasts; leave it out"
            )


def label_values(observations: Sequence[Observation], by: str) -> list:
    """Return the different values of a label, sorted, without None. Raises UnknownName."""
    if by not in LABELS:
        raise UnknownName("label", by, LABELS)
    values = {getattr(observation.labels, by) for observation in observations} - {None}
    if not values:
        raise InputError(f"no observation has a label {by!r}; choose another of {LABELS}")
    return sorted(values)
