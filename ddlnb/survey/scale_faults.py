"""Notebook scale_faults: how often large jobs fail, and what is left of their time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.parallelism.goodput.checkpoints import daly_interval, useful_share
from ddlnb.parallelism.goodput.compare import (
    checkpoint_intervals,
    goodput_sentences,
    goodput_table,
    named_intervals,
)
from ddlnb.parallelism.goodput.failures import (
    FailureRecord,
    failure_records,
    fit_failure_rate,
    in_hours,
    published_failures,
)
from ddlnb.parallelism.goodput.simulate import Job, fit_slow_downs, published_quantiles
from ddlnb.registry import several
from ddlnb.survey.findings import Findings, findings

if TYPE_CHECKING:
    import pandas as pd


PERCENT = 100.0


def left_out_failures() -> pd.DataFrame:
    """Return every published rate beside the forecast of a fit that never saw its source.

    Hours between failures: ``published``, ``forecast`` with ``low`` and ``high`` (90 %), and two
    trivial forecasts: ``nearest``, the source with the nearest number of GPUs, and ``mean``, the
    mean of the hours of all others. Projected rates are tested as well, by a fit without their
    source.
    """
    import pandas as pd

    records = failure_records()
    rows = []
    for one in records:
        family = one.source.partition(",")[0]
        others = [each for each in records if each.source.partition(",")[0] != family]
        found = in_hours(fit_failure_rate(others).mean_time_to_failure(one.gpus))
        nearest = min(others, key=lambda each: abs(math.log(each.gpus / one.gpus)))
        rows.append(
            {
                "source": one.source,
                "gpus": one.gpus,
                "published": one.seconds_between / 3600,
                "forecast": found.estimate,
                "low": found.low,
                "high": found.high,
                "nearest": nearest.seconds_between / 3600,
                "mean": float(np.mean([each.seconds_between for each in others])) / 3600,
                "projected": one.is_projected,
            }
        )
    return pd.DataFrame(rows)


def failure_findings(rows: pd.DataFrame) -> Findings:
    """Return how far off left-out rates are beside trivial forecasts, and what stragglers waste."""

    def factor(column: str) -> float:
        return float(np.exp(np.abs(np.log(rows[column] / rows["published"])).median()))

    inside = int(((rows["low"] <= rows["published"]) & (rows["published"] <= rows["high"])).sum())
    slow = fit_slow_downs()
    quantities = published_failures().set_index("quantity")["value"]
    published = float(quantities["GPU-hours wasted by stragglers"])
    return findings(
        f"Left out of the fit, published times between failures are off by a factor of "
        f"{factor('forecast'):.2f} (median of {len(rows)}); those of the nearest job by "
        f"{factor('nearest'):.2f}, their mean by {factor('mean'):.2f}.",
        f"{inside} of {len(rows)} lie in their 90 % intervals, which are wide: clusters differ.",
        f"Stragglers: a distribution fitted to {len(published_quantiles())} published shares of "
        f"jobs wastes {slow.mean_waste:.1%} of the time on average; published are "
        f"{published:.1f} % of the GPU hours, which the fit did not see.",
    )


def effective_time(record: FailureRecord, restart_minutes: Sequence[float]) -> pd.DataFrame:
    """Return the share of time that is work, as `minutes` of restarting allow, for one record.

    Checkpoints stop training for 10 seconds, at Daly's interval; stragglers and waiting for nodes
    are not counted.
    """
    import pandas as pd

    checkpoint = 10.0
    interval = daly_interval(checkpoint, record.seconds_between)
    rows = [
        {
            "minutes": minutes,
            "share": useful_share(interval, checkpoint, record.seconds_between, 60 * minutes),
        }
        for minutes in several(restart_minutes)
    ]
    return pd.DataFrame(rows)


def effective_findings(rows: pd.DataFrame, least: float) -> Findings:
    """Return how short restarts must be for a share of effective time, in percent, as published."""
    able = rows[PERCENT * rows["share"] >= least]
    if able.empty:
        return findings(f"No restart of these is short enough for {least:g} % of effective time.")
    return findings(
        f"More than {least:g} % of effective time, as published, needs restarts within about "
        f"{able['minutes'].max():g} minutes; with {rows['minutes'].max():g} minutes "
        f"{rows['share'].min():.0%} are left."
    )


def cases(gpus: Sequence[int], replicas: Sequence[int], spare_share: float) -> list[Job]:
    """Return jobs of these sizes: without spares, elastic, and with a share of spare nodes."""
    jobs = []
    for count, replica in zip(several(gpus), several(replicas), strict=True):
        job = Job(gpus=count, replica_gpus=replica)
        spare = max(1, round(spare_share * job.nodes))
        jobs += [job, replace(job, elastic=True), replace(job, spare_nodes=spare)]
    return jobs


def labels(jobs: Sequence[Job]) -> list[str]:
    """Return a short label for every job."""
    return [
        f"{job.gpus:,} GPUs, " + ("elastic" if job.elastic else f"{job.spare_nodes} spare nodes")
        for job in jobs
    ]


def checkpoint_findings(rows: pd.DataFrame, named: dict[str, float]) -> Findings:
    """Return how close simulated and computed shares are, and the intervals of the formulas."""
    apart = float((rows["simulated"] / rows["formula"] - 1).abs().max())
    best = rows.loc[rows["simulated"].idxmax(), "interval_seconds"] / 60
    said = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in named.items())
    return findings(
        f"Simulated and computed shares differ by {apart:.1%} at most.",
        f"Minutes of work between checkpoints: {said}; of those simulated, {best:.0f} is best.",
    )


def case_findings(jobs: Sequence[Job], table: pd.DataFrame) -> Findings:
    """Return what each size of job should do, by the rows of its cases."""
    said: list[str] = []
    for gpus in dict.fromkeys(job.gpus for job in jobs):
        job = next(one for one in jobs if one.gpus == gpus)
        said += goodput_sentences(job, table[table["gpus"] == gpus])
    return findings(*said)


__all__ = [
    "Job",
    "case_findings",
    "cases",
    "checkpoint_findings",
    "checkpoint_intervals",
    "effective_findings",
    "effective_time",
    "failure_findings",
    "failure_records",
    "fit_failure_rate",
    "goodput_table",
    "labels",
    "left_out_failures",
    "named_intervals",
]
