"""The losses figure: where an iteration goes, method by method (survey, sections 2 and 3.1.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import in_order, say_source, styled
from ddlnb.units import MS

if TYPE_CHECKING:
    import pandas as pd

PART_COLOURS = {
    "computation": "#9ad0f0",
    "contention": "#CC79A7",
    "latency": "#E69F00",
    "bandwidth": "#0072B2",
}
PART_LABELS = {"latency": "latency"}
TOTAL_ROOM = 1.45  # of the longest bar, for the time behind it


@styled
def loss_bars(rows: pd.DataFrame) -> Figure:
    """Where an iteration goes: one panel for every network, one bar for every method.

    ``rows`` have the columns model, network, gpus, method, source, iteration_seconds and one of
    seconds for each of PART_COLOURS, which add up to it. Models stand below one another; the panels
    of one model share an axis.
    """
    require(not rows.empty, "there are no rows to draw")
    configurations = rows[["model", "gpus"]].drop_duplicates().to_numpy().tolist()
    networks = list(dict.fromkeys(rows["network"]))
    methods = in_order(rows["method"])
    figure, grid = plt.subplots(
        len(configurations),
        len(networks),
        figsize=(2.4 + 3.4 * len(networks), 0.6 + len(configurations) * (0.9 + 0.3 * len(methods))),
        sharex="row",
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for (model, gpus), axes in zip(configurations, grid, strict=True):
        of_row = rows[(rows["model"] == model) & (rows["gpus"] == gpus)]
        axes[0].set_xlim(0, TOTAL_ROOM * of_row["iteration_seconds"].max() / MS)
        for network, ax in zip(networks, axes, strict=True):
            _panel(ax, of_row[of_row["network"] == network], methods)
            ax.set_title(f"{model}, {gpus} GPUs, {network}", fontsize=10)
    for ax in grid[-1]:
        ax.set_xlabel("time of an iteration (ms)")
    handles = [
        Patch(color=colour, label=PART_LABELS.get(part, part))
        for part, colour in PART_COLOURS.items()
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
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
        ax.annotate(
            f"{row['iteration_seconds'] / MS:.0f} ms, {100 * share:.0f} %",
            (left, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.set_yticks(range(len(methods)), methods)
    ax.set_ylim(len(methods) - 0.45, -0.55)
    ax.grid(False, axis="y")
