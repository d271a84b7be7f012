"""The figure of convergence rates: mean squared gradients against steps and against workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from ddlnb.errors import require
from ddlnb.figures.learning import PALETTE
from ddlnb.figures.style import legend_line, say_source, short, styled
from ddlnb.studies.convergence_rates.rates import AT_MEAN, AT_WORKERS
from ddlnb.studies.convergence_rates.slopes import LEADING, sweep

if TYPE_CHECKING:
    import pandas as pd

PANELS = (("steps", AT_MEAN), ("workers", AT_MEAN), ("workers", AT_WORKERS))
TITLES = {AT_MEAN: "at the mean model", AT_WORKERS: "at the workers' models"}
AXES = {"steps": "iterations T", "workers": "workers n"}


@styled
def convergence_rates(table: pd.DataFrame) -> Figure:
    """The mean over iterations of |gradient|^2 from `rate_study`: a row of panels per problem.

    Lines are means over runs, bars their standard errors; grey lines have the slope of theory.
    """
    require(not table.empty, "there are no rates to draw")
    problems = list(dict.fromkeys(table["problem"]))
    methods = list(dict.fromkeys(table["method"]))
    figure, grid = plt.subplots(
        len(problems),
        len(PANELS),
        figsize=(12.5, 1.2 + 3.0 * len(problems)),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for problem, axes in zip(problems, grid, strict=True):
        part = table[table["problem"] == problem]
        for (against, measure), ax in zip(PANELS, axes, strict=True):
            _panel(ax, sweep(part, against), methods, against, measure)
            ax.set_title(f"{problem}, {TITLES[measure]}", fontsize=9)
        axes[0].set_ylabel("mean of |gradient|$^2$")
    for (against, _), ax in zip(PANELS, grid[-1], strict=True):
        ax.set_xlabel(AXES[against])
    handles, labels = grid[0][0].get_legend_handles_labels()
    handles.append(legend_line("#999999", "", "--"))
    labels.append(f"slope {LEADING:g}")
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    say_source(figure, table, f"mean and standard error of {table['run'].nunique()} runs")
    return figure


def _panel(
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
            color=PALETTE[number % len(PALETTE)],
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=short(method),
        )
    guide = swept[swept["method"] == methods[0]].groupby(against)[measure].mean()
    ends = np.array([guide.index.min(), guide.index.max()], dtype=float)
    ax.plot(
        ends,
        0.8 * guide.iloc[0] * (ends / ends[0]) ** LEADING,
        color="#999999",
        linestyle="--",
        linewidth=1,
    )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = sorted(swept[against].unique())
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # often less than a decade
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.minorticks_off()
