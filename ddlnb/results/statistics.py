"""Intervals, tests and comparisons of repeated measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    pass


CONFIDENCE = 0.95


def t_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The mean, and the half width of its t-interval: NaN for fewer than two finite values.

    >>> mean, half = t_interval(np.array([1.0, 2.0, 3.0]))
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    from scipy.stats import t

    count, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    if count < 2 or not np.isfinite(values).all():
        return mean, math.nan
    quantile = t.ppf((1 + confidence) / 2, count - 1)
    return mean, float(quantile * np.std(values, ddof=1) / math.sqrt(count))


def t_test(values: np.ndarray) -> float:
    """The chance of a mean as far from zero if the true one were zero, by Student's t-test.

    NaN for fewer than two finite values.
    """
    from scipy.stats import t

    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        return math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    mean = float(np.mean(values))
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * t.sf(abs(mean) / error, count - 1))


def ratio_interval(over: np.ndarray, under: np.ndarray) -> tuple[float, float, float]:
    """The geometric mean of ratios, and the ends of its interval; NaN for fewer than two seeds.

    Both are finite `target_bracket` values, (seeds, 2), of runs of the same seeds. The 95 %
    t-interval over seeds is widened by all that lies between two evaluations, of both sides.
    """
    log, half = t_interval(np.log(over[:, 1] / under[:, 1]))
    with np.errstate(divide="ignore"):  # a target that is reached at the first evaluation
        low = float(np.log(over[:, 0] / under[:, 1]).mean()) - half
        high = float(np.log(over[:, 1] / under[:, 0]).mean()) + half
    return math.exp(log), float(np.exp(low)), float(np.exp(high))


def holm(p_values: np.ndarray) -> np.ndarray:
    """The values corrected for their number, by Holm's step-down method.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order, count = np.argsort(p_values), len(p_values)
    stepped = np.maximum.accumulate((count - np.arange(count)) * p_values[order])
    corrected = np.empty(count)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
