"""What to do about failures: checkpoint intervals, spare nodes, elastic training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.parallelism.goodput.failures import (
    DAY,
    FailureRate,
    best_interval,
    daly_interval,
    fit_failure_rate,
    in_hours,
    useful_share,
    young_interval,
)
from ddlnb.parallelism.goodput.simulate import DRAWS, MONTH, Job, goodput, play
from ddlnb.registry import several
from ddlnb.units import counted, digits


def goodput_table(
    jobs: Sequence[Job],
    *,
    seconds: float = MONTH,
    draws: int = DRAWS,
    seed: int = 0,
    rate: FailureRate | None = None,
) -> pd.DataFrame:
    """Return a row per job: goodput with its interval, failures, and where the time went."""
    found = [goodput(job, seconds=seconds, draws=draws, seed=seed, rate=rate) for job in jobs]
    return pd.DataFrame(
        {
            **asdict(one.job),
            "nodes": one.job.nodes,
            "goodput": one.goodput.estimate,
            "low": one.goodput.low,
            "high": one.goodput.high,
            "effective": one.effective.estimate,
            "failures": one.failures.estimate,
            **asdict(one.spent),
        }
        for one in found
    )


def spares_and_elastic(job: Job, spares: int | Sequence[int], **options: Any) -> pd.DataFrame:
    """Return the goodput of a job with so many spare nodes, waiting for nodes or elastic.

    ``per_node`` is the goodput over all nodes that are paid for, the spare ones as well: what
    elastic training and spares have to be compared by.
    """
    jobs = [
        replace(job, spare_nodes=count, elastic=elastic)
        for count in several(spares)
        for elastic in (False, True)
    ]
    table = goodput_table(jobs, **options)
    paid = table["nodes"] + table["spare_nodes"]
    return table.assign(per_node=table["goodput"] * table["nodes"] / paid)


def checkpoint_intervals(
    job: Job,
    intervals: Sequence[float],
    *,
    rate: FailureRate | None = None,
    days: float = 300.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the useful share of time by checkpoint interval, simulated and in closed form.

    Failures come at the median rate, no node is taken out and nothing straggles, so that only
    checkpoints, redone work and restarts cost time. Columns: interval_seconds, simulated, formula.
    """
    per_second = (rate or fit_failure_rate()).per_gpu_second * job.gpus
    alone = replace(job, repair_seconds=0.0)

    def simulated(interval: float) -> float:
        generator = np.random.default_rng(seed)  # the same failures for every interval
        own = replace(alone, interval_seconds=interval)
        spent, _ = play(own, per_second, days * DAY, 1.0, generator)
        return spent.useful

    return pd.DataFrame(
        {
            "interval_seconds": interval,
            "simulated": simulated(interval),
            "formula": useful_share(
                interval, job.checkpoint_seconds, 1 / per_second, job.restart_seconds
            ),
        }
        for interval in intervals
    )


def named_intervals(job: Job, rate: FailureRate | None = None) -> dict[str, float]:
    """Return the intervals by Young, by Daly, and the best one of the closed form, in seconds."""
    mean = 1 / ((rate or fit_failure_rate()).per_gpu_second * job.gpus)
    return {
        "Young": young_interval(job.checkpoint_seconds, mean),
        "Daly": daly_interval(job.checkpoint_seconds, mean),
        "best": best_interval(job.checkpoint_seconds, mean, job.restart_seconds),
    }


LEVEL = 0.005  # of the useful work: less is no difference


def goodput_sentences(job: Job, table: pd.DataFrame, rate: FailureRate | None = None) -> list[str]:
    """Return how often such a job fails, how often to write checkpoints, and what pays.

    ``table`` has rows for several numbers of spare nodes, elastic or not. Goodput is compared over
    all nodes that are paid for, the spare ones as well.
    """
    mean = in_hours((rate or fit_failure_rate()).mean_time_to_failure(job.gpus))
    span = f"{digits(mean.low, 2)} to {digits(mean.high, 3)} on 90 % of clusters"
    often = "as often as you like, for it stops nothing"
    if job.checkpoint_seconds > 0:
        often = f"every {digits(named_intervals(job, rate)['Daly'] / 60, 3)} minutes of work"
    paid = table["goodput"] * table["nodes"] / (table["nodes"] + table["spare_nodes"])
    waits, elastic = paid[~table["elastic"]], paid[table["elastic"]]
    said = [
        f"A job on {counted(job.gpus, 'GPU')} fails every {digits(mean.estimate, 3)} hours "
        f"({'as told' if mean.low == mean.high else span}); write a checkpoint "
        f"{often}.",
    ]
    if len(waits):
        row = table.loc[waits.idxmax()]
        said.append(
            f"Waiting for broken nodes is best with {counted(row['spare_nodes'], 'spare node')}: "
            f"{waits.max():.1%} of what all nodes could do is useful."
        )
    if len(elastic) and len(waits):
        row = table.loc[elastic.idxmax()]
        gain = elastic.max() / waits.max() - 1
        if gain > LEVEL:
            verdict = f"elastic training pays, {gain:.1%} more"
        elif gain < -LEVEL:
            verdict = f"elastic training does not pay, {-gain:.1%} less"
        else:
            verdict = "elastic training gains nothing over them"
        spare = counted(row["spare_nodes"], "spare node")
        said.append(f"With {spare}, {verdict} ({elastic.max():.1%}).")
    return said
