"""Learning: curves against steps, bytes or seconds, and what a large batch leaves of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.errors import UnknownName, require
from ddlnb.figures.colours import PALETTE, line_look
from ddlnb.figures.style import (
    doubling_axis,
    legend,
    note,
    over_seeds,
    say_source,
    short,
    styled,
)
from ddlnb.units import MB

if TYPE_CHECKING:
    import pandas as pd

AXES = {
    "step": ("gradients of every worker", 1.0),
    "bytes": ("MB through the link of a worker, both ways", MB),
    "seconds": ("seconds", 1.0),
}
MEASURES = {
    "test_loss": "test loss",
    "test_accuracy": "test accuracy (%)",
    "train_loss": "training loss",
    "consensus_distance": "squared distance from the mean model",
}
BAND = 0.18  # the opacity of the range over seeds
LEGEND_COLUMNS = (1, 3)  # above one panel, and above several
QUALITIES = {"test_loss": ("test loss", 1.0), "test_accuracy": ("test accuracy (%)", 100.0)}
APART = 1.02  # between neighbouring recipes, so that their intervals do not hide one another


@styled
def learning_curves(
    curves: pd.DataFrame,
    measures: Sequence[str] = ("test_loss", "test_accuracy"),
    against: Sequence[str] = ("step", "bytes"),
    *,
    floor: float | None = None,
    log_loss: bool = False,
) -> Figure:
    """Learning curves: a row of panels per measure, a column per axis, a line per method and rate.

    ``curves`` are those of `train` or `study`, of one task. Lines are means over seeds at equal
    steps, bands reach from the least to the largest; a line ends where the first of its runs
    diverged, with a cross. ``floor`` is drawn in panels of losses: the best possible one.
    Raises UnknownName for a measure or an axis and InputError for curves of several tasks.
    """
    for kind, names, known in (("measure", measures, MEASURES), ("axis", against, AXES)):
        for name in names:
            if name not in known:
                raise UnknownName(kind, name, known)
    tasks = list(curves["task"].unique()) if len(curves) else []
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
    )
    for measure, axes in zip(measures, grid, strict=True):
        is_loss = measure.endswith("loss")
        for axis, ax in zip(against, axes, strict=True):
            for number, (label, runs) in enumerate(lines.items()):
                _draw_curve(ax, runs, axis, measure, label, line_look(number))
            if floor is not None and is_loss:
                ax.axhline(floor, color="black", linewidth=0.8, linestyle=(0, (1, 3)))
        for ax in axes if log_loss and is_loss else ():
            ax.set_yscale("log")
        axes[0].set_ylabel(MEASURES[measure])
    for axis, ax in zip(against, grid[-1], strict=True):
        ax.set_xlabel(AXES[axis][0])
        if axis == "bytes":
            ax.set_xscale("log")  # methods differ by orders of magnitude
    legend(figure, where="upper left", columns=columns)
    seeds = curves["seed"].nunique()
    said = [f"source: measured on {tasks[0]}, executor {' and '.join(curves['executor'].unique())}"]
    said += [f"mean and range over {seeds} seeds" if seeds > 1 else "one seed"]
    said += ["dotted: the best possible loss"] * (floor is not None)
    note(figure, " | ".join(said))
    return figure


def _lines(curves: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return rows by what the legend calls them: the method, and what differs beside it."""
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


def _draw_curve(
    ax: Axes, rows: pd.DataFrame, axis: str, measure: str, label: str, look: dict[str, Any]
) -> None:
    ended = rows.loc[rows["diverged"], "step"]
    kept = rows[~rows["diverged"] & (rows["step"] < ended.min())] if len(ended) else rows
    if axis == "bytes":
        kept = kept[kept[axis] > 0]
    if measure == "test_accuracy":
        kept = kept.assign(test_accuracy=100 * kept[measure])
    means = kept.groupby("step")[[axis, measure] if axis != "step" else [measure]]
    middle, low, high = means.mean(), means.min()[measure], means.max()[measure]
    x = np.asarray(middle.index if axis == "step" else middle[axis], dtype=float) / AXES[axis][1]
    ax.plot(x, middle[measure], linewidth=1.5, label=label, **look)
    ax.fill_between(x, low, high, color=look["color"], alpha=BAND, linewidth=0)
    if len(ended) and len(x):
        ax.plot(x[-1], middle[measure].iloc[-1], marker="x", color=look["color"], markersize=8)


@styled
def large_batch_quality(quality: pd.DataFrame, remark: str = "") -> Figure:
    """Final test loss and accuracy against the global batch, a line per recipe.

    ``quality`` is that of `ddlnb.survey.sec3_1_1_large_batch`. Bars are 95 % t-intervals over
    seeds, cut where no loss or accuracy can be. Where runs diverged the mean loss is infinite: a
    cross on the upper edge, no point.
    """
    require(not quality.empty, "there are no batches to draw")
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4))
    recipes = list(quality.groupby("recipe", sort=False))
    for ax, measure in zip(panels, QUALITIES, strict=True):
        for number, (_, part) in enumerate(recipes):
            apart = APART ** (number - (len(recipes) - 1) / 2)
            colour = PALETTE[number % len(PALETTE)]
            _draw_quality(ax, part.sort_values("batch"), measure, colour, apart)
        doubling_axis(ax, sorted(set(quality["batch"])))
        if measure == "test_loss":
            ax.set_yscale("log")
        ax.set(xlabel="global batch", ylabel=QUALITIES[measure][0])
    legend(figure, where="upper left", columns=3)
    said = ["equal epochs", remark, over_seeds(int(quality["seeds"].max())), "x: diverged"]
    say_source(figure, quality, "; ".join(filter(None, said)))
    return figure


def possible(
    means: np.ndarray, half_widths: np.ndarray, measure: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far intervals reach down and up: a loss is not negative, an accuracy 0 to 100 %.

    >>> down, up = possible(np.array([98.0]), np.array([5.0]), "test_accuracy")
    >>> down.tolist(), up.tolist()
    ([5.0], [2.0])
    """
    down = np.minimum(half_widths, means)
    return down, np.minimum(half_widths, 100 - means) if measure == "test_accuracy" else half_widths


def _draw_quality(ax: Axes, part: pd.DataFrame, measure: str, colour: str, apart: float) -> None:
    factor = QUALITIES[measure][1]
    x = part["batch"].to_numpy(dtype=float) * apart
    y = part[measure].to_numpy(dtype=float) * factor
    half = np.nan_to_num(part[f"{measure}_half_width"].to_numpy(dtype=float)) * factor
    down, up = possible(y, half, measure)
    fine = np.isfinite(y)
    ax.errorbar(
        x[fine],
        y[fine],
        yerr=[down[fine], up[fine]],
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.5,
        elinewidth=0.9,
        capsize=2,
        label=part["recipe"].iloc[0],
    )
    top = np.full((~fine).sum(), 0.97)
    ax.plot(x[~fine], top, "x", color=colour, transform=ax.get_xaxis_transform())
