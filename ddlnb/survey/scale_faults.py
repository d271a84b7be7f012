"""Notebook scale_faults: how often large jobs fail, and what is left of their time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.figures.style import DARK, GREY, METHOD_COLOURS, PALETTE, POINT, note, styled
from ddlnb.parallelism.goodput.compare import (
    checkpoint_intervals as checkpoint_intervals,
    goodput_sentences,
    goodput_table as goodput_table,
    named_intervals as named_intervals,
)
from ddlnb.parallelism.goodput.failures import (
    FailureRate,
    FailureRecord,
    daly_interval,
    failure_records,
    fit_failure_rate,
    in_hours,
    published_failures,
    useful_share,
)
from ddlnb.parallelism.goodput.simulate import Job, fit_slow_downs, published_quantiles
from ddlnb.registry import several
from ddlnb.survey.items import Findings, Rows, findings, tabled

PERCENT = 100.0


@tabled()
def left_out_failures() -> Rows:
    """Return every published rate beside the forecast of a fit that never saw its source.

    Hours between failures: ``published``, ``forecast`` with ``low`` and ``high`` (90 %), and two
    trivial forecasts: ``nearest``, the source with the nearest number of GPUs, and ``mean``, the
    mean of the hours of all others. Projected rates are tested as well, by a fit without their
    source.
    """
    records = failure_records()
    for one in records:
        family = one.source.partition(",")[0]
        others = [each for each in records if each.source.partition(",")[0] != family]
        found = in_hours(fit_failure_rate(others).mean_time_to_failure(one.gpus))
        nearest = min(others, key=lambda each: abs(math.log(each.gpus / one.gpus)))
        yield {
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


def failure_findings(rows: pd.DataFrame) -> Findings:
    """Return how far off left-out rates are beside trivial forecasts, and what stragglers waste.

    Rates that are projected, and not observed, do not count.
    """
    seen = rows[~rows["projected"].astype(bool)]

    def factor(column: str) -> float:
        return float(np.exp(np.abs(np.log(seen[column] / seen["published"])).median()))

    inside = seen["published"].between(seen["low"], seen["high"]).sum()
    wide = (seen["high"] / seen["low"]).median()
    slow = fit_slow_downs()
    quantities = published_failures().set_index("quantity")["value"]
    published = float(quantities["GPU-hours wasted by stragglers"])
    return findings(
        f"Forecasts of published times between failures, left out of the fit, are off by a factor "
        f"of {factor('forecast'):.2f} (median of {len(seen)}); those of the nearest job by "
        f"{factor('nearest'):.2f}, their mean by {factor('mean'):.2f}.",
        f"{inside} of {len(seen)} lie in their 90 % intervals, of which half have ends that differ "
        f"by a factor of {wide:.1f} or more: clusters differ.",
        f"Stragglers: a distribution fitted to {len(published_quantiles())} published shares of "
        f"jobs wastes {slow.mean_waste:.1%} of the time on average; published are "
        f"{published:.1f} % of the GPU hours, which the fit did not see.",
    )


def effective_time(record: FailureRecord, restart_minutes: Sequence[float]) -> pd.DataFrame:
    """Return the share of time that is work, as `minutes` of restarting allow, for one record.

    Checkpoints stop training as those of a `Job` do, at Daly's interval; stragglers and waiting for
    nodes are not counted.
    """
    checkpoint = Job.checkpoint_seconds
    interval = daly_interval(checkpoint, record.seconds_between)
    rows = [
        (minutes, useful_share(interval, checkpoint, record.seconds_between, 60 * minutes))
        for minutes in several(restart_minutes)
    ]
    return pd.DataFrame(rows, columns=["minutes", "share"])


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
    """Return jobs of these sizes: without spares, elastic, and with a share of spare nodes.

    Raises InputError unless every size has the GPUs of one copy of the model.
    """
    sizes, copies = several(gpus), several(replicas)
    require(
        len(sizes) == len(copies),
        f"gpus {sizes} and replicas {copies} are unlike many; give every job the GPUs of one copy "
        f"of its model",
    )
    jobs = []
    for count, replica in zip(sizes, copies, strict=True):
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
    first = {job.gpus: job for job in reversed(jobs)}
    return findings(
        *(
            sentence
            for gpus, rows in table.groupby("gpus", sort=False)
            for sentence in goodput_sentences(first[gpus], rows)
        )
    )


HOUR = 3600.0


@styled
def checkpoint_curve(rows: pd.DataFrame, named: dict[str, float]) -> plt.Figure:
    """The useful share of time by the work between two checkpoints, simulated and by formula.

    ``rows`` are those of `checkpoint_intervals`, ``named`` the intervals of Young and Daly, in
    seconds.
    """
    figure, ax = plt.subplots(figsize=(7, 3.6))
    minutes = rows["interval_seconds"] / 60
    ax.plot(minutes, 100 * rows["formula"], color=DARK, label="closed form (Daly, eq. 13)")
    ax.plot(
        minutes,
        100 * rows["simulated"],
        marker="o",
        color=METHOD_COLOURS["MG-WFBP"],
        label="simulated",
        **POINT,
    )
    for place, (name, seconds) in enumerate(named.items()):  # one above the other: they are near
        ends = {"ymin": place / len(named), "ymax": (place + 1) / len(named)}
        label = f"{name}: {seconds / 60:.2f} minutes"
        ax.axvline(seconds / 60, **ends, color=PALETTE[place], linewidth=2, label=label)
    ax.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 60, 120]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set(
        xlim=(minutes.min() * 0.9, minutes.max() * 1.1),
        xlabel="work between two checkpoints (minutes)",
        ylabel="useful time (%)",
    )
    ax.legend()
    return note(figure, "source: simulated, and computed")


@styled
def failure_times(records: Sequence[FailureRecord], rate: FailureRate) -> plt.Figure:
    """The mean time between failures of published jobs by their GPUs, and one rate for them all.

    Open marks are projections of their sources, which are not fitted. The band holds 90 % of new
    clusters.
    """
    figure, ax = plt.subplots(figsize=(7.5, 4.2))
    gpus = np.geomspace(256, 200_000, 60)
    found = [rate.mean_time_to_failure(round(count)) for count in gpus]
    ax.fill_between(
        gpus,
        [one.low / HOUR for one in found],
        [one.high / HOUR for one in found],
        color=GREY,
        alpha=0.25,
        label="90 % of new clusters",
    )
    ax.plot(gpus, [one.estimate / HOUR for one in found], color=DARK, label="fitted rate")
    colours: dict[str, str] = {}
    for one in records:
        source = one.source.partition(",")[0]
        label = None if source in colours else source
        colour = colours.setdefault(source, list(METHOD_COLOURS.values())[len(colours)])
        ax.plot(
            [one.gpus],
            [one.seconds_between / HOUR],
            marker="o",
            linestyle="none",
            color=colour,
            markerfacecolor="white" if one.is_projected else colour,
            label=label,
        )
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([1000, 10_000, 100_000], ["1,000", "10,000", "100,000"])
    ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    ax.set(xlabel="GPUs of the job", ylabel="mean time between failures (hours)")
    ax.legend(ncols=2, fontsize=8)
    return note(figure, "source: published, and fitted; open marks: projected by their source")
