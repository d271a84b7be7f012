"""Synchronisation: who computes or waits when (Fig. 3, part 1), and how stale gradients are."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.colours import DASHES, METHOD_COLOURS, OTHER_COLOUR, PALETTE, colour_of
from ddlnb.figures.gantt import KIND_COLOURS, WAIT_HATCH
from ddlnb.figures.learning import BAND, QUALITIES, possible
from ddlnb.figures.style import (
    abridged_method,
    beside,
    doubling_axis,
    facets,
    legend,
    legend_line,
    note,
    over_seeds,
    say_source,
    styled,
)
from ddlnb.units import MB, counted

COLOURS = {"compute": KIND_COLOURS["backward"], "wait": KIND_COLOURS["wait"]}


@styled
def synchronisation_timelines(
    activity: pd.DataFrame, until_seconds: float | None = None, source: str = "simulated"
) -> Figure:
    """What every worker of every method does when: compute a gradient, or wait.

    Shown is the time until ``until_seconds``, by default while all have work.

    ``activity`` is an `activity_table` (`ddlnb.training.executors.lockstep`) of one method or
    several. A row is a worker, a bar a gradient; hatched bars are waits for others and for
    messages. A title says how many gradients all workers finished, and the share of their time in
    which they waited.
    """
    require(not activity.empty, "there is no activity to draw")
    last = activity.groupby(["method", "rank"])["stop_seconds"].max()
    until = float(last.min()) if until_seconds is None else until_seconds
    require(until > 0, f"until_seconds {until!r} must be above 0")
    methods = list(activity["method"].unique())
    ranks = sorted(activity["rank"].unique())
    figure, grid = plt.subplots(
        len(methods),
        1,
        figsize=(9.5, 0.9 + len(methods) * (0.42 + 0.2 * len(ranks))),
        sharex=True,
        squeeze=False,
    )
    for ax, method in zip(grid[:, 0], methods, strict=True):
        draw_workers(ax, method, activity[activity["method"] == method], ranks, until)
    grid[-1, 0].set_xlabel("time (s)")
    grid[-1, 0].set_xlim(0, until)
    legend(figure, legend_activity(), "upper right", columns=2)
    note(figure, f"source: {source}")
    return figure


@styled
def staleness_histogram(staleness: pd.DataFrame, source: str = "simulated") -> Figure:
    """The share of pushes with each staleness, a panel per method; dotted lines are means.

    ``staleness`` has the columns method, staleness (updates of other workers that were applied
    since the pushing worker was last answered) and pushes (how many had it).
    """
    shared = {"sharex": True, "sharey": True}
    figure, panels = facets(staleness, "method", width=(1.5, 2.3), height=2.9, **shared)
    for ax, method, part in panels:
        share = part["pushes"] / part["pushes"].sum()
        mean = float((part["staleness"] * share).sum())
        ax.bar(part["staleness"], 100 * share, width=0.9, color=COLOURS["compute"], linewidth=0)
        ax.axvline(mean, color="black", linestyle=":", linewidth=1.2)
        ax.set_title(f"{abridged_method(method)}\nmean {mean:.2g}", fontsize=9)
        ax.grid(visible=False, axis="x")
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel("staleness (updates)")
    panels[0][0].set_ylabel("pushes (%)")
    remark = "staleness: updates of other workers since the pushing one was last answered"
    say_source(figure, source, remark)
    legend(figure, [legend_line("black", "mean", ":")], "upper right")
    return figure


@styled
def waiting_against_bound(waits: pd.DataFrame) -> Figure:
    """Seconds that a worker waits per gradient against the bound s, a line per straggler's law.

    ``waits`` is that of `ddlnb.survey.sec3_1_2_synchronisation`; bands reach from the least to the
    most of its seeds. Bound 0 is a barrier after every iteration.
    """
    require(not waits.empty, "there are no waits to draw")
    figure, ax = plt.subplots(figsize=(6.5, 3.8))
    for number, (law, part) in enumerate(waits.groupby("straggler", sort=False)):
        by_bound = part.groupby("bound")["waiting_seconds"]
        colour = PALETTE[1 + number % (len(PALETTE) - 1)]
        middle = by_bound.mean()
        ax.plot(middle.index, middle, marker="o", markersize=4, color=colour, label=law)
        ax.fill_between(middle.index, by_bound.min(), by_bound.max(), color=colour, alpha=BAND)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="bound s of SSP", ylabel="waiting per gradient (s)")
    ax.legend(title="seconds of a gradient")
    seeds = waits["seed"].nunique()
    say_source(figure, waits, f"mean and range over {seeds} seeds" if seeds > 1 else "one seed")
    return figure


@styled
def throughput_with_a_slow_worker(slowed: pd.DataFrame) -> Figure:
    """Throughput over that without a slow worker, against how many times slower one worker is.

    ``slowed`` are the rows of `slowdowns` of ``ddlnb.survey.sec3_1_2_synchronisation``. The
    broad line is the sum of the workers' rates, if nobody waited.
    """
    require(not slowed.empty, "there are no rows to draw")
    figure, ax = plt.subplots(figsize=(7.5, 4.2))
    handles = []
    others = [name for name in dict.fromkeys(slowed["method"]) if name not in METHOD_COLOURS]
    for method, rows in slowed.groupby("method", sort=False):
        own: dict[str, Any] = {
            "color": colour_of(method),
            "linestyle": "-",
            "marker": "o",
            "markersize": 3.5,
        }
        if method in others:
            number = others.index(method)
            own |= {"color": "black", "linestyle": DASHES[1 + number % 3], "marker": "s"}
        handles += ax.plot(
            rows["factor"], 100 * rows["throughput"], label=abridged_method(str(method)), **own
        )
    bound = slowed.drop_duplicates("factor")
    handles += ax.plot(
        bound["factor"],
        100 * bound["sum_of_rates"],
        color=OTHER_COLOUR,
        linewidth=3,
        zorder=1,
        label="sum of the workers' rates",
    )
    doubling_axis(ax, bound["factor"], lambda factor: f"{factor:g}")
    ax.set_ylim(0, None)
    ax.set(
        xlabel="times that one worker is slower",
        ylabel="throughput (% of that with none)",
    )
    legend(figure, handles)
    say_source(
        figure, slowed, f"{slowed['model'].iloc[0]}, {counted(slowed['workers'].iloc[0], 'worker')}"
    )
    return figure


@styled
def loss_against_traffic(periods: pd.DataFrame) -> Figure:
    """Final test loss and accuracy of local SGD against what a worker sent, a point per period.

    ``periods`` is a `period_table` of its study; bars are its intervals, cut where no accuracy can
    be.
    """
    require(not periods.empty, "there are no periods to draw")
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True)
    megabytes = periods["bytes_sent"] / MB
    for ax, (measure, (label, factor)) in zip(panels, QUALITIES.items(), strict=True):
        half = factor * periods[f"{measure}_half_width"].fillna(0.0)
        y = factor * periods[measure]
        reach = possible(y.to_numpy(float), half.to_numpy(float), measure)
        ax.errorbar(megabytes, y, yerr=reach, marker="o", color=COLOURS["compute"], capsize=2)
        for period, x, height in zip(periods.index, megabytes, y, strict=True):
            beside(ax, x, height, f"H = {period}", xytext=(4, 5), va="baseline")
        doubling_axis(ax, megabytes, lambda x: f"{x:.2g}")
        ax.margins(x=0.12)
        ax.set(xlabel="MB sent by a worker", ylabel=label)
    say_source(figure, periods, over_seeds(int(periods["seeds"].min())))
    return figure


def legend_activity() -> list[Patch]:
    """Return the entries of what workers do in a legend."""
    look: dict[str, Any] = {"facecolor": COLOURS["wait"], "edgecolor": "white", "hatch": WAIT_HATCH}
    return [
        Patch(facecolor=COLOURS["compute"], edgecolor="white", label="one gradient"),
        Patch(**look, label="waits for others or messages"),
    ]


def draw_workers(ax: Axes, method: str, rows: pd.DataFrame, ranks: list[int], until: float) -> None:
    """Draw what the workers of one method do until then, a lane for each."""
    rows = rows[rows["start_seconds"] < until]
    seconds = rows["stop_seconds"].clip(upper=until) - rows["start_seconds"]
    for kind, colour in COLOURS.items():
        for rank in ranks:
            chosen = (rows["kind"] == kind) & (rows["rank"] == rank)
            ax.broken_barh(
                list(zip(rows["start_seconds"][chosen], seconds[chosen], strict=True)),
                (rank - 0.42, 0.84),
                facecolor=colour,
                edgecolor="white",
                linewidth=0.0 if kind == "wait" else 0.8,
                hatch=WAIT_HATCH if kind == "wait" else None,
            )
    done = int(((rows["kind"] == "compute") & (rows["stop_seconds"] <= until)).sum())
    waits = seconds[rows["kind"] == "wait"].sum() / (until * len(ranks))
    ax.set_title(
        f"{abridged_method(method)}: {counted(done, 'gradient')}, waits {100 * waits:.0f} % of the "
        f"time",
        loc="left",
        fontsize=9,
        fontweight="bold",
        pad=3,
    )
    ax.set_yticks(ranks, [f"worker {rank}" for rank in ranks], fontsize=8)
    ax.set_ylim(max(ranks) + 0.6, min(ranks) - 0.6)
    ax.grid(visible=False)
