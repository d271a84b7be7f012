"""The figures of compressors alone: what they lose beside their bounds, what feedback keeps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlnb.errors import require
from ddlnb.figures.learning import DASHES, PALETTE
from ddlnb.figures.style import say_source, styled

if TYPE_CHECKING:
    import pandas as pd

MARKERS = ("o", "s", "^", "D")


@styled
def compression_losses(table: pd.DataFrame) -> Figure:
    """A line per compressor: the share of the squared norm it loses, and in grey its bound.

    ``table`` is one or several of `compression_study.compression_errors`, one colour for each that
    was compressed. Beyond the dashed line more is lost than there was.
    """
    require(not table.empty, "there are no losses to draw")
    names = list(dict.fromkeys(table["compressor"]))
    inputs = list(dict.fromkeys(table["on"]))
    figure, ax = plt.subplots(figsize=(8.0, 1.6 + 0.32 * len(names)), layout="constrained")
    apart = 0.5 / max(1, len(inputs))
    for number, what in enumerate(inputs):
        part = table[table["on"] == what].set_index("compressor").reindex(names)
        heights = [at + (number - (len(inputs) - 1) / 2) * apart for at in range(len(names))]
        drawn = [value if math.isfinite(value) else math.nan for value in part["bound"]]
        ax.plot(drawn, heights, "|", color="#777777", markersize=11, markeredgewidth=2)
        colour, marker = PALETTE[number + 1], MARKERS[number % len(MARKERS)]
        ax.plot(part["loss"], heights, marker, color=colour, markersize=6, label=what)
    ax.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    ax.set_xscale("log")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel("mean squared error over squared norm, one round without memory")
    handles, labels = ax.get_legend_handles_labels()
    handles.append(Line2D([], [], color="#777777", marker="|", linestyle="", markersize=11))
    figure.legend(handles, [*labels, "bound"], loc="outside upper center", ncols=4, frameon=False)
    say_source(figure, table, "tensor by tensor; no mark: no bound")
    return figure


@styled
def feedback_residuals(table: pd.DataFrame) -> Figure:
    """What error feedback keeps against the steps, from `compression_study.residual_growth`."""
    require(not table.empty, "there are no residuals to draw")
    figure, ax = plt.subplots(figsize=(8.0, 4.2), layout="constrained")
    for number, (name, rows) in enumerate(table.groupby("compressor", sort=False)):
        dash = DASHES[number // len(PALETTE) % len(DASHES)]
        colour = PALETTE[number % len(PALETTE)]
        ax.plot(rows["step"], rows["residual"], color=colour, linestyle=dash, label=name)
    ax.set_yscale("log")
    ax.set(xlabel="step", ylabel="norm of the residual over that of a gradient")
    figure.legend(loc="outside right upper", frameon=False)
    say_source(figure, table, "one worker, fed gradient after gradient")
    return figure
