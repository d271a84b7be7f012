"""Figures of clusters of unlike GPUs: what each way to share yields, and when slow GPUs pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.figures.colours import DARK, GREY
from ddlnb.figures.style import note, styled

if TYPE_CHECKING:
    import pandas as pd

PALE = 0.3  # bars of ways whose states do not fit
COLOURS = {
    "equal shares": "#D55E00",
    "shares by speed": "#009E73",
    "pipeline, equal layers": "#E69F00",
    "pipeline by speed": "#0072B2",
}


@styled
def unlike_ways(table: pd.DataFrame) -> Figure:
    """What ways to share a batch or layers among unlike GPUs yield; pale where memory is too small.

    ``table`` is that of `way_table`. Dashed: the sum of all speeds.
    """
    figure, ax = plt.subplots(figsize=(7.5, 1.3 + 0.38 * len(table)))
    _draw_ways(ax, table)
    note(figure, "source: simulated from data sheets")
    return figure


def _draw_ways(ax: Axes, table: pd.DataFrame) -> None:
    bars = ax.barh(
        range(len(table)),
        table["samples_per_second"],
        color=[COLOURS.get(way, GREY) for way in table["way"]],
    )
    for bar, fits in zip(bars, table["fits"], strict=True):
        bar.set_alpha(1.0 if fits else PALE)
    together = (table["samples_per_second"] / table["of_all"]).iloc[0]
    ax.axvline(together, color=DARK, linestyle="--", linewidth=1)
    ax.set_yticks(range(len(table)), table["way"])
    ax.invert_yaxis()
    ax.set_xlabel("throughput (samples/s); dashed: sum of speeds")


@styled
def unlike_shares(table: pd.DataFrame, ratios: pd.DataFrame) -> Figure:
    """What ways to share a batch or layers among two kinds of GPUs yield, and when both kinds pay.

    ``table`` is that of `way_table`; ``ratios`` has rows of it by ``ratio``, with the ``gain``
    over the fast GPUs alone. Dashed: the sum of all speeds, and the fast GPUs alone.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    _draw_ways(left, table)
    for way, colour in COLOURS.items():
        own = ratios[ratios["way"] == way]
        right.plot(own["ratio"], own["gain"], marker="o", markersize=4, color=colour, label=way)
    right.axhline(1, color=DARK, linestyle="--", linewidth=1)
    right.set_xlabel("speed of a fast GPU over that of a slow one")
    right.set_ylabel("throughput over fast GPUs alone")
    right.set_ylim(bottom=0)
    right.legend()
    note(figure, "source: simulated")
    return figure
