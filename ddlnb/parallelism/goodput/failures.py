"""How often a job of so many GPUs fails: one rate per GPU, which differs between clusters.

Failures are taken as independent, so that the mean time to failure of a job is that of a GPU over
the number of its GPUs. Clusters differ in their rate by more than chance: the logarithm of the rate
is normal between them. Both numbers are fitted to the published rates, each source counting once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ddlnb.errors import require, require_whole
from ddlnb.parallelism.goodput.records import HOUR, FailureRecord, failure_records
from ddlnb.results.statistics import Interval

CONFIDENCE = 0.9


@dataclass(frozen=True)
class FailureRate:
    """The rate of failures per GPU and second: median over clusters, and how they spread.

    ``spread`` is the standard deviation of its logarithm between clusters, ``records`` the number
    of sources behind it.
    """

    per_gpu_second: float
    spread: float
    records: int

    def mean_time_to_failure(self, gpus: int) -> Interval:
        """Return the seconds between failures of a job, with a 90 % interval for a new cluster.

        The interval is a Student t of the logarithm, so that few sources make it wide.

        >>> rate = FailureRate(1e-8, 0.0, 5)
        >>> round(rate.mean_time_to_failure(1000).estimate)
        100000
        """
        require_whole(gpus=gpus)
        seconds = 1.0 / (self.per_gpu_second * gpus)
        factor = math.exp(self._reach())
        return Interval(seconds, seconds / factor, seconds * factor)

    def _reach(self) -> float:
        quantile = stats.t.ppf((1 + CONFIDENCE) / 2, self.records - 1)
        return float(quantile) * self.spread * math.sqrt(1 + 1 / self.records)

    def draws(self, count: int, generator: np.random.Generator) -> NDArray[np.floating]:
        """Return rates per GPU and second of so many clusters that nobody has seen."""
        wide = self.spread * math.sqrt(1 + 1 / self.records)
        drawn = generator.standard_t(self.records - 1, count)
        return self.per_gpu_second * np.exp(wide * drawn)


def fit_failure_rate(records: Sequence[FailureRecord] | None = None) -> FailureRate:
    """Return the rate that explains the published ones; projected ones are left out.

    A source that gives several rates, of its clusters and its jobs, counts as one: their geometric
    mean. Raises InputError for fewer than three sources, of which no spread can be told.
    """
    used = [one for one in records or failure_records() if not one.is_projected]
    by_source: dict[str, list[float]] = {}
    for one in used:
        by_source.setdefault(one.source.partition(",")[0], []).append(math.log(one.per_gpu_second))
    require(
        len(by_source) >= 3,
        f"{len(by_source)} sources of failures are too few to tell how clusters differ; give three",
    )
    logs = np.array([np.mean(rates) for rates in by_source.values()])
    within = np.concatenate([np.array(rates) for rates in by_source.values()])
    return FailureRate(
        float(np.exp(logs.mean())), float(np.std(within - logs.mean(), ddof=1)), len(logs)
    )


def in_hours(interval: Interval) -> Interval:
    """Return an interval of seconds in hours."""
    return Interval(*(value / HOUR for value in interval))
