"""The throughput figure: bars by method and number of workers, the look of the survey's Fig. 4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import (
    BAR_GROUP,
    PUBLISHED_HATCH,
    colour_of,
    in_order,
    legend_line,
    on_bar,
    say_source,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd


@styled
def throughput_bars(rows: pd.DataFrame) -> Figure:
    """Throughput by method and number of workers, the look of the survey's Fig. 4.

    One panel for every model, batch, network and source of the tidy rows. A number on a bar is the
    speed-up over one worker (the row of ``single``), a line on it one standard deviation.
    Published bars are hatched and paler.
    """
    require(not rows.empty, "there are no rows to draw")
    panels = list(rows.groupby(["model", "local_batch", "network", "source"], sort=False))
    widths = [max(2, _groups(panel)) for _, panel in panels]
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(min(16, 1.6 + 3.6 * sum(widths) * 0.8), 4.4),
        width_ratios=widths,
        squeeze=False,
        layout="constrained",
    )
    for ax, ((model, batch, network, source), panel) in zip(axes[0], panels, strict=True):
        _throughput_panel(ax, panel, hatched=source == "published")
        ax.set_title(f"{model}, {batch} per worker, {network}\n({source})")
    axes[0][0].set_ylabel("throughput (samples/s)")
    methods = in_order(rows["method"].unique())
    handles: list[Any] = [Patch(color=colour_of(name), label=name) for name in methods]
    if "single" in methods:
        handles[methods.index("single")] = legend_line(colour_of("single"), "one worker", "--")
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    say_source(figure, rows, "number on a bar: speed-up over one worker; line: 1 std")
    return figure


def _groups(panel: pd.DataFrame) -> int:
    return int(panel.loc[panel["method"] != "single", "gpus"].nunique())


def _throughput_panel(ax: Axes, panel: pd.DataFrame, *, hatched: bool) -> None:
    single = panel.loc[panel["method"] == "single", "throughput_samples_per_s"]
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
        x, height = counts.index(row["gpus"]) + slot * width, row["throughput_samples_per_s"]
        spread = row["std"] if row["std"] == row["std"] else 0.0
        ax.bar(
            x,
            height,
            width * 0.94,
            color=colour_of(row["method"]),
            alpha=0.55 if hatched else 1.0,
            hatch=PUBLISHED_HATCH if hatched else None,
            edgecolor="white",
            linewidth=0,
            yerr=spread or None,
            error_kw={"elinewidth": 1, "ecolor": "black", "capsize": 2},
            zorder=2,
        )
        tops.append(height + spread)
        if base:
            on_bar(ax, x, height + spread, f"{height / base:.2f}")
    ax.set_xticks(range(len(counts)), [str(count) for count in counts])
    ax.set_xlabel("workers")
    ax.set_ylim(0, max(tops) * 1.16)
    ax.grid(False, axis="x")
