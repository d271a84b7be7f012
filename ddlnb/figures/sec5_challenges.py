"""The figures of section 5: adaptive periods, equal bytes, sizes of gradients, densities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ddlnb.errors import require
from ddlnb.figures.learning import PALETTE
from ddlnb.figures.style import METHOD_COLOURS, legend_line, say_source, styled
from ddlnb.studies.sec5_2_relaxed_compression.gradient_sizes import SCALED
from ddlnb.units import MB, MS

if TYPE_CHECKING:
    import pandas as pd

FIXED, ADAPTIVE = METHOD_COLOURS["WFBP-A2A"], METHOD_COLOURS["ByteScheduler-A2A"]
PARTS = {
    "seconds": ("time to target", "#3d3d3d", "-"),
    "iteration_seconds": ("seconds of an iteration", "#0072B2", "--"),
    "iterations": ("iterations to target", "#D55E00", ":"),
}
BAR = 0.8


@styled
def period_bars(times: pd.DataFrame) -> Figure:
    """Minutes to the target by `period_times`: a bar per H, a panel per network.

    Whiskers are 95 % intervals over seeds. Grey: the time of the best fixed H.
    """
    require(not times.empty, "there are no times to draw")
    machines = list(dict.fromkeys(times["machine"]))
    methods = list(dict.fromkeys(times["method"]))
    figure, axes = plt.subplots(
        1,
        len(machines),
        figsize=(2.8 + 3.0 * len(machines), 1.3 + 0.36 * len(methods)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for machine, ax in zip(machines, axes[0], strict=True):
        part = times[times["machine"] == machine]
        for number, row in enumerate(part.to_dict("records")):
            _bar(ax, number, row)
        best = part.loc[part["best_fixed"], "seconds"].iloc[0] / 60
        ax.axvline(best, color="#777777", linestyle="--", linewidth=1)
        ax.set(title=part["network"].iloc[0], xlabel="minutes to target")
        ax.set_xlim(left=0)
    axes[0][0].set_yticks(range(len(methods)), [_short(name) for name in methods])
    axes[0][0].set_ylim(len(methods) - 0.5, -0.5)
    grey = legend_line("#777777", "the best fixed H", "--")
    figure.legend(handles=[grey], loc="outside upper right", frameon=False)
    first = times.iloc[0]
    say_source(figure, times, f"{first['model']}, to a test loss of {first['target']:g}")
    return figure


def _bar(ax: Axes, number: int, row: dict) -> None:
    if not math.isfinite(row["seconds"]):
        ax.text(0.02, number, "not in all runs", transform=ax.get_yaxis_transform(), va="center")
        return
    colour = FIXED if row["fixed"] else ADAPTIVE
    ax.barh(number, row["seconds"] / 60, BAR, color=colour)
    if math.isfinite(row["low"]):
        reach = (row["high"] - row["low"]) / 2 / 60
        ax.errorbar(row["seconds"] / 60, number, xerr=reach, color="black", capsize=2)


@styled
def loss_by_bytes(curves: pd.DataFrame) -> Figure:
    """Test loss against the bytes of a worker's link, both ways: a panel per synchronisation.

    ``curves`` have the column of `link_bytes`. Lines are means over seeds at equal steps.
    """
    require(not curves.empty, "there are no curves to draw")
    kinds = list(dict.fromkeys(curves["synchronisation"]))
    compressions = list(dict.fromkeys(curves["compression"]))
    figure, axes = plt.subplots(
        1,
        len(kinds),
        figsize=(1.2 + 3.7 * len(kinds), 3.9),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for kind, ax in zip(kinds, axes[0], strict=True):
        part = curves[(curves["synchronisation"] == kind) & (curves["link_bytes"] > 0)]
        for compression, rows in part.groupby("compression", sort=False):
            means = rows.groupby("step")[["link_bytes", "test_loss"]].mean()
            number = compressions.index(compression)
            ax.plot(
                means["link_bytes"] / MB,
                means["test_loss"],
                color=PALETTE[number % len(PALETTE)],
                label="dense" if compression == "none" else f"{compression} + feedback",
            )
        ax.set(title=kind, xlabel="MB through a worker's link")
        ax.set_xscale("log")
    axes[0][0].set_ylabel("test loss")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=len(compressions),
        frameon=False,
    )
    lockstep = curves.head(1).assign(source="lockstep, bytes counted")
    say_source(figure, lockstep[["source"]], f"mean of {curves['seed'].nunique()} seeds")
    return figure


@styled
def gradient_histograms(sizes: pd.DataFrame) -> Figure:
    """Shares of gradient entries by their size, from `gradient_sizes`: a line per run."""
    require(not sizes.empty, "there are no gradients to draw")
    measures = list(dict.fromkeys(sizes["measure"]))
    methods = list(dict.fromkeys(sizes["method"]))
    figure, axes = plt.subplots(
        1, len(measures), figsize=(1 + 5 * len(measures), 3.6), squeeze=False, layout="constrained"
    )
    for measure, ax in zip(measures, axes[0], strict=True):
        part = sizes[sizes["measure"] == measure]
        for number, method in enumerate(methods):
            for _, run in part[part["method"] == method].groupby("seed"):
                ax.step(
                    run["bin"],
                    100 * run["share"],
                    where="mid",
                    color=PALETTE[number % len(PALETTE)],
                    linewidth=1,
                    alpha=0.8,
                )
        unit = "|entry| / root mean square" if measure == SCALED else "|entry|"
        ax.set_xlabel(f"log$_{{10}}$ {unit}")
    axes[0][0].set_ylabel("entries (%)")
    handles = [
        legend_line(PALETTE[number % len(PALETTE)], _short(method), "-")
        for number, method in enumerate(methods)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    say_source(figure, sizes, "a line per seed; the first bin holds all that is smaller")
    return figure


@styled
def level_curves(table: pd.DataFrame) -> Figure:
    """Time to target against the density, from `level_times`, and its two factors: a panel each.

    Everything is in units of the best lossless method, which needs the iterations of dense BSP. A
    density that misses the target in some run has no time and no iterations.
    """
    require(not table.empty, "there are no times to draw")
    machines = list(dict.fromkeys(table["machine"]))
    figure, axes = plt.subplots(
        1,
        len(machines),
        figsize=(1.2 + 3.8 * len(machines), 3.9),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for machine, ax in zip(machines, axes[0], strict=True):
        part = table[table["machine"] == machine]
        dense, sparse = part[part["is_dense"]].iloc[0], part[~part["is_dense"]]
        sparse = sparse.sort_values("density")
        for column, (label, colour, style) in PARTS.items():
            values = (sparse[column] / dense[column]).where(lambda ratio: ratio < math.inf)
            ax.plot(
                sparse["density"],
                values,
                color=colour,
                linestyle=style,
                marker="o",
                markersize=4,
                label=label,
            )
        ax.axhline(1, color="#777777", linewidth=0.8)
        ax.set(title=part["network"].iloc[0], xlabel="density k/D")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # often less than a decade
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    axes[0][0].set_ylabel("times the best lossless method")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False
    )
    first = table.iloc[0]
    note = f"{first['model']}, {first['workers']} workers, to a test loss of {first['target']:g}"
    only = table.head(1)[["source"]].assign(source="iterations measured, seconds simulated")
    say_source(figure, only, note)
    return figure


def _short(method: str) -> str:
    return method.partition(" on ")[0]


@styled
def density_steps(table: pd.DataFrame) -> Figure:
    """The density of every tensor by when its gradient is ready, from `density_by_layer`.

    A panel per network, and a mark per tensor, the larger the more entries it has.
    """
    require(not table.empty, "there are no densities to draw")
    networks = list(dict.fromkeys(table["network"]))
    figure, axes = plt.subplots(
        1,
        len(networks),
        figsize=(1.2 + 3.4 * len(networks), 3.2),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for network, ax in zip(networks, axes[0], strict=True):
        part = table[table["network"] == network]
        ready, share = part["ready"] / MS, part["elements"] / table["elements"].max()
        ax.step(ready, part["density"], where="post", color=ADAPTIVE, linewidth=1)
        ax.scatter(ready, part["density"], s=4 + 120 * share, color=ADAPTIVE, alpha=0.4, lw=0)
        ax.set(title=network, xlabel="gradient ready after (ms)")
        ax.set_yscale("log")
        ax.set_ylim(0.0007, 1.5)
    axes[0][0].set_ylabel("density k/D")
    first = table.iloc[0]
    say_source(figure, table[["source"]], f"{first['model']}, {first['workers']} workers")
    return figure


@styled
def layer_bars(times: pd.DataFrame) -> Figure:
    """Milliseconds to the target by `layer_times`: a bar per method, a panel per network.

    Bars are parted: the first part is what an iteration computes, times the iterations. Whiskers
    are 95 % intervals over seeds. Grey: the time of the best fixed density.
    """
    require(not times.empty, "there are no times to draw")
    machines = list(dict.fromkeys(times["machine"]))
    figure, axes = plt.subplots(
        1,
        len(machines),
        figsize=(1.5 + 4.2 * len(machines), 3.9),
        squeeze=False,
        layout="constrained",
    )
    for machine, ax in zip(machines, axes[0], strict=True):
        part = times[times["machine"] == machine]
        for number, row in enumerate(part.to_dict("records")):
            _parted_bar(ax, number, row)
        best = part.loc[part["kind"] == "fixed", "seconds"].min() / MS
        ax.axvline(best, color="#777777", linestyle="--", linewidth=1)
        ax.set_yticks(range(len(part)), part["label"])
        ax.set(ylim=(len(part) - 0.5, -0.5), title=part["network"].iloc[0])
        ax.set_xlabel("milliseconds to target")
        ax.set_xlim(left=0)
    grey = legend_line("#777777", "the best fixed density", "--")
    figure.legend(handles=[grey], loc="outside upper right", frameon=False)
    first = times.iloc[0]
    note = f"{first['model']}, {first['workers']} workers, to a test loss of {first['target']:g}"
    only = times.head(1)[["source"]].assign(source="iterations measured, seconds simulated")
    say_source(figure, only, f"{note}; pale: communication that nothing hides")
    return figure


KIND_COLOURS = {"dense": "#777777", "fixed": FIXED, "by layer": ADAPTIVE}


def _parted_bar(ax: Axes, number: int, row: dict) -> None:
    if not math.isfinite(row["seconds"]):
        ax.text(0.02, number, "not in all runs", transform=ax.get_yaxis_transform(), va="center")
        return
    colour, total = KIND_COLOURS[row["kind"]], row["seconds"] / MS
    computing = total * row["compute_seconds"] / row["iteration_seconds"]
    ax.barh(number, computing, BAR, color=colour)
    ax.barh(number, total - computing, BAR, left=computing, color=colour, alpha=0.4)
    if math.isfinite(row["low"]):
        ax.errorbar(
            total, number, xerr=(row["high"] - row["low"]) / 2 / MS, color="black", capsize=2
        )
