"""Throughput by method and workers, in the look of the survey's Fig. 4."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.figures.style import (
    BAR_GROUP,
    bar,
    colour_of,
    in_order,
    legend,
    legend_line,
    legend_methods,
    on_bar,
    say_source,
    styled,
)

RATE = "throughput_samples_per_s"


@styled
def throughput_bars(rows: pd.DataFrame) -> plt.Figure:
    """Throughput by method and number of workers, in the look of the survey's Fig. 4.

    One panel for every model, batch, network and source of the tidy rows that has shared work;
    panels of one model and batch share their axis. A number on a bar is the
    speed-up over one worker (the row of ``single``), a line on it one standard deviation.
    Published bars are hatched and paler.
    """
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
    return say_source(figure, pd.concat([panel for _, panel in panels]), "; ".join(said))


def about_lines(rows: pd.DataFrame) -> list[str]:
    """Say what the lines on bars are, if there are any: one run has no deviation."""
    return ["line: 1 std"] if (rows["std"].fillna(0) > 0).any() else []


def _throughput_panel(ax: plt.Axes, panel: pd.DataFrame, *, published: bool) -> None:
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
    ax.set(xlabel="workers", ylim=(0, max(tops) * 1.16))
    ax.grid(False, axis="x")
