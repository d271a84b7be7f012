"""What benchmarks draw: forecasts beside emulated links, and networks that drift."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ddlnb.figures.style import (
    DARK,
    GREY,
    METHOD_COLOURS,
    facets,
    legend,
    names_down,
    note,
    say_source,
    short,
    styled,
)
from ddlnb.units import MS, counted

COMPRESSED, RELAXED = METHOD_COLOURS["ByteScheduler-A2A"], METHOD_COLOURS["WFBP-A2A"]


@styled
def lossy_against_emulated(rows: pd.DataFrame) -> Figure:
    """Milliseconds of an iteration on emulated links, forecast and measured: a panel per network.

    ``rows`` are those of `benchmarks.lossy_emulated`: a dot is a measured repetition, a ring the
    forecast. Raises InputError if there are none.
    """
    methods = list(rows["method"].unique()) if len(rows) else []
    height = 1.3 + 0.26 * len(methods)
    figure, panels = facets(rows, "network", width=(2.4, 2.6), height=height, sharey=True)
    ring: dict[str, Any] = {"markersize": 9, "fillstyle": "none", "markeredgewidth": 1.5}
    for ax, _, part in panels:
        lines = part["method"].map(methods.index)
        ax.plot(part["iteration_seconds"] / MS, lines, ".", color=DARK, label="measured")
        one = part.drop_duplicates("method")
        lines = one["method"].map(methods.index)
        ax.plot(one["forecast"] / MS, lines, "o", color=COMPRESSED, label="forecast", **ring)
        ax.set(xlabel="ms per iteration", xlim=(0, None))
    names_down(panels[0][0], [short(method) for method in methods])
    legend(figure, where="upper left", columns=2)
    say_source(figure, rows, f"{rows['model'].iloc[0]}, {counted(rows['workers'].iloc[0], 'node')}")
    return figure


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
        ax.set(xlabel="iteration", ylim=(0, None))
    panels[0][0].set_ylabel("iteration (ms)")
    legend(figure)
    note(figure, "source: emulated; dotted: the network changes; dashed: a new plan takes over")
    return figure
