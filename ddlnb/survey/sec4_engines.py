"""Section 4.1: the same plans on our engine, on Horovod and on BytePS.

Throughput, measured: by method and workers (Fig. 4), by engine, and over the baselines.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from ddlnb.engines.catalogue import installed as installed, support
from ddlnb.figures.agreement import RATE, about_lines
from ddlnb.figures.style import (
    BAR_GROUP,
    ENGINE_COLOURS,
    OTHER_COLOUR,
    in_order,
    legend,
    on_bar,
    ordered,
    say_source,
    styled,
)
from ddlnb.units import counted


def support_table() -> pd.DataFrame:
    """Return, for every method and engine, "yes" or the reason why the engine cannot run it."""
    table = pd.DataFrame(support(), columns=["method", "engine", "reason"])
    wide = table.pivot(index="method", columns="engine", values="reason")
    return wide.replace("", "yes")


@styled
def engine_bars(rows: pd.DataFrame, reference: str = "torch") -> plt.Figure:
    """Throughput by method, one bar per engine, one panel per model and number of workers.

    A number on a bar is its ratio to the reference engine's of the same method; lines are one
    standard deviation. Baselines (DDP, horovod's own) stand by themselves.
    """
    rows = rows[rows["engine"] != "single"]
    panels = list(rows.groupby(["model", "local_batch", "gpus"], sort=False))
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 3.6 * len(panels)), squeeze=False)
    for ax, ((model, batch, gpus), panel) in zip(axes[:, 0], panels, strict=True):
        _engine_panel(ax, panel, reference)
        where = f"{counted(gpus, 'worker')}, {panel['network'].iloc[0]}"
        ax.set(title=f"{model}, {batch} per worker, {where}", ylabel="throughput (samples/s)")
    engines = ordered(rows["engine"], ENGINE_COLOURS)
    handles = [Patch(color=ENGINE_COLOURS.get(e, OTHER_COLOUR), label=e) for e in engines]
    legend(figure, handles, title="engine")
    said = [f"number on a bar: ratio to engine {reference}", *about_lines(rows)]
    return say_source(figure, rows, "; ".join(said))


def _engine_panel(ax: plt.Axes, panel: pd.DataFrame, reference: str) -> None:
    methods = in_order(panel["method"])
    base = panel[panel["engine"] == reference].set_index("method")[RATE]
    for slot, method in enumerate(methods):
        bars = panel[panel["method"] == method].drop_duplicates("engine").set_index("engine")
        engines = ordered(bars.index, ENGINE_COLOURS)
        width = BAR_GROUP / max(3, len(engines))
        for index, engine in enumerate(engines):
            x = slot + (index - (len(engines) - 1) / 2) * width
            rate, spread = bars.loc[engine, RATE], float(np.nan_to_num(bars.loc[engine, "std"]))
            colour = ENGINE_COLOURS.get(engine, OTHER_COLOUR)
            line = {"lw": 1, "capsize": 2}
            error: dict[str, Any] = {"yerr": spread, "error_kw": line} if spread else {}
            ax.bar(x, rate, width * 0.95, color=colour, **error)
            if method in base.index and engine != reference:
                on_bar(ax, x, rate + spread, f"{rate / base[method]:.2f}")
    ax.set_xticks(range(len(methods)), methods)
    ax.tick_params(axis="x", labelrotation=20)
    ax.grid(False, axis="x")
    ax.margins(y=0.18)
