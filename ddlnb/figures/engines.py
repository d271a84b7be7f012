"""The engines figure: the same work on every engine that can do it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import BAR_GROUP, in_order, on_bar, ordered, say_source, styled

if TYPE_CHECKING:
    import pandas as pd

ENGINE_COLOURS = {
    "single": "#999999",
    "ddp": "#3d3d3d",
    "torch": "#0072B2",
    "horovod": "#E69F00",
    "byteps": "#009E73",
}
RATE = "throughput_samples_per_s"


@styled
def engine_bars(rows: pd.DataFrame, reference: str = "torch") -> Figure:
    """Throughput by method, one bar per engine, one panel per model and number of workers.

    A number on a bar is its ratio to the reference engine's of the same method; lines are one
    standard deviation. Baselines (DDP, horovod's own) stand by themselves.
    """
    require(not rows.empty, "there are no rows to draw")
    rows = rows[rows["engine"] != "single"]
    panels = list(rows.groupby(["model", "local_batch", "gpus"], sort=False))
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(11, 3.6 * len(panels)), squeeze=False, layout="constrained"
    )
    for ax, ((model, batch, gpus), panel) in zip(axes[:, 0], panels, strict=True):
        _panel(ax, panel, reference)
        ax.set_title(f"{model}, {batch} per worker, {gpus} workers, {panel['network'].iloc[0]}")
        ax.set_ylabel("throughput (samples/s)")
    engines = ordered(rows["engine"], ENGINE_COLOURS)
    handles: list[Any] = [Patch(color=ENGINE_COLOURS.get(e, "#b0a695"), label=e) for e in engines]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, title="engine")
    say_source(figure, rows, f"number on a bar: ratio to engine {reference}; line: 1 std")
    return figure


def _panel(ax: Axes, panel: pd.DataFrame, reference: str) -> None:
    methods = in_order(panel["method"])
    base = panel[panel["engine"] == reference].set_index("method")[RATE]
    for place, method in enumerate(methods):
        bars = panel[panel["method"] == method]
        engines = ordered(bars["engine"], ENGINE_COLOURS)
        width = BAR_GROUP / max(3, len(engines))
        for index, engine in enumerate(engines):
            row = bars[bars["engine"] == engine].iloc[0]
            at = place + (index - (len(engines) - 1) / 2) * width
            spread = row["std"] if row["std"] == row["std"] else 0.0
            colour = ENGINE_COLOURS.get(engine, "#b0a695")
            ax.bar(at, row[RATE], width * 0.95, yerr=spread, color=colour, error_kw={"lw": 1})
            if method in base.index and engine != reference:
                on_bar(ax, at, row[RATE] + spread, f"{row[RATE] / base[method]:.2f}")
    ax.set_xticks(range(len(methods)), methods)
    ax.tick_params(axis="x", labelrotation=20)
    ax.grid(False, axis="x")
    ax.margins(y=0.18)
