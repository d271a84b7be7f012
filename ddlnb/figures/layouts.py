"""Layouts of large models: forecast against published, errors by degree, and a map of them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ddlnb.errors import require
from ddlnb.figures.colours import GREY, PALETTE
from ddlnb.figures.style import legend, say_source, styled

if TYPE_CHECKING:
    import pandas as pd

NEAR = 0.2
KINDS = {"model": "a model", "gpus": "most GPUs"}
NO_LAYOUT = "#f0f0f0"


@styled
def layout_forecasts(rows: pd.DataFrame, source: str) -> Figure:
    """Forecast against published throughput of runs that the fit had not seen, a dot for a run.

    ``rows`` have the columns left_out, model, measured and tokens_per_s_per_gpu; a panel for what
    was left out. Between the dashed lines forecasts are within 20 %.
    """
    require(not rows.empty, "there are no rows to draw")
    panels = list(dict.fromkeys(rows["left_out"]))
    models = list(dict.fromkeys(rows["model"]))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.4 * len(panels) + 1.6, 3.9), squeeze=False, sharey=True
    )
    ends = np.array([rows["measured"].min() / 2, rows["measured"].max() * 2])
    for ax, panel in zip(axes[0], panels, strict=True):
        part = rows[rows["left_out"] == panel]
        for share in (1 - NEAR, 1, 1 + NEAR):
            look = "-" if share == 1 else "--"
            ax.plot(ends, share * ends, look, color=GREY, linewidth=0.8)
        for model, of in part.groupby("model", sort=False):
            colour = PALETTE[1 + models.index(model)]
            ax.plot(of["measured"], of["tokens_per_s_per_gpu"], ".", color=colour, markersize=5)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=f"without {panel}")
        ax.set_xlabel("published (tokens/s per GPU)")
    axes[0, 0].set_ylabel("forecast (tokens/s per GPU)")
    marks = [
        Line2D([], [], marker=".", linestyle="none", color=PALETTE[1 + i], label=model)
        for i, model in enumerate(models)
    ]
    legend(figure, marks)
    say_source(figure, source, "dashed: 20 % off")
    return figure


@styled
def layout_errors(scores: pd.DataFrame, source: str) -> Figure:
    """Median error of forecasts by the degree that was left out, beside trivial forecasts.

    ``scores`` have the columns kind, left_out, forecast and median; a panel per kind, a bar per
    degree and forecast.
    """
    require(not scores.empty, "there are no rows to draw")
    kinds = list(dict.fromkeys(scores["kind"]))
    names = list(dict.fromkeys(scores["forecast"]))
    counts = [scores.loc[scores["kind"] == kind, "left_out"].nunique() for kind in kinds]
    figure, axes = plt.subplots(
        1, len(kinds), figsize=(1.0 * sum(counts) + 3, 3.8), squeeze=False, sharey=True,
        width_ratios=counts,
    )  # fmt: skip
    for ax, kind in zip(axes[0], kinds, strict=True):
        part = scores[scores["kind"] == kind]
        degrees = list(dict.fromkeys(part["left_out"]))
        _bars(ax, part, degrees, names)
        ax.set(yscale="log", title=f"left out: {KINDS.get(kind, kind)}")
    axes[0, 0].set_ylabel("median error (%)")
    marks = [Line2D([], [], color=PALETTE[i + 1], linewidth=6, label=name)
             for i, name in enumerate(names)]  # fmt: skip
    legend(figure, marks)
    say_source(figure, source, "a rule that only picks has no error")
    return figure


def _bars(ax: Axes, part: pd.DataFrame, degrees: list[str], names: list[str]) -> None:
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        of = part[part["forecast"] == name].set_index("left_out")["median"]
        heights = [100 * of.get(degree, np.nan) for degree in degrees]
        places = np.arange(len(degrees)) + (i - (len(names) - 1) / 2) * width
        ax.bar(places, heights, width, color=PALETTE[i + 1])
    labels = [degree.removeprefix("llama-").replace(" GPUs", "") for degree in degrees]
    ax.set_xticks(range(len(degrees)), labels)
    ax.set_xlabel("what was left out")


@styled
def layout_map(rates: pd.DataFrame, title: str, source: str) -> Figure:
    """Throughput of the best layout of every split, by degrees of tensor and pipeline parallelism.

    ``rates`` has tp in its index, pp in its columns, and tokens/s per GPU, NaN where nothing fits.
    """
    require(not rates.empty, "there are no rows to draw")
    size = (0.85 * len(rates.columns) + 2.6, 0.5 * len(rates) + 1.6)
    figure, ax = plt.subplots(figsize=size)
    values = rates.to_numpy(float)
    ax.set_facecolor(NO_LAYOUT)
    shown = ax.imshow(values, cmap="viridis", vmin=0, aspect="auto")
    half = np.nanmax(values) / 2
    for (y, x), value in np.ndenumerate(values):
        said = f"{value:.0f}" if np.isfinite(value) else "-"
        bright = np.isfinite(value) and value < half
        ax.text(x, y, said, ha="center", va="center", fontsize=8,
                color="white" if bright else "black")  # fmt: skip
    ax.set_xticks(range(len(rates.columns)), [str(int(pp)) for pp in rates.columns])
    ax.set_yticks(range(len(rates)), [str(int(tp)) for tp in rates.index])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel="stages of the pipeline (pp)", ylabel="ranks of a tensor (tp)")
    ax.set_title(f"{title}: tokens/s per GPU")
    ax.grid(False)
    figure.colorbar(shown, ax=ax)
    say_source(figure, source, "grey: nothing fits")
    return figure
