"""A calibration: how sure the effects are, and what the fit misses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.clusters.effects import UNITS
from ddlnb.errors import require
from ddlnb.figures.agreement import BAND, BAND_COLOUR, legend_band, spread_out
from ddlnb.figures.colours import (
    DARK,
    MEASURED_COLOURS,
    METHOD_COLOURS,
    MODEL_COLOURS,
    NETWORK_COLOURS,
    OTHER_COLOUR,
    PALE,
    colour_of,
)
from ddlnb.figures.style import (
    legend,
    legend_line,
    legend_mark,
    legend_methods,
    note,
    ordered,
    say_source,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster, Fit

LABELS = ("model", "network", "method", "gpus")
FARTHEST = 100.0  # times the value; an interval that goes farther ends in an arrow
KNOWN = {"model": MODEL_COLOURS, "network": NETWORK_COLOURS, "method": METHOD_COLOURS}


@styled
def parameter_intervals(clusters: Iterable[Cluster]) -> Figure:
    """The 90 % interval of every fitted effect relative to its value, cluster by cluster.

    An effect that several clusters share is drawn once; its value stands at the right. Intervals
    that reach zero, or farther than FARTHEST times the value, end in an arrow.
    """
    listed = [cluster for cluster in clusters if cluster.fits]
    require(bool(listed), "there are no fitted effects to draw")
    colours = iter(MEASURED_COLOURS * len(listed))
    colour_of_cluster = {c.name: NETWORK_COLOURS.get(c.network) or next(colours) for c in listed}
    lines = {effect: _lines(effect, listed) for effect in UNITS}
    lines = {effect: found for effect, found in lines.items() if found}
    count = sum(len(found) + 1 for found in lines.values())
    figure, ax = plt.subplots(figsize=(10.5, 1.2 + 0.17 * count))
    y, middles, ends, shared = 0, [], [1 / 1.5, 1.5], False
    for effect, found in lines.items():
        middles.append(y + (len(found) - 1) / 2)
        for value, fit, names in found:
            shared = shared or len(names) > 1
            colour = DARK if len(names) > 1 else colour_of_cluster[names[0]]
            ends += _interval(ax, y, effect, value, fit, colour)
            y += 1
        ax.axhline(y, color=PALE, linewidth=0.8)
        y += 1
    ax.axvline(1, color="black", linewidth=1, zorder=1)
    least, most = min(ends) / 1.15, max(ends) * 1.15
    ax.set_xscale("log")
    ax.set_xlim(least, most)
    ax.set_yticks(middles, [effect.replace("_", " ") for effect in lines])
    ax.set_ylim(y - 1, -1)
    ax.set_xlabel("90 % interval, over the fitted value at the right")
    ax.grid(False, axis="y")
    look = {"linestyle": "-"}
    handles = [legend_mark(c, "o", name, **look) for name, c in colour_of_cluster.items()]
    if shared:
        handles.append(legend_mark(DARK, "o", "several clusters", **look))
    legend(figure, handles)
    note(figure, "source: the clusters' files, where each effect says what it was fitted on")
    return figure


def _lines(effect: str, clusters: Iterable[Cluster]) -> list[tuple[float, Fit, list[str]]]:
    """Return the different fits of an effect: value, fit, and the clusters that have them."""
    found: dict[tuple[float, Fit], list[str]] = {}
    for cluster in clusters:
        if effect in cluster.fits:
            key = getattr(cluster.effects, effect), cluster.fits[effect]
            found.setdefault(key, []).append(cluster.name)
    return [(value, fit, names) for (value, fit), names in found.items()]


def _interval(
    ax: Axes, y: float, effect: str, value: float, fit: Fit, colour: str
) -> tuple[float, ...]:
    """Draw one interval, write its value, and return its ends."""
    show = UNITS[effect].show
    relative = value > 0 and math.isfinite(value)
    text = show(value) if relative else f"{show(value)} ({show(fit.low)} to {show(fit.high)})"
    beside = ax.get_yaxis_transform()
    ax.text(1.01, y, text, transform=beside, va="center", fontsize=7.5, color=colour)
    if not relative:
        return ()
    low, high = fit.low / value, fit.high / value
    seen = max(low, 1 / FARTHEST), min(high, FARTHEST)
    ax.plot(seen, [y, y], color=colour, linewidth=1.6, zorder=2)
    ax.plot(1, y, color=colour, marker="o", markersize=5, zorder=3)
    for end, real, arrow in zip(seen, (low, high), "<>", strict=True):
        ax.plot(end, y, color=colour, marker="|" if end == real else arrow, markersize=7)
    return seen


@styled
def residuals(frame: pd.DataFrame) -> Figure:
    """Relative errors of predictions by model, network, method and number of GPUs.

    ``frame`` has the columns observed, predicted and relative_error (predicted over observed, less
    1) and the LABELS, which may be empty. Colours are methods, a black line the median of a group.
    """
    require(not frame.empty, "there are no rows to draw")
    if "forecast" in frame:
        forecasts = list(frame["forecast"].unique())
        require(len(forecasts) == 1, f"the rows are of forecasts {forecasts}; draw one at a time")
    known = frame[np.isfinite(frame["relative_error"])]
    require(not known.empty, "there are no rows to draw: none has a relative error")
    groups = {label: _groups(known, label) for label in LABELS}
    figure, axes = plt.subplots(
        1,
        len(LABELS),
        figsize=(13, 4.8),
        width_ratios=[1.2 + len(found) for found in groups.values()],
        sharey=True,
    )
    for ax, (label, found) in zip(axes, groups.items(), strict=True):
        ax.axhspan(-100 * BAND, 100 * BAND, color=BAND_COLOUR, zorder=0)
        ax.axhline(0, color="black", linewidth=1, zorder=1)
        for x, part in enumerate(found.values()):
            _strip(ax, x, part)
        ax.set_xticks(range(len(found)), list(found), rotation=40, ha="right", fontsize=8)
        ax.set_xlim(-0.6, len(found) - 0.4)
        ax.set_xlabel({"gpus": "GPUs"}.get(label, label))
        ax.grid(False, axis="x")
    axes[0].set_ylabel("predicted over observed, less 1 (%)")
    error = known["relative_error"].abs()
    left_out = len(frame) - len(known)
    figure.suptitle(
        f"{len(known)} observations: mean absolute error {100 * error.mean():.1f} %, median "
        f"{100 * error.median():.1f} %" + (f"; {left_out} not predicted" if left_out else "")
    )
    handles = legend_methods(name for name in groups["method"] if name in METHOD_COLOURS)
    if set(groups["method"]) - set(METHOD_COLOURS):
        handles.append(Patch(color=OTHER_COLOUR, label="other"))
    median = legend_line("black", "median", "-")
    median.set_linewidth(2)
    legend(figure, [*handles, median, legend_band()])
    remark = "observed as the source says, predicted by the simulator"
    say_source(figure, frame if "source" in frame else "not in the rows", remark)
    return figure


def _groups(rows: pd.DataFrame, label: str) -> dict[str, pd.DataFrame]:
    """Return rows by the words for their label, in the usual order; those without come last."""
    given = rows[rows[label].notna()]
    values = given[label].astype(int) if label == "gpus" else given[label]
    names = sorted(values.unique()) if label == "gpus" else ordered(values, KNOWN[label])
    found = {str(name): given[values == name] for name in names}
    rest = rows[rows[label].isna()]
    return {**found, "none": rest} if len(rest) else found


def _strip(ax: Axes, x: int, rows: pd.DataFrame) -> None:
    """Draw one point per row, side by side, and the median."""
    rows = rows.sort_values("relative_error")
    errors = 100 * rows["relative_error"]
    offsets = x + spread_out(len(errors), 0.66)
    colours = [colour_of(str(method)) for method in rows["method"]]
    size = 26 if len(errors) < 30 else 12
    ax.scatter(offsets, errors, s=size, c=colours, edgecolors="black", linewidths=0.4, zorder=3)
    ax.plot([x - 0.42, x + 0.42], [errors.median()] * 2, color="black", linewidth=2, zorder=4)
