"""The figure of section 3.3.1: time and effective bandwidth of a message, by the way it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import say_source, styled
from ddlnb.units import US, size_in_words

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#E69F00", "#3d3d3d", "#999999")


@styled
def protocol_times(rows: pd.DataFrame) -> Figure:
    """Microseconds (left) and Gb/s (right) of a message against its size, all logarithmic.

    ``rows`` have the columns network, bytes, seconds, gigabits_per_second and source. Emulated ways
    are dashed; published ones are hollow points, without a line.
    """
    require(not rows.empty, "there are no rows to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    ways = rows.groupby(["network", "source"], sort=False)
    for number, ((network, source), points) in enumerate(ways):
        colour = COLOURS[number % len(COLOURS)]
        look = {
            "color": colour,
            "marker": "D" if source == "published" else "o",
            "markerfacecolor": "white" if source == "published" else colour,
            "linestyle": {"published": "none", "emulated": "--"}.get(source, "-"),
        }
        left.plot(points["bytes"], points["seconds"] / US, **look, label=f"{network} ({source})")
        right.plot(points["bytes"], points["gigabits_per_second"], **look)
    ticks = sorted(rows["bytes"].unique())
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(ticks, [size_in_words(int(tick)) for tick in ticks], rotation=45)
        ax.minorticks_off()
        ax.set_xlabel("message size")
    left.set_ylabel("time of a message (us)")
    right.set_ylabel("effective bandwidth (Gb/s)")
    left.set_title("Small messages: the way's latency")
    right.set_title("Large messages: copies and the wire")
    figure.legend(loc="outside right upper", frameon=False)
    say_source(figure, rows, "half of the median round trip, quickest round")
    return figure
