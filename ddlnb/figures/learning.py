"""Learning curves against steps, bytes or seconds, and what times to a target are drawn with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ddlnb.errors import require, require_known
from ddlnb.figures.style import (
    BAR_GROUP,
    METHOD_COLOURS,
    legend,
    line_look,
    note,
    short,
    styled,
)
from ddlnb.units import MB, counted

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


@styled
def learning_curves(
    curves: pd.DataFrame,
    measures: Sequence[str] = ("test_loss", "test_accuracy"),
    against: Sequence[str] = ("step", "bytes"),
    *,
    floor: float | None = None,
    log_loss: bool = False,
) -> plt.Figure:
    """Learning curves: a row of panels per measure, a column per axis, a line per method and rate.

    ``curves`` are those of `train` or `study`, of one task. Lines are means over seeds at equal
    steps, bands reach from the least to the largest; a line ends where the first of its runs
    diverged, with a cross. ``floor`` is drawn in panels of losses: the best possible one.
    Raises UnknownName for a measure or an axis and InputError for curves of several tasks.
    """
    for kind, names, known in (("measure", measures, MEASURES), ("axis", against, AXES)):
        for name in names:
            require_known(kind, name, known)
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
    return note(figure, " | ".join(said))


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
    ax: plt.Axes, rows: pd.DataFrame, axis: str, measure: str, label: str, look: dict[str, Any]
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


# Times to a target, which iterations measured on one task and seconds simulated for a model make.
FIXED, ADAPTIVE = METHOD_COLOURS["WFBP-A2A"], METHOD_COLOURS["ByteScheduler-A2A"]
BOTH = {"sharex": True, "sharey": True}
SOURCE = "iterations measured, seconds simulated"


def target_label(unit: str, table: pd.DataFrame) -> str:
    """Return the label of an axis of times to a target, in this unit.

    ``table`` has the columns task, whose iterations were measured, and model, whose seconds were
    simulated.

    >>> import pandas as pd
    >>> print(target_label("minutes", pd.DataFrame({"task": ["digits"], "model": ["bert-large"]})))
    minutes to target: seconds
    of bert-large, iterations of digits
    """
    first = table.iloc[0]
    task, model = first["task"], first["model"]
    whose = (
        f"iterations\nand seconds of {task}"
        if task == model
        else f"seconds\nof {model}, iterations of {task}"
    )
    return f"{unit} to target: {whose}"


def target_of(table: pd.DataFrame) -> str:
    """Say which target the times of a table are to."""
    first = table.iloc[0]
    counts = sorted(set(table["workers"])) if "workers" in first else []
    workers = f"{' and '.join(map(str, counts[:-1]))} and " * (len(counts) > 1)
    workers += f"{counted(counts[-1], 'worker')}, " if counts else ""
    task = f"iterations of {first['task']} " if "task" in first else ""
    return f"{first['model']}, {workers}{task}to a test loss of {first['target']:g}"


def draw_time(
    ax: plt.Axes,
    place: float,
    row: Mapping[str, Any],
    colour: str,
    *,
    unit: float,
    hidden: float = 1.0,
    never: str = "not in all runs",
) -> float:
    """Draw a time with its interval, and return where they end; past ``hidden`` of it it is pale.

    ``unit`` are the seconds of one on the axis. What has no finite time is said to be ``never``.
    """
    ax.grid(visible=False, axis="y")  # it would strike what is written beside the bar
    if not math.isfinite(row["seconds"]):
        ax.text(0.02, place, never, transform=ax.get_yaxis_transform(), va="center")
        return math.nan
    total = row["seconds"] / unit
    ax.barh(place, total * hidden, BAR_GROUP, color=colour)
    if hidden < 1:
        ax.barh(
            place, total * (1 - hidden), BAR_GROUP, left=total * hidden, color=colour, alpha=0.4
        )
    if not math.isfinite(row["low"]):
        return total
    below, above = total - row["low"] / unit, row["high"] / unit - total
    ax.errorbar(total, place, xerr=[[below], [above]], color="black", capsize=2)
    return total + above
