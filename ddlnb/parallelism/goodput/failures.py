"""How often a job of so many GPUs fails, and how often to write a checkpoint because of it.

Failures are taken as independent, so that the mean time to failure of a job is that of a GPU over
the number of its GPUs. Clusters differ in their rate by more than chance: the logarithm of the rate
is normal between them. Both numbers are fitted to the published rates, each source counting once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize_scalar

from ddlnb.calibration.statistics import Interval
from ddlnb.errors import ResultsError, require, require_positive, require_whole
from ddlnb.files import PUBLISHED
from ddlnb.results.schema import Column, Kind, Schema

PATH = PUBLISHED / "failures_stragglers.csv"
HOUR, DAY = 3600.0, 86400.0
MONTH_DAYS = 30.4
GPUS_PER_NODE = 8  # of the clusters of the table
SCHEMA = Schema(
    (
        Column("source", Kind.NAME),
        Column("source_url", Kind.NAME),
        Column("quantity", Kind.NAME),
        Column("value", Kind.POSITIVE),
        Column("unit", Kind.NAME),
        Column("scale", Kind.TEXT),
        Column("notes", Kind.TEXT),
    )
)


@dataclass(frozen=True)
class FailureRecord:
    """How often a job of some GPUs was interrupted: seconds between failures, and how it is known.

    ``count`` is the number of failures behind it, None where the source gives a rate alone.
    ``is_projected`` marks what the source extrapolated: it tests a model, and is not fitted.
    """

    source: str
    gpus: int
    seconds_between: float
    count: int | None
    is_projected: bool = False

    @property
    def per_gpu_second(self) -> float:
        """Failures per GPU and second."""
        return 1.0 / (self.seconds_between * self.gpus)


def failure_records() -> list[FailureRecord]:
    """Return the published rates of failures, the interruptions of one job added up."""
    rows = published_failures()
    interruptions = rows[rows["quantity"].str.startswith("unexpected interruptions")]
    count = int(interruptions["value"].sum())
    days = _number(interruptions["unit"].iloc[0], r"in (\d+) days")
    llama = FailureRecord("Llama 3", 16384, days * DAY / count, count)
    rsc = "Revisiting Reliability"
    return [
        llama,
        *(
            FailureRecord(f"{rsc}, {name}", gpus, 1000 * DAY / (rate * gpus / GPUS_PER_NODE), None)
            for name, gpus, rate in (
                ("RSC-1", 16384, _value(rows, "node failure rate RSC-1")),
                ("RSC-2", 8192, _value(rows, "node failure rate RSC-2")),
            )
        ),
        *(
            FailureRecord(
                f"{rsc}, job of {gpus} GPUs",
                gpus,
                _value(rows, f"MTTF of a {gpus}-GPU job") * HOUR,
                None,
                is_projected=gpus > 1024,
            )
            for gpus in (1024, 16384, 131072)
        ),
        FailureRecord(
            "OPT-175B",
            992,
            2 * MONTH_DAYS * DAY / _value(rows, "restarts by hardware failures"),
            int(_value(rows, "restarts by hardware failures")),
        ),
        FailureRecord("BLOOM", 384, 7 * DAY / _value(rows, "GPU failures"), None),
        FailureRecord("Acme", 1000, _value(rows, "interval between failures") * DAY, None),
    ]


def hardware_share() -> float:
    """Return the share of Llama 3's interruptions that took a node out: not software, not unknown.

    Planned and unplanned maintenance take a node out as well.
    """
    rows = published_failures()
    rows = rows[rows["quantity"].str.startswith("unexpected interruptions")]
    stays = rows["notes"].isin(["Dependency", "Unknown"])
    return float(rows.loc[~stays, "value"].sum() / rows["value"].sum())


@cache
def published_failures() -> pd.DataFrame:
    """Return the table as published; see data/published/README.md for its sources."""
    return SCHEMA.read(PATH)


def _value(rows: pd.DataFrame, quantity: str) -> float:
    found = rows.loc[rows["quantity"] == quantity, "value"]
    if len(found) != 1:
        raise ResultsError(f"{PATH} has {len(found)} rows of {quantity!r}; it must have one")
    return float(found.iloc[0])


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise ResultsError(f"{PATH} says {text!r}, without the number of {pattern!r}")
    return float(found.group(1))


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
        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.records - 1))
        factor = math.exp(quantile * self.spread * math.sqrt(1 + 1 / self.records))
        return Interval(seconds, seconds / factor, seconds * factor)

    @classmethod
    def seen(cls, mtbf: float, gpus: int) -> FailureRate:
        """Return the rate of a job on so many GPUs with these seconds between failures: no spread.

        >>> FailureRate.seen(3600.0, 100).mean_time_to_failure(1000).low
        360.0
        """
        require_whole(gpus=gpus)
        require_positive(mtbf=mtbf)
        return cls(1 / (mtbf * gpus), spread=0.0, records=2)  # the fewest that have a Student t

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
    used = [
        one for one in (failure_records() if records is None else records) if not one.is_projected
    ]
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


# Symbols: C seconds to write a checkpoint, M mean time to failure, R seconds to detect a failure
# and to start again, tau seconds of work between checkpoints.


def young_interval(checkpoint_seconds: float, mean_time_to_failure: float) -> float:
    """Return Young's interval, sqrt(2 C M), in seconds of work (CACM 17(9), 1974).

    >>> round(young_interval(60.0, 7200.0), 1)
    929.5
    """
    require_positive(
        checkpoint_seconds=checkpoint_seconds, mean_time_to_failure=mean_time_to_failure
    )
    return math.sqrt(2 * checkpoint_seconds * mean_time_to_failure)


def daly_interval(checkpoint_seconds: float, mean_time_to_failure: float) -> float:
    """Return Daly's interval of higher order, in seconds of work (FGCS 22(3), 2006, eq. 37).

    It is sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C for C < 2M, else M.
    """
    require_positive(mean_time_to_failure=mean_time_to_failure)
    ratio = checkpoint_seconds / (2 * mean_time_to_failure)
    if ratio >= 1:
        return mean_time_to_failure
    first = young_interval(checkpoint_seconds, mean_time_to_failure)
    return first * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def useful_share(
    interval: float, checkpoint_seconds: float, mean_time_to_failure: float, restart_seconds: float
) -> float:
    """Return the share of time that is work which is kept, for failures at a constant rate.

    A segment of work with its checkpoint takes M e^(R/M) (e^((tau + C)/M) - 1) on average, as a
    failure may come while it is redone or while the job restarts (Daly, eq. 13).

    >>> round(useful_share(930.0, 60.0, 7200.0, 300.0), 3)
    0.841
    """
    require(
        interval > 0 and checkpoint_seconds >= 0 and restart_seconds >= 0,
        f"interval {interval!r} must be positive, and seconds of checkpoints "
        f"{checkpoint_seconds!r} and restarts {restart_seconds!r} not negative",
    )
    require_positive(mean_time_to_failure=mean_time_to_failure)
    exponent = (interval + checkpoint_seconds) / mean_time_to_failure
    if max(exponent, restart_seconds / mean_time_to_failure) > math.log(1e12):
        return 0.0  # a segment never ends
    segment = mean_time_to_failure * math.exp(restart_seconds / mean_time_to_failure)
    return interval / (segment * math.expm1(exponent))


def best_interval(
    checkpoint_seconds: float, mean_time_to_failure: float, restart_seconds: float
) -> float:
    """Return the interval that leaves most time for work, found on the closed form."""
    start = daly_interval(checkpoint_seconds, mean_time_to_failure)
    found = minimize_scalar(
        lambda log: (
            -useful_share(math.exp(log), checkpoint_seconds, mean_time_to_failure, restart_seconds)
        ),
        bounds=(math.log(start / 20), math.log(start * 20)),
        method="bounded",
    )
    return math.exp(float(found.x))
