"""The breakdown of an iteration's time, method by method (survey, sections 2 and 3.1.4)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.figures.style import beside, in_order, legend, names_down, say_source, styled
from ddlnb.units import MS, counted

PART_COLOURS = {
    "computation": "#9ad0f0",
    "contention": "#CC79A7",
    "latency": "#E69F00",
    "bandwidth": "#0072B2",
}
TOTAL_ROOM = 1.45  # of the longest bar, for the time behind it


@styled
def breakdown_bars(rows: pd.DataFrame) -> Figure:
    """Where the time of an iteration goes: a panel for every network, a bar for every method.

    ``rows`` have the columns model, network, gpus, method, source, iteration_seconds and one of
    seconds for each of PART_COLOURS, which add up to it. Models stand below one another; the panels
    of one model share an axis.
    """
    models = list(rows.groupby(["model", "gpus"], sort=False))
    networks = list(rows["network"].unique())
    methods = in_order(rows["method"])
    figure, grid = plt.subplots(
        len(models),
        len(networks),
        figsize=(2.4 + 3.4 * len(networks), 0.6 + len(models) * (0.9 + 0.3 * len(methods))),
        sharex="row",
        sharey=True,
        squeeze=False,
    )
    for ((model, gpus), of_row), axes in zip(models, grid, strict=True):
        axes[0].set_xlim(0, TOTAL_ROOM * of_row["iteration_seconds"].max() / MS)
        for network, ax in zip(networks, axes, strict=True):
            _panel(ax, of_row[of_row["network"] == network], methods)
            ax.set_title(f"{model}, {counted(gpus, 'GPU')}, {network}", fontsize=10)
    for ax in grid[-1]:
        ax.set_xlabel("time of an iteration (ms)")
    legend(figure, [Patch(color=colour, label=part) for part, colour in PART_COLOURS.items()])
    say_source(figure, rows, "behind a bar: the iteration, and how much of it is computation")
    return figure


def _panel(ax: Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    for _, row in rows.iterrows():
        y, left = methods.index(row["method"]), 0.0
        for part, colour in PART_COLOURS.items():
            width = row[part] / MS  # a negative one is drawn back into the part before it
            ax.barh(y, width, 0.72, left=left, color=colour, linewidth=0)
            left += width
        share = row["computation"] / row["iteration_seconds"]
        beside(ax, left, y, f"{row['iteration_seconds'] / MS:.0f} ms, {100 * share:.0f} %")
    names_down(ax, methods)
    ax.grid(False, axis="y")
