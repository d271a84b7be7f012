"""Lossy methods on a cluster: their traffic, the seconds of an iteration, the time to a target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from ddlnb.errors import require
from ddlnb.figures.colours import DARK, METHOD_COLOURS, OTHER_COLOUR, line_look
from ddlnb.figures.style import (
    BAR_GROUP,
    beside,
    doubling_axis,
    facets,
    legend,
    names_down,
    say_source,
    short,
    styled,
)
from ddlnb.figures.target_label import target_label
from ddlnb.units import MB, MS, counted

if TYPE_CHECKING:
    import pandas as pd

COMPRESSED, RELAXED = METHOD_COLOURS["ByteScheduler-A2A"], METHOD_COLOURS["WFBP-A2A"]
APART = 1.025  # between neighbouring methods, so that their intervals do not hide one another
SOURCE = "iterations measured, seconds simulated"


@styled
def lossy_traffic(table: pd.DataFrame) -> Figure:
    """Bytes per worker and iteration against the workers, by compressor; the dense ring is thick.

    ``table`` is a `traffic_table`. Both axes are logarithmic. Lines that rise in proportion to the
    workers are all-gathers.
    """
    require(not table.empty, "there is no traffic to draw")
    figure, ax = plt.subplots(figsize=(8.5, 5.0))
    names = sorted(table["compressor"].unique(), key=lambda name: name != "none")  # stable
    for number, name in enumerate(names, start=0 if names[0] == "none" else 1):
        part = table[table["compressor"] == name].sort_values("workers")
        look = {"linewidth": 3, "label": "dense ring"} if name == "none" else {"label": short(name)}
        look = {**look, **line_look(number), "marker": "o", "markersize": 4}
        ax.plot(part["workers"], part["bytes"] / MB, **look)
    ax.set_yscale("log")
    doubling_axis(ax, sorted(table["workers"].unique()))
    ax.set(xlabel="workers", ylabel="MB per worker and iteration")
    ax.set_title(f"{table['model'].iloc[0]}: what is gathered grows with the workers")
    legend(figure)
    say_source(figure, table, "requests of each compressor, tensor by tensor")
    return figure


@styled
def time_to_target(table: pd.DataFrame) -> Figure:
    """Minutes to the target loss per method and network; the axis says whose iterations they are.

    ``table`` is that of `ddlnb.training.cost.time_to_target.time_to_target`. Whiskers are 95 %
    intervals over seeds; a method that does not reach the target has no bar, and the text on a bar
    is its speed-up over the dense best.
    """
    methods = list(table["method"].unique()) if len(table) else []
    height = 1.4 + 0.34 * len(methods)
    figure, panels = facets(table, "network", width=(3.2, 2.9), height=height, sharey=True)
    for ax, _, part in panels:
        _draw_times(ax, part.set_index("method").reindex(methods))
        ax.set_xlabel(target_label("minutes", table))
    names_down(panels[0][0], [short(name) for name in methods])
    figure.suptitle(f"{_target(table)}, {counted(table['workers'].iloc[0], 'worker')}", fontsize=10)
    say_source(figure, SOURCE, _compression_note(table))
    return figure


def _draw_times(ax: Axes, part: pd.DataFrame) -> None:
    for number, (method, row) in enumerate(part.iterrows()):
        if not math.isfinite(row["seconds"]):
            ax.text(0.02, number, "never", transform=ax.get_yaxis_transform(), va="center")
            continue
        minutes, end = row["seconds"] / 60, row["seconds"] / 60
        ax.barh(number, minutes, BAR_GROUP, color=DARK if row["is_dense"] else _colour(str(method)))
        if math.isfinite(row["low"]):
            reach, end = (row["high"] - row["low"]) / 2 / 60, row["high"] / 60
            ax.errorbar(minutes, number, xerr=reach, color="black", capsize=2)
        beside(ax, end, number, f"{row['speedup']:.2f}x")
    ax.margins(x=0.25)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(ScalarFormatter())


def _colour(method: str) -> str:
    from ddlnb.training.method import training_method  # brings torch

    lossy = training_method(method)
    if lossy.compressor is not None:
        return COMPRESSED
    return RELAXED if lossy.synchronisation.name != "bsp" else OTHER_COLOUR


@styled
def target_speedups(table: pd.DataFrame) -> Figure:
    """Speed-ups to the target loss against the workers: a panel per network, a line per method.

    ``table`` is that of `ddlnb.training.cost.time_to_target.time_to_target`, for several numbers of
    workers. Speed-ups are over the quickest lossless method, which is quicker below the dashed
    line. Bars are 95 % intervals over seeds; where a run never reaches the target there is no
    point, and a method without any says "never".
    """
    lossy = table[~table["is_dense"].astype(bool)]
    require(not lossy.empty, "there are no lossy methods to draw")
    methods = list(lossy["method"].unique())
    height = 3.6 + 0.2 * len(methods)
    figure, panels = facets(lossy, "network", width=(1.0, 3.2), height=height, sharey=True)
    for ax, _, part in panels:
        for number, method in enumerate(methods, start=1):
            rows = part[part["method"] == method].sort_values("workers")
            speedups = rows["speedup"].where(rows["speedup"] > 0, math.nan)
            x = rows["workers"] * APART ** (number - (1 + len(methods)) / 2)
            low, high = rows["speedup_low"].astype(float), rows["speedup_high"].astype(float)
            reach = [(speedups - low).clip(lower=0), (high - speedups).clip(lower=0)]
            look: dict[str, Any] = {"marker": "o", "markersize": 4, "elinewidth": 0.9, "capsize": 2}
            ever = bool((lossy.loc[lossy["method"] == method, "speedup"] > 0).any())
            look |= {"label": short(method) + " (never)" * (not ever), **line_look(number)}
            ax.errorbar(x, speedups, yerr=reach, **look)
        ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        doubling_axis(ax, sorted(lossy["workers"].unique()))
        ax.set_xlabel("workers")
    panels[0][0].set_ylabel("speed-up to the target over the dense best")
    panels[0][0].set_ylim(bottom=0)
    legend(figure, where="upper center", columns=3)
    say_source(figure, SOURCE, f"{_target(table)}\n{_compression_note(lossy)}")
    return figure


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


def _target(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    return f"{first['model']}, iterations of {first['task']} to a test loss of {first['target']:g}"


def _compression_note(table: pd.DataFrame) -> str:
    said = {source.partition("compression ")[2] for source in table["source"]} - {""}
    whole = [text if text.startswith("compression") else f"compression {text}" for text in said]
    return " and ".join(sorted(whole)) or "no compression"
