"""Goodput over a stretch of time: a job that fails, restarts, waits for nodes, and is slowed down.

Failures come at a constant rate for each GPU in use, also while the job restarts. A share of them
takes a node out until it is repaired. While no spare stands in for it the job waits, or goes on
without the replicas that it cannot fill (elastic training).

The slow-down S of a job by stragglers is its time over that without them; S - 1 is taken as
log-normal. The source gives waste, 1 - 1/S, for shares of jobs (Lin et al., arXiv 2505.05713).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from ddlnb.calibration.statistics import Interval
from ddlnb.errors import require, require_positive, require_whole
from ddlnb.parallelism.goodput.failures import (
    DAY,
    HOUR,
    FailureRate,
    daly_interval,
    fit_failure_rate,
    hardware_share,
    published_failures,
)

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


DRAWS = 200
MONTH = 30 * DAY
MOST_FAILURES = 2_000_000  # a stated budget over all draws: some ten seconds


@dataclass(frozen=True)
class Job:
    """A job on a large cluster, in GPUs and seconds.

    ``replica_gpus`` is the smallest part that elastic training can leave out: the GPUs of one copy
    of the model. ``checkpoint_seconds`` are those in which training stands still for a checkpoint:
    80 GB of a GPU's memory go to its host over PCIe at 20 GB/s, and are written beside training;
    ``restart_seconds`` those from a failure to the first new step: detection, scheduling, loading.
    ``interval_seconds`` is the work between checkpoints, by default Daly's. Raises InputError for
    what no job can be.

    >>> Job(gpus=1024).nodes
    128
    """

    gpus: int
    gpus_per_node: int = 8
    replica_gpus: int = 64
    checkpoint_seconds: float = 4.0
    restart_seconds: float = 600.0
    repair_seconds: float = 24 * HOUR
    spare_nodes: int = 0
    elastic: bool = False
    interval_seconds: float = math.nan

    def __post_init__(self) -> None:
        require_whole(
            gpus=self.gpus, gpus_per_node=self.gpus_per_node, replica_gpus=self.replica_gpus
        )
        require_whole(0, spare_nodes=self.spare_nodes)
        require(
            self.gpus % self.replica_gpus == 0,
            f"{self.gpus} GPUs are no whole number of replicas of {self.replica_gpus}; take a "
            f"multiple of {self.replica_gpus}, or replicas of a number of GPUs that divides "
            f"{self.gpus} (replica_gpus, --replica)",
        )
        for name in ("checkpoint_seconds", "restart_seconds", "repair_seconds"):
            value = getattr(self, name)
            require(
                value >= 0 and math.isfinite(value),
                f"{name} {value!r} must be a number of seconds from 0",
            )
        if not math.isnan(self.interval_seconds):  # NaN: Daly's
            require_positive(interval_seconds=self.interval_seconds)
        else:
            require(
                self.checkpoint_seconds > 0,
                f"checkpoint_seconds {self.checkpoint_seconds!r} would be written without end by "
                f"Daly's interval; give the interval (interval_seconds, --interval), or seconds "
                f"above 0",
            )

    @property
    def nodes(self) -> int:
        """Nodes that the job runs on when nothing is broken."""
        return math.ceil(self.gpus / self.gpus_per_node)

    def share_without(self, missing: int) -> float:
        """Return the speed of the job, over its full one, while so many nodes are missing."""
        if missing <= 0:
            return 1.0
        if not self.elastic:
            return 0.0
        replicas = self.gpus // self.replica_gpus
        lost = math.ceil(missing * self.gpus_per_node / self.replica_gpus)
        return max(0.0, (replicas - lost) / replicas)


@dataclass(frozen=True)
class TimeSpent:
    """Shares of the time of a job, which add up to one.

    ``useful`` is work at full speed that was kept; ``slowed`` what stragglers took, ``shrunk`` what
    missing replicas took, ``checkpoints`` their writing, ``redone`` work that failures threw away,
    ``restarts`` and ``waiting`` for nodes the rest.
    """

    useful: float
    slowed: float
    shrunk: float
    checkpoints: float
    redone: float
    restarts: float
    waiting: float

    @property
    def effective(self) -> float:
        """The share in which kept work went on, however slow: what papers publish as effective."""
        return self.useful + self.slowed + self.shrunk


@dataclass(frozen=True)
class Goodput:
    """The goodput of a job with its 90 % interval, where the rest went, and what was drawn.

    ``goodput`` is useful time over all time, ``effective`` also counts what stragglers and missing
    replicas took; ``failures`` how many came, and ``spent`` the mean shares.
    """

    job: Job
    goodput: Interval
    effective: Interval
    failures: Interval
    spent: TimeSpent
    draws: tuple[TimeSpent, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per draw, with the shares as columns."""
        return pd.DataFrame([asdict(one) for one in self.draws])


