"""The large-batch figure: final test loss and accuracy against the global batch, by recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.learning import PALETTE
from ddlnb.figures.style import say_source, styled

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {"test_loss": "test loss", "test_accuracy": "test accuracy (%)"}
FACTORS = {"test_loss": 1.0, "test_accuracy": 100.0}
SPREAD = 1.02  # between neighbouring recipes, so that lines of errors do not hide one another


@styled
def large_batch_quality(quality: pd.DataFrame, note: str = "") -> Figure:
    """Two panels with one line per recipe; ``quality`` is that of `ddlnb.studies.sec3_1_1_large_batch`.

    Bars are 95 % t-intervals over seeds. Where runs diverged the mean loss is infinite: a cross on
    the upper edge instead of a point.
    """
    require(not quality.empty, "there are no batches to draw")
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    recipes = list(dict.fromkeys(quality["recipe"]))
    for ax, measure in zip(panels, MEASURES, strict=True):
        for number, recipe in enumerate(recipes):
            shift = SPREAD ** (number - (len(recipes) - 1) / 2)
            part = quality[quality["recipe"] == recipe].sort_values("batch")
            _draw(ax, part, measure, PALETTE[number % len(PALETTE)], shift)
        batches = sorted(set(quality["batch"]))
        ax.set_xscale("log", base=2)
        ax.set_xticks(batches, [str(batch) for batch in batches])
        ax.minorticks_off()
        ax.set(xlabel="global batch", ylabel=MEASURES[measure])
    panels[0].set_yscale("log")
    low, high = panels[1].get_ylim()
    panels[1].set_ylim(max(low, -2.0), min(high, 102.0))  # intervals know no bounds, shares do
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)
    seeds = int(quality["seeds"].max())
    bars = f"mean and 95 % t-interval over {seeds} seeds" if seeds > 1 else "one seed"
    said = "; ".join(part for part in ("equal epochs", note, bars, "x: diverged") if part)
    say_source(figure, quality, said)
    return figure


def _draw(ax: Axes, part: pd.DataFrame, measure: str, colour: str, shift: float) -> None:
    x = part["batch"].to_numpy(dtype=float) * shift
    y = part[measure].to_numpy(dtype=float) * FACTORS[measure]
    half = np.nan_to_num(part[f"{measure}_half_width"].to_numpy(dtype=float)) * FACTORS[measure]
    fine = np.isfinite(y)
    low = np.minimum(half, 0.9 * np.abs(y)) if measure == "test_loss" else half
    ax.errorbar(
        x[fine],
        y[fine],
        yerr=[low[fine], half[fine]],
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.5,
        elinewidth=0.9,
        capsize=2,
        label=part["recipe"].iloc[0],
    )
    if fine.all():
        return
    ax.plot(
        x[~fine],
        np.full((~fine).sum(), 0.97),
        transform=ax.get_xaxis_transform(),
        marker="x",
        linestyle="",
        color=colour,
    )
