"""How much stragglers slow a job down: a distribution fitted to published shares of jobs.

The slow-down S of a job is its time over that without stragglers; S - 1 is taken as log-normal. The
source gives waste, 1 - 1/S, for shares of jobs (Lin et al., arXiv 2505.05713).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ddlnb.parallelism.goodput.records import published_failures

PERCENT = 100.0


@dataclass(frozen=True)
class SlowDowns:
    """A log-normal distribution of S - 1: the mean and the deviation of its logarithm."""

    mean: float
    deviation: float

    def draws(self, count: int, generator: np.random.Generator) -> NDArray[np.floating]:
        """Return the slow-down of so many jobs, each at least 1."""
        return 1 + generator.lognormal(self.mean, self.deviation, count)

    def waste(self, share: float) -> float:
        """Return the waste, 1 - 1/S, that this share of jobs stays below."""
        slow = np.exp(self.mean + self.deviation * stats.norm.ppf(share))
        return float(slow / (1 + slow))

    @property
    def mean_waste(self) -> float:
        """The waste of a job on average, to be compared with the published share of GPU hours."""
        shares = (np.arange(2000) + 0.5) / 2000
        return float(np.mean([self.waste(share) for share in shares]))


@cache
def published_quantiles() -> dict[float, float]:
    """Return the waste that shares of jobs stay below: 57.5 %, 90 % and 99 % of them."""
    rows = published_failures().set_index("quantity")["value"]
    slower = 1 - rows["jobs at least 10 % slower by stragglers"] / PERCENT
    return {
        float(slower): 1 - 1 / 1.1,
        0.9: rows["GPU-hours wasted, worst 10 % of jobs"] / PERCENT,
        0.99: rows["GPU-hours wasted, worst 1 % of jobs"] / PERCENT,
    }


def fit_slow_downs() -> SlowDowns:
    """Return the log-normal whose quantiles are nearest to the published ones, in the logarithm."""
    shares = np.array(list(published_quantiles()))
    wastes = np.array(list(published_quantiles().values()))
    logs = np.log(wastes / (1 - wastes))  # of S - 1
    deviation, mean = np.polyfit(stats.norm.ppf(shares), logs, 1)
    return SlowDowns(float(mean), float(deviation))
