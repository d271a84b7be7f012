"""Compressors alone: their errors with the bounds, and what error feedback keeps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.colours import GREY, PALETTE, line_look
from ddlnb.figures.style import legend, legend_mark, names_down, say_source, short, styled

if TYPE_CHECKING:
    import pandas as pd

MARKERS = ("o", "s", "^", "D")


@styled
def compression_losses(table: pd.DataFrame) -> Figure:
    """The share of the squared norm that each compressor loses, and in grey its bound.

    ``table`` is one or several of `compression_errors`, one colour for each that was compressed.
    Beyond the dashed line more is lost than there was.
    """
    require(not table.empty, "there are no losses to draw")
    names, inputs = list(table["compressor"].unique()), list(table["on"].unique())
    figure, ax = plt.subplots(figsize=(8.0, 1.6 + 0.32 * len(names)))
    apart = 0.5 / len(inputs)
    for number, what in enumerate(inputs):
        part = table[table["on"] == what].set_index("compressor").reindex(names)
        lines = [line + (number - (len(inputs) - 1) / 2) * apart for line in range(len(names))]
        bounds = [bound if math.isfinite(bound) else math.nan for bound in part["bound"]]
        ax.plot(bounds, lines, "|", color=GREY, markersize=11, markeredgewidth=2)
        colour, marker = PALETTE[number + 1], MARKERS[number % len(MARKERS)]
        ax.plot(part["loss"], lines, marker, color=colour, markersize=6, label=what)
    ax.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    ax.set_xscale("log")
    names_down(ax, [short(name) for name in names])
    ax.set_xlabel("mean squared error over squared norm, one round without memory")
    handles, _ = ax.get_legend_handles_labels()
    handles.append(legend_mark(GREY, "|", "bound", markersize=11))
    legend(figure, handles, "upper center", columns=4)
    say_source(figure, table, "tensor by tensor; no mark: no bound")
    return figure


@styled
def feedback_residuals(table: pd.DataFrame) -> Figure:
    """What error feedback keeps back, step by step, by compressor.

    ``table`` is from `residual_growth`.
    """
    require(not table.empty, "there are no residuals to draw")
    figure, ax = plt.subplots(figsize=(8.0, 4.2))
    for number, (name, rows) in enumerate(table.groupby("compressor", sort=False)):
        ax.plot(rows["step"], rows["residual"], label=short(str(name)), **line_look(number))
    ax.set_yscale("log")
    ax.set(xlabel="step", ylabel="norm of the residual over that of a gradient")
    legend(figure)
    say_source(figure, table, "one worker, fed gradient after gradient")
    return figure