def goodput(
    job: Job,
    *,
    seconds: float = MONTH,
    draws: int = DRAWS,
    seed: int = 0,
    rate: FailureRate | None = None,
    slow_downs: SlowDowns | None = None,
) -> Goodput:
    """Return the goodput of a job over some time, by default a month.

    Every draw is a cluster of its own: another rate of failures, another slow-down by stragglers,
    other moments. ``rate`` and ``slow_downs`` are by default those fitted to published jobs. Raises
    InputError for more failures than MOST_FAILURES.

    >>> found = goodput(Job(gpus=16384, replica_gpus=128), draws=20)
    >>> 0 < found.goodput.low < found.goodput.estimate < found.goodput.high < 1
    True
    """
    require(
        isinstance(job, Job),
        f"job {job!r} is no Job; give one, such as ddlnb.parallelism.Job(gpus=1024)",
    )
    require_whole(2, draws=draws)
    require_whole(0, seed=seed)
    require_positive(seconds=seconds)
    rate = rate or fit_failure_rate()
    slow_downs = slow_downs or fit_slow_downs()
    generator = np.random.default_rng(seed)
    rates = rate.draws(draws, generator) * job.gpus
    expected = float(rates.sum()) * seconds
    require(
        expected <= MOST_FAILURES,
        f"{draws} draws of {job.gpus:,} GPUs would see {expected:,.0f} failures, and more than "
        f"{MOST_FAILURES:,} take minutes; ask for fewer draws, days or GPUs",
    )
    slowed = slow_downs.draws(draws, generator)
    found = [
        play(job, float(one), seconds, float(slow), generator)
        for one, slow in zip(rates, slowed, strict=True)
    ]
    spent, failures = zip(*found, strict=True)
    means = {
        field.name: float(np.mean([getattr(one, field.name) for one in spent]))
        for field in fields(TimeSpent)
    }
    return Goodput(
        job,
        _interval([one.useful for one in spent]),
        _interval([one.effective for one in spent]),
        _interval(failures),
        TimeSpent(**means),
        spent,
    )


def play(
    job: Job,
    per_second: float,
    seconds: float,
    slow_down: float,
    generator: np.random.Generator,
    *,
    cold: bool = False,
) -> tuple[TimeSpent, int]:
    """Return how one job spent its time, and how often it failed.

    Between two failures the job restarts, and then works in segments, each closed by a checkpoint.
    What a failure interrupts is redone. Repaired nodes come back at the next restart. The job
    restarts for them at once if it waits for them, or if what they add until its next expected
    failure is more than a restart costs; nothing is redone then. A ``cold`` job begins with a
    restart.
    """
    interval = job.interval_seconds
    if math.isnan(interval):
        interval = daly_interval(job.checkpoint_seconds, 1 / per_second) if per_second else seconds
    segment = interval + job.checkpoint_seconds
    out_share = hardware_share()
    taken = dict.fromkeys((field.name for field in fields(TimeSpent)), 0.0)
    repaired: list[float] = []  # when nodes come back, a heap
    now, failures, restart = 0.0, 0, job.restart_seconds if cold else 0.0
    while now < seconds:
        while repaired and repaired[0] <= now:
            heapq.heappop(repaired)
        speed = job.share_without(len(repaired) - job.spare_nodes)
        if speed == 0.0:
            until = min(repaired[0], seconds)
            taken["waiting"] += until - now
            now = until
            continue
        life = generator.exponential(1 / per_second) if per_second else math.inf
        stop = min(now + life, seconds)
        returns = max(_worth_a_restart(job, repaired, per_second), now + restart)
        comes_back = returns < stop
        stop = min(returns, stop)
        restarting = min(restart, stop - now)
        working = stop - now - restarting
        segments = math.floor(working / segment)
        rest = working - segments * segment
        is_over = stop >= seconds or comes_back  # no failure: what was done counts
        kept = segments * interval + (min(rest, interval) if is_over else 0.0)
        useful = kept * speed / slow_down
        taken["useful"] += useful
        taken["slowed"] += kept * speed - useful
        taken["shrunk"] += kept * (1 - speed)
        taken["restarts"] += restarting
        taken["checkpoints"] += segments * job.checkpoint_seconds
        if is_over:
            taken["checkpoints"] += max(0.0, rest - interval)
        else:
            taken["redone"] += rest
            failures += 1
            if generator.random() < out_share:
                heapq.heappush(repaired, stop + job.repair_seconds)
        now, restart = stop, job.restart_seconds
    return TimeSpent(**{name: value / seconds for name, value in taken.items()}), failures


def _worth_a_restart(job: Job, repaired: Sequence[float], per_second: float) -> float:
    """Return when so many nodes are back that they gain more than a restart costs."""
    out = len(repaired) - job.spare_nodes
    least = job.share_without(out) + per_second * job.restart_seconds
    back = (at for n, at in enumerate(sorted(repaired), 1) if job.share_without(out - n) > least)
    return next(back, math.inf)


def _interval(values: Sequence[float]) -> Interval:
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    return Interval(float(middle), float(low), float(high))
