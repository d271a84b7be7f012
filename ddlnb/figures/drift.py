"""The figure of a network that drifts under a run: what every iteration takes, plan by plan."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ddlnb.figures.colours import DARK, GREY, METHOD_COLOURS
from ddlnb.figures.style import facets, legend, note, styled

COLOURS = {
    "kept": METHOD_COLOURS["ByteScheduler-A2A"],
    "made anew": METHOD_COLOURS["WFBP-A2A"],
    "oracle": GREY,
}


@styled
def drift_iterations(rows: pd.DataFrame) -> Figure:
    """Milliseconds of every iteration while the network becomes slower, by what plans do then.

    ``rows`` have the columns drift, contender, repetition, iteration, seconds, change and takeover:
    before which iteration the network changed, and a new plan took over (NaN where none did). A
    line is the median over repetitions, the band from the least to the most; a panel is a drift.
    """
    figure, panels = facets(rows, "drift", width=(1.5, 4.2), height=3.6)
    for ax, _, part in panels:
        for contender, own in part.groupby("contender", sort=False):
            each = 1e3 * own.groupby("iteration")["seconds"].agg(["median", "min", "max"])
            colour = COLOURS.get(str(contender), DARK)
            ax.plot(each.index, each["median"], color=colour, label=str(contender))
            ax.fill_between(
                each.index, each["min"], each["max"], color=colour, alpha=0.2, linewidth=0
            )
        ax.axvline(part["change"].iloc[0] - 0.5, color=DARK, linewidth=0.9, linestyle=":")
        for taken in part["takeover"].dropna().unique():
            ax.axvline(taken - 0.5, color=COLOURS["made anew"], linewidth=0.9, linestyle="--")
        ax.set_xlabel("iteration")
        ax.set_ylim(bottom=0)
    panels[0][0].set_ylabel("iteration (ms)")
    legend(figure)
    note(figure, "source: emulated; dotted: the network changes; dashed: a new plan takes over")
    return figure
