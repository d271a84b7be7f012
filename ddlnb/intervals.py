"""Predictions with 90 % intervals, from what is not known of parameters and of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.calibration.fit import Calibration
from ddlnb.calibration.observations import IterationTime, Quantity, Row, predictions
from ddlnb.calibration.posterior import TAILS, Numbers
from ddlnb.errors import require
from ddlnb.simulator.simulate import Cell

NOISE_POINTS = 41


@dataclass(frozen=True, eq=False)
class Intervals:
    """Median and 90 % interval of several predictions."""

    median: Numbers
    low: Numbers
    high: Numbers


def predict_intervals(
    things: Sequence[Cell | Quantity], calibration: Calibration, count: int = 200, seed: int = 0
) -> Intervals:
    """Seconds of every cell, or values of every quantity, with their 90 % intervals.

    They hold what is not known of the parameters and the model error. All worlds are simulated
    together: this takes ``count`` times as long as simulating the cells.
    """
    quantities = [IterationTime(thing) if isinstance(thing, Cell) else thing for thing in things]
    drawn = predictions(quantities, calibration.sampled_worlds(count, seed))
    return intervals_of(drawn, np.full(len(quantities), calibration.model_error))


def intervals_of(drawn: Numbers, error: Numbers) -> Intervals:
    """The intervals of draws, one column for each quantity, widened by a relative error each."""
    from scipy.special import ndtri

    normal = ndtri((np.arange(NOISE_POINTS) + 0.5) / NOISE_POINTS)
    widened = drawn * np.exp(normal[:, None] * error)[:, None, :]
    found = np.quantile(widened.reshape(-1, drawn.shape[1]), [TAILS[0], 0.5, TAILS[1]], axis=0)
    return Intervals(median=found[1], low=found[0], high=found[2])


def coverage(rows: Iterable[Row]) -> float:
    """The share of rows whose observed value is within their interval.

    Rows without an interval do not count. Raises InputError when no row has one.
    """
    inside = [row.low <= row.observed <= row.high for row in rows if not math.isnan(row.low)]
    require(bool(inside), "no row has an interval; cross_validate with samples=200 adds them")
    return sum(inside) / len(inside)
