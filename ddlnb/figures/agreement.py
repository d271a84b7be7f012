"""The same cells simulated and measured, and by how much they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from ddlnb.errors import require
from ddlnb.figures.colours import OTHER_COLOUR, PALE, colour_of
from ddlnb.figures.style import (
    POINT,
    in_order,
    legend,
    legend_mark,
    legend_methods,
    names_down,
    say_source,
    styled,
)
from ddlnb.results.schema import KEY
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

BAND = 0.15  # of relative error: what a simulation is expected to stay within
BAND_COLOUR = "#e9e4d4"
MARKERS = ("o", "s", "D", "^", "v", "P")
RATE = "throughput_samples_per_s"
ROOM = 1.25  # of the range of the throughputs, on both sides


@styled
def simulated_against_measured(simulated: pd.DataFrame, measured: pd.DataFrame) -> Figure:
    """Simulated against measured throughput, and the relative error by method.

    Both frames are tidy rows; drawn is every cell (model, local_batch, network, method, gpus) that
    both of them have. Lines are the measured std and, where it is known, the simulated interval.
    """
    import pandas as pd

    rows = _paired(simulated, measured)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), width_ratios=[1, 1.1])
    counts = sorted(rows["gpus"].unique())
    marker_of = dict(zip(counts, MARKERS * len(counts), strict=False))
    methods = in_order(rows["method"])
    _draw_throughputs(left, rows, marker_of)
    left.set_xlabel(f"{measured['source'].iloc[0]} throughput (samples/s)")
    left.set_ylabel("simulated throughput (samples/s)")
    _draw_errors(right, rows, methods, marker_of)
    within = (rows["error"].abs() <= BAND).sum()
    figure.suptitle(
        f"{within} of {len(rows)} cells within {100 * BAND:.0f} %, "
        f"median absolute error {100 * rows['error'].abs().median():.1f} %"
    )
    sizes = [legend_mark(OTHER_COLOUR, m, counted(n, "worker")) for n, m in marker_of.items()]
    legend(figure, [*sizes, *legend_methods(methods), legend_band()])
    both = [part.reindex(columns=["source", "machine"]) for part in (simulated, measured)]
    known = {
        "std of the measured": rows["std"].fillna(0) > 0,
        "90 % interval of the simulated": rows.get("low", rows["std"] * np.nan).notna(),
    }
    lines = " and ".join(what for what, are_known in known.items() if are_known.any())
    say_source(figure, pd.concat(both), f"lines: {lines}" if lines else "without intervals")
    return figure


def _paired(simulated: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell of both frames, with the relative error of the simulated one."""
    for name, frame in (("simulated", simulated), ("measured", measured)):
        require(not frame.duplicated(KEY).any(), f"the {name} rows repeat a cell; keep one")
    bounds = [column for column in ("low", "high") if column in simulated]
    ours = simulated[[*KEY, RATE, *bounds]].rename(columns={RATE: "simulated"})
    theirs = measured[[*KEY, RATE, "std"]].rename(columns={RATE: "measured"})
    rows = ours.merge(theirs, on=KEY)
    require(not rows.empty, "there are no rows to draw: no cell is in both frames")
    return rows.assign(error=rows["simulated"] / rows["measured"] - 1)


def _draw_throughputs(ax: Axes, rows: pd.DataFrame, marker_of: dict[Any, str]) -> None:
    ends = [end for end in ("low", "high") if end in rows]
    least, most = rows[["simulated", *ends]].min().min(), rows[["simulated", *ends]].max().max()
    low = min(rows["measured"].min() / ROOM, least)
    high = max(rows["measured"].max() * ROOM, most)
    band = np.array([low / ROOM, high * ROOM])
    ax.fill_between(band, (1 - BAND) * band, (1 + BAND) * band, color=BAND_COLOUR, zorder=0)
    ax.plot(band, band, color="black", linewidth=1, zorder=1)
    for _, row in rows.iterrows():
        ax.errorbar(
            row["measured"],
            row["simulated"],
            xerr=np.nan_to_num(row["std"]),
            yerr=_interval(row),
            color=colour_of(row["method"]),
            marker=marker_of[row["gpus"]],
            elinewidth=0.8,
            zorder=3,
            **POINT,
        )
    ax.set(xscale="log", yscale="log", xlim=band, ylim=band)
    _plain_ticks(ax, band)


def _interval(row: pd.Series) -> list[list[float]] | None:
    if "low" not in row or not np.isfinite([row["low"], row["high"]]).all():
        return None
    reach = row["simulated"] - row["low"], row["high"] - row["simulated"]
    return [[max(0.0, part)] for part in reach]


def _plain_ticks(ax: Axes, band: np.ndarray) -> None:
    """Put ticks at round numbers in sight, written out."""
    steps = (1, 1.5, 2, 3, 5, 7) if band[1] < 20 * band[0] else (1, 2, 5)
    powers = range(int(np.floor(np.log10(band[0]))), int(np.ceil(np.log10(band[1]))) + 1)
    ticks = [m * 10.0**p for p in powers for m in steps if band[0] <= m * 10.0**p <= band[1]]
    labels = [f"{tick:g}" for tick in ticks]
    ax.set_xticks(ticks, labels)
    ax.set_yticks(ticks, labels)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())


def _draw_errors(
    ax: Axes, rows: pd.DataFrame, methods: list[str], marker_of: dict[Any, str]
) -> None:
    """Draw the relative error of every row in per cent, in one line for every method."""
    ax.axvspan(-100 * BAND, 100 * BAND, color=BAND_COLOUR, zorder=0)
    ax.axvline(0, color="black", linewidth=1, zorder=1)
    for line, method in enumerate(methods):
        ax.axhline(line + 0.5, color=PALE, linewidth=0.8)
        found = rows[rows["method"] == method].sort_values(["gpus", "model"])
        heights = line + spread_out(len(found))
        for y, (_, row) in zip(heights, found.iterrows(), strict=True):
            look = {"color": colour_of(method), "marker": marker_of[row["gpus"]], **POINT}
            ax.plot(100 * row["error"], y, zorder=3, **look)
    reach = 1.15 * max(100 * BAND, 100 * rows["error"].abs().max())
    ax.set_xlim(-reach, reach)
    names_down(ax, methods)
    ax.grid(False, axis="y")
    ax.set_xlabel("simulated over measured, less 1 (%)")


def legend_band() -> Patch:
    """Return the entry of the band of expected errors in a legend."""
    return Patch(color=BAND_COLOUR, label=f"within {100 * BAND:.0f} %")


def spread_out(count: int, width: float = 0.6) -> np.ndarray:
    """Return the given number of offsets around zero, evenly over ``width``.

    >>> spread_out(3, 0.5).tolist(), spread_out(1).tolist()
    ([-0.25, 0.0, 0.25], [0.0])
    """
    return np.linspace(-width / 2, width / 2, count) if count > 1 else np.zeros(count)
