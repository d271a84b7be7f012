"""Convergence: how quickly gossip agrees, and how gradients vanish with steps and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.colours import GREY, line_look
from ddlnb.figures.style import (
    beside,
    doubling_axis,
    legend,
    legend_line,
    say_source,
    short,
    styled,
)
from ddlnb.survey.convergence_rates import AT_MEAN, AT_WORKERS, LEADING, sweep
from ddlnb.training.synchronisation.graphs import make_graph, spectral_gap
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

GRAPH_COLOURS = {"ring": "#D55E00", "torus": "#0072B2", "complete": "#009E73"}
STYLES = ("-", (0, (5, 2)), (0, (1, 1)), "-.")
FLOOR = 1e-9  # what is left below is rounding
BOUND_COLOUR = "#bbbbbb"
PANELS = (("steps", AT_MEAN), ("workers", AT_MEAN), ("workers", AT_WORKERS))
TITLES = {AT_MEAN: "at the mean model", AT_WORKERS: "at the workers' models"}
AXES = {"steps": "iterations T", "workers": "workers n"}


@styled
def gossip_mixing(gaps: pd.DataFrame, rounds: pd.DataFrame) -> Figure:
    """Spectral gaps against the workers, and the consensus distance that is left by round.

    They are from `spectral_gaps` and `consensus_rounds`. Grey is the bound (1 - gap)^2 per round of
    every graph, for gossip without compression.
    """
    require(not gaps.empty and not rounds.empty, "there are no gaps or no rounds to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 4.6))
    _draw_gaps(left, gaps)
    _draw_rounds(right, rounds)
    lines = [legend_line(colour, short(method), style) for method, style, colour in _looks(rounds)]
    bound = legend_line(BOUND_COLOUR, "bound by the gap, without compression", "-")
    legend(figure, [*lines, bound])
    both = rounds[["source"]].merge(gaps[["source"]], how="outer")
    say_source(figure, both, "gossip alone, without gradients")
    return figure


def _draw_gaps(ax: Axes, gaps: pd.DataFrame) -> None:
    for graph, part in gaps.groupby("graph", sort=False):
        colour = GRAPH_COLOURS[str(graph)]
        ax.plot(part["workers"], part["gap"], marker="o", color=colour, label=graph)
        last = part.iloc[-1]
        look = {"xytext": (6, 0), "fontsize": None, "color": colour}
        beside(ax, last["workers"], last["gap"], str(graph), **look)
    counts = sorted(gaps["workers"].unique())
    doubling_axis(ax, counts)
    ax.set_yscale("log")
    ax.set_xlim(right=2.2 * counts[-1])  # room for the names
    ax.set(xlabel="workers", ylabel="spectral gap", title="Rings mix ever more slowly")


def _draw_rounds(ax: Axes, rounds: pd.DataFrame) -> None:
    count = int(rounds["workers"].iloc[0])
    last = int(rounds["round"].max())
    for graph in rounds["graph"].unique():
        factor = (1 - spectral_gap(make_graph(graph, count))) ** 2
        bound = factor ** np.arange(last + 1.0)
        ax.plot(np.arange(last + 1)[bound > FLOOR], bound[bound > FLOOR], color=BOUND_COLOUR, lw=3)
    for method, style, colour in _looks(rounds):
        part = rounds[rounds["method"] == method]
        shown = part[part["distance"].shift(fill_value=1.0) > FLOOR]  # to the floor, not along it
        ax.plot(shown["round"], shown["distance"].clip(FLOOR**3), color=colour, linestyle=style)
    ax.set_yscale("log")
    ax.set_ylim(FLOOR, 3)
    ax.set(xlabel="round", ylabel="consensus distance, of the first")
    ax.set_title(f"{counted(count, 'worker')}: what is left to agree on")


def _looks(rounds: pd.DataFrame) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    for graph, part in rounds.groupby("graph", sort=False):
        for number, method in enumerate(part["method"].unique()):
            style = STYLES[number % len(STYLES)]
            found.append((method, style, GRAPH_COLOURS[str(graph)]))
    return found


@styled
def convergence_rates(table: pd.DataFrame) -> Figure:
    """Squared gradients, averaged over iterations, against steps and against workers.

    ``table`` is from `rate_study`; a row of panels per problem. Lines are means over runs, bars
    their standard errors; grey lines have the slope of theory.
    """
    require(not table.empty, "there are no rates to draw")
    problems = list(table.groupby("problem", sort=False))
    methods = list(table["method"].unique())
    figure, grid = plt.subplots(
        len(problems),
        len(PANELS),
        figsize=(12.5, 1.2 + 3.0 * len(problems)),
        sharey="row",
        squeeze=False,
    )
    for (problem, part), axes in zip(problems, grid, strict=True):
        for (against, measure), ax in zip(PANELS, axes, strict=True):
            _draw_sweep(ax, sweep(part, against), methods, against, measure)
            ax.set_title(f"{problem}, {TITLES[measure]}", fontsize=9)
        axes[0].set_ylabel("mean of |gradient|$^2$")
    for (against, _), ax in zip(PANELS, grid[-1], strict=True):
        ax.set_xlabel(AXES[against])
    handles, _ = grid[0][0].get_legend_handles_labels()
    handles.append(legend_line(GREY, f"slope {LEADING:g}", "--"))
    legend(figure, handles, "upper center", columns=4)
    say_source(
        figure, table, f"mean and standard error of {counted(table['run'].nunique(), 'run')}"
    )
    return figure


def _draw_sweep(
    ax: Axes, swept: pd.DataFrame, methods: Sequence[str], against: str, measure: str
) -> None:
    for number, method in enumerate(methods):
        runs = swept[swept["method"] == method].groupby(against)[measure]
        mean, error = runs.mean(), runs.sem()
        # Apart by a hair, because lines may lie on one another.
        x = mean.index.to_numpy(dtype=float) * 1.012 ** (number - len(methods) / 2)
        ax.errorbar(
            x,
            mean,
            yerr=error,
            **line_look(number),
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=short(method),
        )
    guide = swept[swept["method"] == methods[0]].groupby(against)[measure].mean()
    ends = np.array([guide.index.min(), guide.index.max()], dtype=float)
    theory = 0.8 * guide.iloc[0] * (ends / ends[0]) ** LEADING
    ax.plot(ends, theory, color=GREY, linestyle="--", linewidth=1)
    doubling_axis(ax, sorted(swept[against].unique()))
    ax.set_yscale("log")
