"""The figures of lossy methods on a cluster: traffic, where an iteration goes, time to target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import ScalarFormatter

from ddlnb.errors import require
from ddlnb.figures.style import BAR_GROUP, METHOD_COLOURS, OTHER_COLOUR, say_source, short, styled
from ddlnb.units import MB, MS

if TYPE_CHECKING:
    import pandas as pd

PARTS = {
    "compute_seconds": ("compute", "#bbbbbb"),
    "compression_seconds": ("compress, decompress", "#D55E00"),
    "waiting_seconds": ("exposed communication", "#0072B2"),
}
# Beyond these, line styles tell apart.
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7a5230")
STYLES = ("-", "--", ":")


@styled
def lossy_traffic(table: pd.DataFrame) -> Figure:
    """Bytes per worker and iteration against the workers, from `traffic_table`; the dense in grey.

    Both axes are logarithmic. Lines that rise in proportion to the workers are all-gathers.
    """
    require(not table.empty, "there is no traffic to draw")
    figure, ax = plt.subplots(figsize=(8.5, 5.0), layout="constrained")
    names = list(dict.fromkeys(table["compressor"]))
    lossy = [name for name in names if name != "none"]
    look: dict[str, Any]
    for name in names:
        part = table[table["compressor"] == name].sort_values("workers")
        if name == "none":
            look = {"color": "#3d3d3d", "linewidth": 3, "label": "dense ring"}
        else:
            number = lossy.index(name)
            colour = LINE_COLOURS[number % len(LINE_COLOURS)]
            style = STYLES[number // len(LINE_COLOURS) % len(STYLES)]
            look = {"color": colour, "linestyle": style, "label": name}
        ax.plot(part["workers"], part["bytes"] / MB, marker="o", markersize=4, **look)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    counts = sorted(table["workers"].unique())
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.set(xlabel="workers", ylabel="MB per worker and iteration")
    ax.set_title(f"{table['model'].iloc[0]}: what is gathered grows with the workers")
    figure.legend(loc="outside right upper", frameon=False)
    say_source(figure, table, "requests of each compressor, tensor by tensor")
    return figure


@styled
def iteration_parts(table: pd.DataFrame) -> Figure:
    """Milliseconds of an iteration, stacked by where they go: a panel per network.

    ``table`` has a row per network and method: network, method, source and the parts of
    `ddlnb.training.cost.iteration.IterationCost`. Methods keep the order of the table.
    """
    require(not table.empty, "there are no iterations to draw")
    networks = list(dict.fromkeys(table["network"]))
    methods = list(dict.fromkeys(table["method"]))
    figure, axes = plt.subplots(
        1,
        len(networks),
        figsize=(3.2 + 2.9 * len(networks), 1.4 + 0.34 * len(methods)),
        sharey=True,
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for ax, network in zip(axes[0], networks, strict=True):
        part = table[table["network"] == network].set_index("method").reindex(methods)
        _stack(ax, part, len(methods))
        ax.set(title=network, xlabel="ms per iteration")
    axes[0][0].set_yticks(range(len(methods)), [short(name) for name in methods])
    axes[0][0].set_ylim(len(methods) - 0.5, -0.5)
    longest = table[list(PARTS)].sum(axis=1).max() / MS
    axes[0][0].set_xlim(0, 1.05 * longest)  # shared
    handles = [Patch(facecolor=colour, label=name) for name, colour in PARTS.values()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(PARTS), frameon=False)
    only = table.head(1)[["source"]].assign(source="simulated")
    say_source(figure, only, _compression_note(table))
    return figure


@styled
def time_to_target(table: pd.DataFrame) -> Figure:
    """Minutes to the target per method and network, from `ddlnb.training.cost.time_to_target.time_to_target`.

    Whiskers are 95 % intervals over seeds; a method that does not reach the target has no bar, and
    the text on a bar is its speed-up over the dense best.
    """
    require(not table.empty, "there are no times to draw")
    networks = list(dict.fromkeys(table["network"]))
    methods = list(dict.fromkeys(table["method"]))
    figure, axes = plt.subplots(
        1,
        len(networks),
        figsize=(3.2 + 2.9 * len(networks), 1.4 + 0.34 * len(methods)),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for ax, network in zip(axes[0], networks, strict=True):
        part = table[table["network"] == network].set_index("method").reindex(methods)
        _times(ax, part)
        ax.set(title=network, xlabel="minutes to target")
    axes[0][0].set_yticks(range(len(methods)), [short(name) for name in methods])
    axes[0][0].set_ylim(len(methods) - 0.5, -0.5)
    first = table.iloc[0]
    figure.suptitle(
        f"{first['model']} on {first['workers']} workers, iterations of {first['task']} "
        f"to a test loss of {first['target']:g}",
        fontsize=10,
    )
    only = table.head(1)[["source"]].assign(source="iterations measured, seconds simulated")
    say_source(figure, only, _compression_note(table))
    return figure


def _stack(ax: Axes, part: pd.DataFrame, count: int) -> None:
    left = np.zeros(count)
    for column, (_, colour) in PARTS.items():
        width = part[column].fillna(0.0).to_numpy() / MS
        ax.barh(range(count), width, BAR_GROUP, left=left, color=colour)
        left += width


def _times(ax: Axes, part: pd.DataFrame) -> None:
    minutes = part["seconds"].to_numpy(dtype=float) / 60
    for number, (method, row) in enumerate(part.iterrows()):
        if not math.isfinite(row["seconds"]):
            ax.text(0.02, number, "never", transform=ax.get_yaxis_transform(), va="center")
            continue
        colour = "#3d3d3d" if row["is_dense"] else _colour(str(method))
        ax.barh(number, minutes[number], BAR_GROUP, color=colour)
        end = row["seconds"]
        if math.isfinite(row["low"]):
            reach = (row["high"] - row["low"]) / 2 / 60
            ax.errorbar(minutes[number], number, xerr=reach, color="black", capsize=2)
            end = row["high"]
        ax.annotate(
            f"{row['speedup']:.2f}x",
            (end / 60, number),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.margins(x=0.25)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_formatter(ScalarFormatter())


def _colour(method: str) -> str:
    from ddlnb.training.method import training_method  # brings torch

    lossy = training_method(method)
    if lossy.compressor is not None:
        return METHOD_COLOURS["ByteScheduler-A2A"]
    return METHOD_COLOURS["WFBP-A2A"] if lossy.synchronisation.name != "bsp" else OTHER_COLOUR


def _compression_note(table: pd.DataFrame) -> str:
    said: Sequence[str] = sorted(
        {
            source.partition("compression ")[2]
            for source in table["source"]
            if "compression " in source
        }
    )
    return f"compression {' and '.join(said)}" if said else "no compression"
