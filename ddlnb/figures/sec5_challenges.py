"""The challenges of section 5: adaptive periods, equal bytes, sizes of gradients, densities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.figures.colours import DARK, GREY, METHOD_COLOURS, PALETTE
from ddlnb.figures.style import (
    facets,
    legend,
    legend_line,
    names_down,
    say_source,
    short,
    styled,
)
from ddlnb.figures.target_label import target_label
from ddlnb.survey.sec5_2_relaxed_compression import SCALED
from ddlnb.units import MB, MS, counted

if TYPE_CHECKING:
    import pandas as pd

FIXED, ADAPTIVE = METHOD_COLOURS["WFBP-A2A"], METHOD_COLOURS["ByteScheduler-A2A"]
FACTORS = {
    "seconds": ("time to target", DARK, "-"),
    "iteration_seconds": ("seconds of an iteration", "#0072B2", "--"),
    "iterations": ("iterations to target", "#D55E00", ":"),
}
KIND_COLOURS = {"dense": GREY, "fixed": FIXED, "by layer": ADAPTIVE}
BAR = 0.8
BOTH = {"sharex": True, "sharey": True}
SOURCE = "iterations measured, seconds simulated"


@styled
def period_bars(times: pd.DataFrame) -> Figure:
    """Minutes to the target loss by the period H of local SGD: a bar per H, a panel per network.

    ``times`` are `period_times`. Whiskers are 95 % intervals over seeds. Grey: the time of the best
    fixed H.
    """
    methods = list(times["method"].unique()) if len(times) else []
    height = 1.3 + 0.36 * len(methods)
    figure, panels = facets(times, "machine", width=(2.8, 3.0), height=height, **BOTH)
    for ax, _, part in panels:
        for number, row in enumerate(part.to_dict("records")):
            colour = FIXED if row["fixed"] else ADAPTIVE
            _draw_time(ax, number, row, colour, unit=60)
        best = part.loc[part["best_fixed"], "seconds"].iloc[0] / 60
        ax.axvline(best, color=GREY, linestyle="--", linewidth=1)
        ax.set(title=part["network"].iloc[0], xlabel=target_label("minutes", times))
        ax.set_xlim(left=0)
    names_down(panels[0][0], [_short(name) for name in methods])
    legend(figure, [legend_line(GREY, "the best fixed H", "--")], "upper right")
    say_source(figure, times, _target(times))
    return figure


@styled
def loss_by_bytes(curves: pd.DataFrame) -> Figure:
    """Test loss against the bytes of a worker's link, both ways: a panel per synchronisation.

    ``curves`` have the column of `link_bytes`. Lines are means over seeds at equal steps.
    """
    compressions = list(curves["compression"].unique()) if len(curves) else []
    figure, panels = facets(curves, "synchronisation", width=(1.2, 3.7), height=3.9, **BOTH)
    for ax, _, part in panels:
        sent = part[part["link_bytes"] > 0]
        for compression, rows in sent.groupby("compression", sort=False):
            means = rows.groupby("step")[["link_bytes", "test_loss"]].mean()
            ax.plot(
                means["link_bytes"] / MB,
                means["test_loss"],
                color=PALETTE[compressions.index(compression) % len(PALETTE)],
                label="dense" if compression == "none" else f"{short(compression)} + feedback",
            )
        ax.set_xlabel("MB through a worker's link")
        ax.set_xscale("log")
    panels[0][0].set_ylabel("test loss")
    legend(figure, where="upper center", columns=len(compressions))
    say_source(
        figure, "lockstep, bytes counted", f"mean of {counted(curves['seed'].nunique(), 'seed')}"
    )
    return figure


@styled
def gradient_histograms(sizes: pd.DataFrame) -> Figure:
    """Shares of gradient entries by their size: a line per run, a panel per measure of size.

    ``sizes`` are from `gradient_sizes`.
    """
    figure, panels = facets(sizes, "measure", width=(1, 5), height=3.6)
    methods = list(sizes["method"].unique())
    colours = {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(methods)}
    for ax, measure, part in panels:
        for (method, _), run in part.groupby(["method", "seed"], sort=False):
            colour = colours[method]
            ax.step(run["bin"], 100 * run["share"], where="mid", color=colour, lw=1, alpha=0.8)
        unit = "|entry| / root mean square" if measure == SCALED else "|entry|"
        ax.set(title="", xlabel=f"log$_{{10}}$ {unit}")
    panels[0][0].set_ylabel("entries (%)")
    handles = [legend_line(colour, _short(name), "-") for name, colour in colours.items()]
    legend(figure, handles, "upper center", columns=4)
    say_source(figure, sizes, "a line per seed; the first bin holds all that is smaller")
    return figure


@styled
def level_curves(table: pd.DataFrame) -> Figure:
    """Time to target against the density, and its two factors: a panel per network.

    ``table`` is from `level_times`. Everything is in units of the best lossless method, which needs
    the iterations of dense BSP. A density that misses the target in some run has no time and no
    iterations.
    """
    figure, panels = facets(table, "machine", width=(1.2, 3.8), height=3.9, **BOTH)
    for ax, _, part in panels:
        dense = part[part["is_dense"]].iloc[0]
        sparse = part[~part["is_dense"]].sort_values("density")
        for column, (label, colour, style) in FACTORS.items():
            values = (sparse[column] / dense[column]).where(lambda ratio: ratio < math.inf)
            look: dict[str, Any] = {"color": colour, "linestyle": style, "label": label}
            ax.plot(sparse["density"], values, marker="o", markersize=4, **look)
        ax.axhline(1, color=GREY, linewidth=0.8)
        ax.set(title=part["network"].iloc[0], xlabel="density k/D", xscale="log")
        ax.set_yscale("log")
    panels[0][0].set_ylabel("times the best lossless method")
    legend(figure, where="upper center", columns=3)
    say_source(figure, SOURCE, _target(table))
    return figure


@styled
def density_steps(table: pd.DataFrame) -> Figure:
    """The density of every tensor by when its gradient is ready: a panel per network.

    ``table`` is from `density_by_layer`. A mark is a tensor, the larger the more entries it has.
    """
    figure, panels = facets(table, "network", width=(1.2, 3.4), height=3.2, **BOTH)
    for ax, _, part in panels:
        ready, share = part["ready"] / MS, part["elements"] / table["elements"].max()
        ax.step(ready, part["density"], where="post", color=ADAPTIVE, linewidth=1)
        ax.scatter(ready, part["density"], s=4 + 120 * share, color=ADAPTIVE, alpha=0.4, lw=0)
        ax.set(xlabel="gradient ready after (ms)", yscale="log", ylim=(0.0007, 1.5))
    panels[0][0].set_ylabel("density k/D")
    first = table.iloc[0]
    say_source(
        figure, table[["source"]], f"{first['model']}, {counted(first['workers'], 'worker')}"
    )
    return figure


@styled
def layer_bars(times: pd.DataFrame) -> Figure:
    """Milliseconds to the target by densities, fixed and by layer: a panel per network.

    ``times`` are `layer_times`. Bars are parted: the first part is what an iteration computes,
    times the iterations. Whiskers are 95 % intervals over seeds. Grey: the time of the best fixed
    density.
    """
    figure, panels = facets(times, "machine", width=(1.5, 4.2), height=3.9)
    for ax, _, part in panels:
        for number, row in enumerate(part.to_dict("records")):
            hidden = row["compute_seconds"] / row["iteration_seconds"]
            _draw_time(ax, number, row, KIND_COLOURS[row["kind"]], unit=MS, hidden=hidden)
        best = part.loc[part["kind"] == "fixed", "seconds"].min() / MS
        ax.axvline(best, color=GREY, linestyle="--", linewidth=1)
        names_down(ax, list(part["label"]))
        ax.set(title=part["network"].iloc[0], xlabel=target_label("ms", times))
        ax.set_xlim(left=0)
    legend(figure, [legend_line(GREY, "the best fixed density", "--")], "upper right")
    say_source(figure, SOURCE, f"{_target(times)}; pale: communication that nothing hides")
    return figure


def _draw_time(
    ax: Axes, number: int, row: dict[str, Any], colour: str, *, unit: float, hidden: float = 1.0
) -> None:
    """Draw a time with its interval; beyond the share ``hidden`` of it the bar is pale."""
    if not math.isfinite(row["seconds"]):
        ax.text(0.02, number, "not in all runs", transform=ax.get_yaxis_transform(), va="center")
        return
    total = row["seconds"] / unit
    ax.barh(number, total * hidden, BAR, color=colour)
    if hidden < 1:
        ax.barh(number, total * (1 - hidden), BAR, left=total * hidden, color=colour, alpha=0.4)
    if math.isfinite(row["low"]):
        reach = (row["high"] - row["low"]) / 2 / unit
        ax.errorbar(total, number, xerr=reach, color="black", capsize=2)


def _target(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    workers = f"{counted(first['workers'], 'worker')}, " if "workers" in first else ""
    return f"{first['model']}, {workers}to a test loss of {first['target']:g}"


def _short(method: str) -> str:
    return short(method).partition(" on ")[0]
