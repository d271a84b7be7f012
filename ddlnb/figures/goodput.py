"""Figures of time lost on large clusters: where it goes, checkpoint intervals, failure rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ddlnb.figures.colours import DARK, GREY, METHOD_COLOURS
from ddlnb.figures.style import POINT, note, styled

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.parallelism.goodput.failures import FailureRate, FailureRecord

HOUR = 3600.0
PARTS = {
    "useful": "#009E73",
    "slowed": "#E69F00",
    "shrunk": "#F0E442",
    "checkpoints": "#56B4E9",
    "redone": "#D55E00",
    "restarts": "#CC79A7",
    "waiting": "#999999",
}
WORDS = {
    "useful": "useful",
    "slowed": "stragglers",
    "shrunk": "missing replicas",
    "checkpoints": "checkpoints",
    "redone": "work redone",
    "restarts": "restarts",
    "waiting": "waiting for nodes",
}


@styled
def time_spent(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Where the time of a job goes in a month: mean shares, with the interval of what is useful.

    ``table`` is that of `goodput_table`, ``labels`` name its rows. The line is the 90 % interval of
    the goodput over clusters that differ in their rate of failures and in their stragglers.
    """
    figure, ax = plt.subplots(figsize=(9, 1.6 + 0.42 * len(table)))
    left = np.zeros(len(table))
    places = np.arange(len(table))
    for part, colour in PARTS.items():
        shares = 100 * table[part].to_numpy()
        if shares.max() > 0.05:
            ax.barh(places, shares, left=left, color=colour, label=WORDS[part])
        left += shares
    ax.hlines(places, 100 * table["low"], 100 * table["high"], color="black", linewidth=1.2)
    ax.plot(100 * table["goodput"], places, marker="o", color="black", **POINT)
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the time of a month (%)")
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    note(figure, "source: simulated; point and line: median goodput and 90 % of clusters")
    return figure


@styled
def checkpoint_curve(rows: pd.DataFrame, named: dict[str, float]) -> Figure:
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
    for (name, seconds), style in zip(named.items(), ("--", ":", "-."), strict=False):
        ax.axvline(seconds / 60, color=GREY, linestyle=style, linewidth=1, label=name)
    ax.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 60, 120]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_xlim(minutes.min() * 0.9, minutes.max() * 1.1)
    ax.set_xlabel("work between two checkpoints (minutes)")
    ax.set_ylabel("useful time (%)")
    ax.legend()
    note(figure, "source: simulated, and computed")
    return figure


@styled
def failure_times(records: Sequence[FailureRecord], rate: FailureRate) -> Figure:
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
    sources = list(dict.fromkeys(one.source.partition(",")[0] for one in records))
    colours = dict(zip(sources, list(METHOD_COLOURS.values()), strict=False))
    shown: set[str] = set()
    for one in records:
        source = one.source.partition(",")[0]
        ax.plot(
            [one.gpus],
            [one.seconds_between / HOUR],
            marker="o",
            linestyle="none",
            color=colours[source],
            markerfacecolor="white" if one.is_projected else colours[source],
            label=source if source not in shown else None,
        )
        shown.add(source)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([1000, 10_000, 100_000], ["1,000", "10,000", "100,000"])
    ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    ax.set_xlabel("GPUs of the job")
    ax.set_ylabel("mean time between failures (hours)")
    ax.legend(ncols=2, fontsize=8)
    note(figure, "source: published, and fitted; open marks: projected by their source")
    return figure
