"""The figure of searched plans: the best fixed method, the plan, and the bound."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddlnb.figures.colours import DARK, GREY, METHOD_COLOURS
from ddlnb.figures.style import legend, note, styled

WIDTH = 0.38  # of the distance between two cells
ROOM = 1.6  # of the highest bar, for the longest name above it


@styled
def search_gains(rows: pd.DataFrame) -> Figure:
    """An iteration by the best of the seven methods and by the searched plan, over its lower bound.

    ``rows`` are those of `ddlnb.survey.sec5_4_schedule.search_table`, one panel for a network. A
    bar of height one is at the bound, which no plan undercuts.
    """
    networks = list(dict.fromkeys(rows["network"]))
    figure, axes = plt.subplots(
        1, len(networks), figsize=(2 + 3.2 * len(networks), 3.8), sharey=True, squeeze=False
    )
    for ax, network in zip(axes[0], networks, strict=True):
        here = rows[rows["network"] == network]
        places = np.arange(len(here))
        fixed = here["best_ms"] / here["bound_ms"]
        ax.bar(places - WIDTH / 2, fixed, WIDTH, color=GREY, label="best of the seven")
        searched = here["searched_ms"] / here["bound_ms"]
        colour = METHOD_COLOURS["MG-WFBP"]
        ax.bar(places + WIDTH / 2, searched, WIDTH, color=colour, label="searched plan")
        for place, value, name in zip(places, fixed, here["best of the seven"], strict=True):
            ax.annotate(
                name,
                (place - WIDTH / 2, value),
                xytext=(0, 2),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
            )
        ax.axhline(1.0, color=DARK, linewidth=0.8, linestyle=":")
        ax.set_xticks(places, here["model"], rotation=20, ha="right")
        ax.set_title(network, loc="left")
        ax.set_xlabel("model")
    axes[0, 0].set_ylabel("iteration over its lower bound")
    axes[0, 0].set_ylim(0, ROOM * float((rows["best_ms"] / rows["bound_ms"]).max()))
    legend(figure)
    note(figure, "source: simulated; dotted: the lower bound of all plans")
    return figure
