"""The bandwidth figure: how much of a link messages of each size fill (survey, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import say_source, styled
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.units import gigabits_per_second, size_in_words

if TYPE_CHECKING:
    import pandas as pd

NETWORK_COLOURS = {"10GbE": "#D55E00", "100GbE": "#E69F00", "100GbIB": "#009E73"}
MEASURED_COLOURS = ("#0072B2", "#CC79A7", "#56B4E9")


@styled
def effective_bandwidth(rows: pd.DataFrame, fits: Mapping[str, AlphaBeta] | None = None) -> Figure:
    """Effective bandwidth against message size, both logarithmic.

    ``rows`` have the columns network, bytes, gigabits_per_second and source. ``fits`` gives a
    network's a + b M, drawn dashed over the range of its points.
    """

    require(not rows.empty, "there are no rows to draw")
    fits = fits or {}
    figure, ax = plt.subplots(figsize=(8.5, 4.6), layout="constrained")
    measured = iter(MEASURED_COLOURS * len(rows))
    for (network, source), points in rows.groupby(["network", "source"], sort=False):
        colour = NETWORK_COLOURS.get(network) or next(measured)
        published = source == "published"
        ax.plot(
            points["bytes"],
            points["gigabits_per_second"],
            marker="D" if published else "o",
            markerfacecolor="white" if published else colour,
            linestyle="none" if network in fits else "-",
            color=colour,
            label=f"{network} ({source})",
        )
        if network in fits:
            low, high = points["bytes"].min(), points["bytes"].max()
            sizes = np.geomspace(low, high, 60)
            rates = [gigabits_per_second(m / fits[network].seconds(m)) for m in sizes]
            ax.plot(sizes, rates, linestyle="--", color=colour, label=f"{network}: {fits[network]}")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = [2**k for k in range(8, 30, 2) if rows["bytes"].min() <= 2**k <= rows["bytes"].max()]
    ax.set_xticks(ticks, [size_in_words(tick) for tick in ticks])
    ax.set_xlabel("message size")
    ax.set_ylabel("effective bandwidth (Gb/s)")
    ax.set_title("Small messages do not fill the link")
    figure.legend(loc="outside right upper", frameon=False)
    say_source(figure, rows, "dashed: a + M / B")
    return figure
