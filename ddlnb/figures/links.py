"""Links: what part of one messages of each size fill, and how long they take by protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.colours import MEASURED_COLOURS, NETWORK_COLOURS, PALETTE
from ddlnb.figures.style import doubling_axis, legend, say_source, styled
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.units import US, gigabits_per_second, size_in_words

if TYPE_CHECKING:
    import pandas as pd


@styled
def effective_bandwidth(rows: pd.DataFrame, fits: Mapping[str, AlphaBeta] | None = None) -> Figure:
    """Effective bandwidth against message size, both logarithmic.

    ``rows`` have the columns network, bytes, gigabits_per_second and source. ``fits`` gives a
    network's a + b M, drawn dashed over the range of its points.
    """
    require(not rows.empty, "there are no rows to draw")
    fits = fits or {}
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    measured = iter(MEASURED_COLOURS * len(rows))
    for (network, source), points in rows.groupby(["network", "source"], sort=False):
        colour = NETWORK_COLOURS.get(network) or next(measured)
        ax.plot(
            points["bytes"],
            points["gigabits_per_second"],
            marker="D" if source == "published" else "o",
            markerfacecolor="white" if source == "published" else colour,
            linestyle="none" if network in fits else "-",
            color=colour,
            label=f"{network} ({source})",
        )
        if network in fits:
            sizes = np.geomspace(points["bytes"].min(), points["bytes"].max(), 60)
            rates = [gigabits_per_second(m / fits[network].seconds(m)) for m in sizes]
            ax.plot(sizes, rates, linestyle="--", color=colour, label=f"{network}: {fits[network]}")
    ticks = [2**k for k in range(8, 30, 2) if rows["bytes"].min() <= 2**k <= rows["bytes"].max()]
    doubling_axis(ax, ticks, size_in_words)
    ax.set_yscale("log")
    ax.set_xlabel("message size")
    ax.set_ylabel("effective bandwidth (Gb/s)")
    ax.set_title("Small messages do not fill the link")
    legend(figure)
    say_source(figure, rows, "dashed: a + M / B")
    return figure


# Of paths that the survey does not have: colours that its networks leave.
OURS = tuple(colour for colour in PALETTE if colour not in NETWORK_COLOURS.values())


@styled
def protocol_times(rows: pd.DataFrame) -> Figure:
    """Microseconds (left) and Gb/s (right) of a message against its size, all logarithmic.

    ``rows`` have the columns network, bytes, seconds, gigabits_per_second and source. Emulated
    paths are dashed; published ones are hollow points, without a line.
    """
    require(not rows.empty, "there are no rows to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    paths = rows.groupby(["network", "source"], sort=False)
    for number, ((network, source), points) in enumerate(paths):
        medium = str(network).partition(",")[0]
        colour = NETWORK_COLOURS.get(medium, OURS[number % len(OURS)])
        look = {
            "color": colour,
            "marker": "D" if source == "published" else "o",
            "markerfacecolor": "white" if source == "published" else colour,
            "linestyle": {"published": "none", "emulated": "--"}.get(source, "-"),
        }
        left.plot(points["bytes"], points["seconds"] / US, **look, label=f"{network} ({source})")
        right.plot(points["bytes"], points["gigabits_per_second"], **look)
    for ax in (left, right):
        ax.set_yscale("log")
        doubling_axis(ax, sorted(rows["bytes"].astype(int).unique()), size_in_words, rotation=45)
        ax.set_xlabel("message size")
    left.set_ylabel("time of a message (us)")
    right.set_ylabel("effective bandwidth (Gb/s)")
    left.set_title("Small messages: the latency of the path")
    right.set_title("Large messages: copies and the wire")
    legend(figure)
    say_source(figure, rows, "half of the median round trip, quickest round")
    return figure
