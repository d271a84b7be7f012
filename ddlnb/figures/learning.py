"""Learning curves: loss or accuracy against steps, bytes sent or seconds, bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.errors import UnknownName, require
from ddlnb.figures.style import short, styled

if TYPE_CHECKING:
    import pandas as pd

# Okabe and Ito's palette again, in an order that keeps neighbours apart.
PALETTE = (
    *("#3d3d3d", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7a5230"),
)
DASHES = ("-", "--", ":", "-.")
AXES = {
    "step": ("gradients of every worker", 1.0),
    "bytes": ("MB through the link of a worker, both ways", 1e6),
    "seconds": ("seconds", 1.0),
}
MEASURES = {
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "train_loss": "training loss",
    "consensus_distance": "squared distance from the mean model",
}
BAND = 0.18  # how opaque
LEGEND_COLUMNS = (1, 3)  # above one panel, and above several


@styled
def learning_curves(
    curves: pd.DataFrame,
    measures: Sequence[str] = ("test_loss", "test_accuracy"),
    against: Sequence[str] = ("step", "bytes"),
    *,
    floor: float | None = None,
    log_loss: bool = False,
) -> Figure:
    """One row of panels per measure, one column per axis, one line per method and its rate.

    ``curves`` are those of `train` or `study`, of one task. Lines are means over seeds at equal
    steps, bands reach from the least to the largest; a line ends where the first of its runs
    diverged, with a cross. ``floor`` is drawn in panels of losses: the best possible one.
    Raises UnknownName for a measure or an axis and InputError for curves of several tasks.
    """
    for name in measures:
        if name not in MEASURES:
            raise UnknownName("measure", name, MEASURES)
    for name in against:
        if name not in AXES:
            raise UnknownName("axis", name, AXES)
    tasks = list(dict.fromkeys(curves["task"])) if len(curves) else []
    require(len(tasks) == 1, f"a figure shows one task, and there are {len(tasks)}: {tasks}")
    require(
        "seconds" not in against or bool(curves["seconds"].notna().any()),
        "these curves have no seconds; train with a clock, or leave that axis out",
    )
    if "bytes" in against:
        curves = curves.assign(bytes=curves["bytes_sent"] + curves["bytes_received"])
    lines = _lines(curves)
    columns = max(1, min(LEGEND_COLUMNS[len(against) > 1], len(lines)))
    figure, grid = plt.subplots(
        len(measures),
        len(against),
        figsize=(1 + 4.2 * len(against), 0.8 + 2.7 * len(measures) + 0.2 * len(lines) / columns),
        sharex="col",
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    styles = dict(zip(lines, _styles(), strict=False))
    for measure, axes in zip(measures, grid, strict=True):
        for axis, ax in zip(against, axes, strict=True):
            for label, runs in lines.items():
                _draw(ax, runs, axis, measure, label, styles[label])
            if floor is not None and measure.endswith("loss"):
                ax.axhline(floor, color="black", linewidth=0.8, linestyle=(0, (1, 3)))
            if log_loss and measure.endswith("loss"):
                ax.set_yscale("log")
        axes[0].set_ylabel(MEASURES[measure])
    for axis, ax in zip(against, grid[-1], strict=True):
        ax.set_xlabel(AXES[axis][0])
        if axis == "bytes":
            ax.set_xscale("log")  # methods differ by orders of magnitude
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False)
    seeds = curves["seed"].nunique()
    figure.supxlabel(
        f"{tasks[0]}, executor {' and '.join(curves['executor'].unique())} | "
        + (f"mean and range over {seeds} seeds" if seeds > 1 else "one seed")
        + (" | dotted: the best possible loss" if floor is not None else ""),
        fontsize=8,
        x=0.99,
        ha="right",
    )
    return figure


def _styles() -> list[tuple[str, str]]:
    colours = cycle(PALETTE)
    return [(next(colours), dash) for dash in DASHES for _ in PALETTE]


def _lines(curves: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by what the legend calls them: the method, and what differs beside it."""
    varying = [
        name
        for name in ("workers", "split", "optimizer", "learning_rate", "executor")
        if (curves.groupby("method")[name].nunique() > 1).any()
    ]
    found = {}
    for names, rows in curves.groupby(["method", *varying], sort=False):
        extra = [
            f"{name.replace('_', ' ')} {value:.3g}"
            if isinstance(value, float)
            else f"{value} {name}"
            for name, value in zip(varying, names[1:], strict=True)
        ]
        found[", ".join([short(names[0]), *extra])] = rows
    return found


def _draw(
    ax: Axes, rows: pd.DataFrame, axis: str, measure: str, label: str, style: tuple[str, str]
) -> None:
    colour, dash = style
    ended = rows.loc[rows["diverged"], "step"]
    kept = rows[~rows["diverged"] & (rows["step"] < ended.min())] if len(ended) else rows
    if axis == "bytes":
        kept = kept[kept[axis] > 0]
    means = kept.groupby("step")[[axis, measure] if axis != "step" else [measure]]
    middle, low, high = means.mean(), means.min()[measure], means.max()[measure]
    x = np.asarray(middle.index if axis == "step" else middle[axis], dtype=float) / AXES[axis][1]
    ax.plot(x, middle[measure], color=colour, linestyle=dash, linewidth=1.5, label=label)
    ax.fill_between(x, low, high, color=colour, alpha=BAND, linewidth=0)
    if len(ended) and len(x):
        ax.plot(x[-1], middle[measure].iloc[-1], marker="x", color=colour, markersize=8)
