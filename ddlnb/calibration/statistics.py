"""Summarise and compare repeated measurements: intervals, paired comparisons and verdicts.

Repetitions are runs that differ only in their seed. Two methods are compared seed by seed, because
a seed that is hard for the one is hard for the other: the pairs differ less than the runs do.
A *bracket* is a cost that is known only to lie between two evaluations, the last before an event
and the first after it. An array of brackets has the shape (seeds, 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95  # of every interval; a verdict errs with a probability of 5 %


class Verdict(StrEnum):
    """What measurements say about a statement."""

    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"

    def worded(self, holds: str, contradicted: str, undecided: str = "no clear difference") -> str:
        """Return the word for this verdict in a table about one question.

        >>> Verdict.CONTRADICTED.worded("faster", "slower")
        'slower'
        """
        words = {Verdict.HOLDS: holds, Verdict.CONTRADICTED: contradicted}
        return words.get(self, undecided)


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval, which are NaN where there is none."""

    estimate: float
    low: float = math.nan
    high: float = math.nan

    @property
    def half_width(self) -> float:
        """Return half the length of the interval."""
        return (self.high - self.low) / 2

    def above(self, value: float = 0.0, margin: float = 0.0) -> Verdict:
        """Judge whether the quantity is above ``value``; differences up to ``margin`` are none.

        It is decided only where the whole interval lies on one side.

        >>> print(Interval(1.2, 1.1, 1.3).above(1.0), Interval(1.2, 0.9, 1.5).above(1.0))
        holds undecided
        """
        if self.low > value + margin:
            return Verdict.HOLDS
        return Verdict.CONTRADICTED if self.high < value - margin else Verdict.UNDECIDED

    def within(self, low: float, high: float) -> Verdict:
        """Judge whether the quantity lies between ``low`` and ``high``, both ends included.

        >>> print(Interval(-0.52, -0.55, -0.49).within(-0.6, -0.4))
        holds
        """
        if low <= self.low and self.high <= high:
            return Verdict.HOLDS
        outside = self.high < low or self.low > high
        return Verdict.CONTRADICTED if outside else Verdict.UNDECIDED


def mean_interval(values: np.ndarray) -> Interval:
    """Return the mean with its t-interval, which needs two values, all of them finite.

    >>> [round(value, 3) for value in mean_interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.484, 4.484]
    """
    mean, half = _mean_and_half_width(values)
    return Interval(mean, mean - half, mean + half)


def bracket_interval(brackets: np.ndarray) -> Interval:
    """Return the mean of the upper ends, (seeds, 2), with their t-interval widened downwards.

    The interval is longer by the mean distance between the ends: the event lies in between.
    """
    mean, half = _mean_and_half_width(brackets[:, 1])
    return Interval(mean, float(brackets[:, 0].mean()) - half, mean + half)


def ratio_interval(over: np.ndarray, under: np.ndarray) -> Interval:
    """Return the geometric mean of the ratios of two arrays of brackets of the same seeds.

    The t-interval over the seeds is widened by what lies between the two evaluations, on both
    sides. The estimate is 0 without an interval where some upper end of ``under`` is infinite.
    """
    if not np.isfinite(under[:, 1]).all():
        return Interval(0.0)
    log, half = _mean_and_half_width(np.log(over[:, 1] / under[:, 1]))
    with np.errstate(divide="ignore"):  # the lower end is 0 if the first evaluation found the event
        low = float(np.log(over[:, 0] / under[:, 1]).mean()) - half
        high = float(np.log(over[:, 1] / under[:, 0]).mean()) + half
    return Interval(math.exp(log), float(np.exp(low)), float(np.exp(high)))


@dataclass(frozen=True)
class PairedComparison:
    """The losses of two methods, compared seed by seed.

    ``difference`` is the worse side's loss minus the better side's, ``verdict`` says whether it is
    above zero, and ``p_value`` is the probability of a difference as extreme if there were none.
    """

    seeds: int
    difference: Interval
    verdict: Verdict
    p_value: float
    better_diverged: int
    worse_diverged: int

    def columns(self) -> dict[str, object]:
        """Return the comparison as columns of a table."""
        return {
            "seeds": self.seeds,
            "difference": self.difference.estimate,
            "half_width": self.difference.half_width,
            "verdict": self.verdict,
            "p_value": self.p_value,
            "better_diverged": self.better_diverged,
            "worse_diverged": self.worse_diverged,
        }


def paired_comparison(
    better: np.ndarray, worse: np.ndarray, margin: float = 0.0
) -> PairedComparison:
    """Compare the losses of two methods, paired by seed; the loss of a diverged run is infinite.

    Without diverged runs the verdict is that of the mean difference's 95 % interval, and the
    p-value that of the paired t-test. Where runs diverged there is no interval: the verdict needs
    two pairs or more, all strictly one way, a diverged run being worse than any that did not, and
    the p-value is that of the sign test. Pairs in which both diverged do not count for the
    difference.
    """
    diverged = int(np.isinf(better).sum()), int(np.isinf(worse).sum())
    both = np.isinf(better) & np.isinf(worse)
    differences = np.subtract(worse, better, out=np.zeros(len(better)), where=~both)
    if any(diverged):
        decisive = differences[~both].tolist()
        difference = Interval(sum(decisive) / len(decisive) if decisive else math.nan)
        signs = set(np.sign(differences).tolist())
        verdict = {1.0: Verdict.HOLDS, -1.0: Verdict.CONTRADICTED}.get(
            signs.pop() if len(signs) == 1 < len(better) else 0.0, Verdict.UNDECIDED
        )
        decided = verdict is not Verdict.UNDECIDED
        p_value = 0.5 ** (len(differences) - 1) if decided else 1.0
    else:
        difference = mean_interval(differences)
        verdict = difference.above(0.0, margin)
        p_value = t_test(differences)
    return PairedComparison(len(better), difference, verdict, p_value, *diverged)


def t_test(values: np.ndarray) -> float:
    """Return the two-sided p-value of Student's t-test that the mean is zero.

    It is NaN unless there are two values or more, all finite.
    """
    from scipy.stats import t

    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        return math.nan
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(count)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * t.sf(abs(mean) / error, count - 1))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return the p-values corrected for their number by Holm's step-down method (Holm 1979).

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order, count = np.argsort(p_values), len(p_values)
    stepped = np.maximum.accumulate((count - np.arange(count)) * p_values[order])
    corrected = np.empty(count)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def _mean_and_half_width(values: np.ndarray) -> tuple[float, float]:
    from scipy.special import stdtrit  # scipy.stats takes a second to load

    count = len(values)
    mean = float(np.mean(values)) if count else math.nan
    if count < 2 or not np.isfinite(values).all():
        return mean, math.nan
    quantile = stdtrit(count - 1, (1 + CONFIDENCE) / 2)
    return mean, float(quantile * np.std(values, ddof=1) / math.sqrt(count))
