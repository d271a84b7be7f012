"""Throughput, measured: by method and workers (Fig. 4), by engine, and over the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.colours import ENGINE_COLOURS, OTHER_COLOUR, colour_of
from ddlnb.figures.style import (
    BAR_GROUP,
    POINT,
    bar,
    in_order,
    legend,
    legend_line,
    legend_mark,
    legend_methods,
    names_down,
    on_bar,
    ordered,
    say_source,
    styled,
)
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

RATE = "throughput_samples_per_s"


@styled
def throughput_bars(rows: pd.DataFrame) -> Figure:
    """Throughput by method and number of workers, in the look of the survey's Fig. 4.

    One panel for every model, batch, network and source of the tidy rows that has shared work;
    panels of one model and batch share their axis. A number on a bar is the
    speed-up over one worker (the row of ``single``), a line on it one standard deviation.
    Published bars are hatched and paler.
    """
    import pandas as pd

    require(not rows.empty, "there are no rows to draw")
    grouped = rows.groupby(["model", "local_batch", "network", "source"], sort=False)
    panels = [(key, panel) for key, panel in grouped if set(panel["method"]) != {"single"}]
    require(bool(panels), "there are no rows to draw but those of one worker alone")
    counts = [panel.loc[panel["method"] != "single", "gpus"] for _, panel in panels]
    widths = [max(2, found.nunique()) for found in counts]
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(min(16, 1.6 + 3.6 * sum(widths) * 0.8), 4.4),
        width_ratios=widths,
        squeeze=False,
        sharey=len({key[:2] for key, _ in panels}) == 1,  # of one model and batch
    )
    for ax, ((model, batch, network, source), panel) in zip(axes[0], panels, strict=True):
        _throughput_panel(ax, panel, published=source == "published")
        ax.set_title(f"{model}, {batch} per worker, {network}\n({source})")
    axes[0][0].set_ylabel("throughput (samples/s)")
    methods = in_order(name for _, panel in panels for name in panel["method"])
    handles = legend_methods(methods)
    if "single" in methods:
        handles[methods.index("single")] = legend_line(colour_of("single"), "one worker", "--")
    legend(figure, handles)
    has_single = any("single" in set(panel["method"]) for _, panel in panels)
    said = ["number on a bar: speed-up over one worker"] * has_single + about_lines(rows)
    say_source(figure, pd.concat([panel for _, panel in panels]), "; ".join(said))
    return figure


def about_lines(rows: pd.DataFrame) -> list[str]:
    """Say what the lines on bars are, if there are any: one run has no deviation."""
    return ["line: 1 std"] if (rows["std"].fillna(0) > 0).any() else []


def _throughput_panel(ax: Axes, panel: pd.DataFrame, *, published: bool) -> None:
    single = panel.loc[panel["method"] == "single", RATE]
    base = float(single.median()) if len(single) else None
    if base is not None:
        ax.axhline(base, color=colour_of("single"), linestyle="--", linewidth=1.4, zorder=1)
    shared = panel[panel["method"] != "single"]
    methods = in_order(shared["method"].unique())
    counts = sorted(shared["gpus"].unique())
    width = BAR_GROUP / max(1, len(methods))
    tops = [base or 0.0]
    for _, row in shared.iterrows():
        slot = methods.index(row["method"]) - (len(methods) - 1) / 2
        x, height = counts.index(row["gpus"]) + slot * width, row[RATE]
        spread = float(np.nan_to_num(row["std"]))
        line = {"elinewidth": 1, "ecolor": "black", "capsize": 2}
        error = {"yerr": spread, "error_kw": line} if spread else {}
        bar(ax, x, height, width, colour_of(row["method"]), published=published, **error)
        tops.append(height + spread)
        if base:
            on_bar(ax, x, height + spread, f"{height / base:.2f}")
    ax.set_xticks(range(len(counts)), [str(count) for count in counts])
    ax.set_xlabel("workers")
    ax.set_ylim(0, max(tops) * 1.16)
    ax.grid(False, axis="x")


@styled
def engine_bars(rows: pd.DataFrame, reference: str = "torch") -> Figure:
    """Throughput by method, one bar per engine, one panel per model and number of workers.

    A number on a bar is its ratio to the reference engine's of the same method; lines are one
    standard deviation. Baselines (DDP, horovod's own) stand by themselves.
    """
    require(not rows.empty, "there are no rows to draw")
    rows = rows[rows["engine"] != "single"]
    panels = list(rows.groupby(["model", "local_batch", "gpus"], sort=False))
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 3.6 * len(panels)), squeeze=False)
    for ax, ((model, batch, gpus), panel) in zip(axes[:, 0], panels, strict=True):
        _engine_panel(ax, panel, reference)
        ax.set_title(
            f"{model}, {batch} per worker, {counted(gpus, 'worker')}, {panel['network'].iloc[0]}"
        )
        ax.set_ylabel("throughput (samples/s)")
    engines = ordered(rows["engine"], ENGINE_COLOURS)
    handles = [Patch(color=ENGINE_COLOURS.get(e, OTHER_COLOUR), label=e) for e in engines]
    legend(figure, handles, title="engine")
    said = [f"number on a bar: ratio to engine {reference}", *about_lines(rows)]
    say_source(figure, rows, "; ".join(said))
    return figure


def _engine_panel(ax: Axes, panel: pd.DataFrame, reference: str) -> None:
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


@styled
def over_baselines(rows: pd.DataFrame, baselines: Sequence[str] = ("DDP", "horovod")) -> Figure:
    """Throughput of every method over each baseline's, one line per network, model and workers.

    The dashed line is the baseline itself; points to its right are faster.
    """
    done = rows[rows["source"] == "emulated"]
    present = [name for name in baselines if name in set(done["method"])]
    require(bool(present), f"the rows hold none of the baselines {', '.join(baselines)}")
    cells = list(done.groupby(["network", "model", "gpus"], sort=False))
    figure, axes = plt.subplots(
        1,
        len(present),
        figsize=(6 * len(present), 1.2 + 0.32 * len(cells)),
        sharey=True,
        squeeze=False,
    )
    methods = [name for name in in_order(done["method"]) if name not in {*baselines, "single"}]
    for ax, baseline in zip(axes[0], present, strict=True):
        for line, (_, cell) in enumerate(cells):
            rate = cell.set_index("method")[RATE]
            for method in [name for name in methods if name in rate.index]:
                ratio = rate[method] / rate[baseline]
                ax.plot(ratio, line, marker="o", color=colour_of(method), **POINT)
        ax.axvline(1, color="black", linestyle="--", linewidth=1)
        ax.set_xlabel(f"throughput over {baseline} with its defaults")
    names_down(axes[0][0], [f"{network}, {model}, {gpus}" for (network, model, gpus), _ in cells])
    legend(figure, [legend_mark(colour_of(name), "o", name, **POINT) for name in methods])
    say_source(figure, done, "medians of alternating runs")
    return figure
