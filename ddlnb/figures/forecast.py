"""The forecast figure: a panel of Fig. 4, published bars beside forecast ones with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import (
    BAR_GROUP,
    OTHER_COLOUR,
    PUBLISHED_ALPHA,
    PUBLISHED_HATCH,
    colour_of,
    in_order,
    legend_line,
    legend_published,
    on_bar,
    say_source,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd

PANEL = ["model", "local_batch", "network"]
LABEL_ROOM = 1.2  # of the highest bar, for the number on it
PAIRED_WIDTH = 1.5  # of a part whose methods have two bars
INTERVAL = "90 % interval"


@styled
def forecast_bars(
    forecast_rows: pd.DataFrame, published_rows: pd.DataFrame | None = None
) -> Figure:
    """Throughput forecast for one model on one network, beside the published cells if there are.

    ``forecast_rows`` are those of `ddlnb.simulator.forecast`, ``published_rows`` those of Fig. 4, of which
    only the panel's are drawn. One part for every number of GPUs, whose axes end at the same share
    of linear speed-up: bars of one height scale equally well. A number on a bar is the speed-up
    over one GPU, a line on it the 90 % interval of the forecast or one published std.
    """
    rows = forecast_rows[forecast_rows["method"] != "single"]
    require(not rows.empty, "there are no rows to draw")
    panels = rows[PANEL].drop_duplicates()
    require(len(panels) == 1, f"the rows are of {len(panels)} panels; draw one at a time")
    published = _of_panel(published_rows, rows)
    methods = in_order([*rows["method"], *published["method"]])
    counts = sorted(rows["gpus"].unique())
    single = float((rows["throughput_samples_per_s"] / rows["speedup"]).median())
    tops = [*_tops(rows), *_tops(published[published["gpus"].isin(counts)])]
    top_share = LABEL_ROOM * max(top / gpus / single for gpus, top in tops)
    figure, axes = plt.subplots(
        1,
        len(counts),
        figsize=(2.6 + 2.7 * len(counts), 4.6),
        width_ratios=[PAIRED_WIDTH if gpus in set(published["gpus"]) else 1 for gpus in counts],
        squeeze=False,
        layout="constrained",
    )
    for ax, gpus in zip(axes[0], counts, strict=True):
        linear = gpus * single
        theirs = published[published["gpus"] == gpus]
        _part(ax, rows[rows["gpus"] == gpus], theirs, methods, _single_of(published))
        ax.axhline(linear, color="black", linestyle="--", linewidth=1, zorder=1)
        ax.set_ylim(0, top_share * linear)
        ax.set_xlabel(f"{gpus} GPUs")
    axes[0][0].set_ylabel("throughput (samples/s)")
    share = axes[0][-1].secondary_yaxis(
        "right", functions=(lambda rate: 100 * rate / linear, lambda part: part * linear / 100)
    )
    share.set_ylabel("share of linear speed-up (%), in all parts")
    model, batch, network = panels.iloc[0]
    figure.suptitle(f"{model}, {batch} per GPU, {network}: {_what(published)}")
    handles = _handles(methods, published, linear_is_seen=top_share > 1)
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    note = f"number on a bar: speed-up over one GPU | {_missing(published, methods, counts)}"
    say_source(figure, _joined(rows, published), note)
    return figure


def _of_panel(published: pd.DataFrame | None, rows: pd.DataFrame) -> pd.DataFrame:
    """The published rows of the panel; an empty frame if there are none."""
    if published is None or published.empty:
        return rows.iloc[:0]
    panel = rows[PANEL].iloc[0]
    return published[(published[PANEL] == panel).all(axis=1)]


def _tops(rows: pd.DataFrame) -> list[tuple[int, float]]:
    """The number of GPUs, and where the bar with its line ends, of every row."""
    return [(row["gpus"], row["throughput_samples_per_s"] + _reach(row)[1]) for row in _each(rows)]


def _each(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [dict(row) for _, row in rows.iterrows()]


def _reach(row: dict[str, Any]) -> tuple[float, float]:
    """How far the line on a bar reaches down and up: its interval, else one std, else nowhere."""
    rate = row["throughput_samples_per_s"]
    if "low" in row and np.isfinite(row["low"]) and np.isfinite(row["high"]):
        return max(0.0, rate - row["low"]), max(0.0, row["high"] - rate)
    std = row["std"] if "std" in row and np.isfinite(row["std"]) else 0.0
    return std, std


def _single_of(published: pd.DataFrame) -> float | None:
    """The published throughput of one GPU alone, if it is there."""
    alone = published.loc[published["method"] == "single", "throughput_samples_per_s"]
    return float(alone.median()) if len(alone) else None


def _part(
    ax: Axes,
    rows: pd.DataFrame,
    published: pd.DataFrame,
    methods: list[str],
    published_single: float | None,
) -> None:
    """The bars of one number of GPUs; with published ones every method has room for two."""
    drawn = [name for name in methods if name != "single"]
    paired = not published.empty
    width = BAR_GROUP / 2 if paired else BAR_GROUP
    for row in _each(rows):
        x = drawn.index(row["method"]) + (width / 2 if paired else 0)
        _bar(ax, x, width, row, row["speedup"], hatched=False)
    for row in _each(published):
        if row["method"] != "single":
            x = drawn.index(row["method"]) - width / 2
            rate = row["throughput_samples_per_s"]
            speedup = rate / published_single if published_single else None
            _bar(ax, x, width, row, speedup, hatched=True)
    ax.set_xlim(-0.6, len(drawn) - 0.4)
    ax.set_xticks([])
    ax.grid(False, axis="x")


def _bar(
    ax: Axes, x: float, width: float, row: dict[str, Any], speedup: float | None, *, hatched: bool
) -> None:
    rate, (down, up) = row["throughput_samples_per_s"], _reach(row)
    ax.bar(
        x,
        rate,
        width * 0.94,
        color=colour_of(row["method"]),
        alpha=PUBLISHED_ALPHA if hatched else 1.0,
        hatch=PUBLISHED_HATCH if hatched else None,
        edgecolor="white",
        linewidth=0,
        zorder=2,
    )
    if down or up:
        reach = [[down], [up]]
        ax.errorbar(x, rate, yerr=reach, color="black", linewidth=1, capsize=2, zorder=3)
    if speedup is not None:
        label = on_bar(ax, x, rate + up, f"{speedup:.{1 if speedup >= 10 else 2}f}", lift=4)
        label.set_bbox({"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6})


def _what(published: pd.DataFrame) -> str:
    return "published beside forecast" if len(published) else "forecast (simulated)"


def _handles(methods: list[str], published: pd.DataFrame, *, linear_is_seen: bool) -> list[Any]:
    shown = [name for name in methods if name != "single"]
    handles: list[Any] = [Patch(color=colour_of(name), label=name) for name in shown]
    handles.append(Patch(color=OTHER_COLOUR, label="forecast (simulated)"))
    if len(published):
        handles.append(legend_published())
    handles.append(Line2D([], [], color="black", marker="|", linestyle="none", label=INTERVAL))
    return [*handles, legend_line("black", "linear speed-up", "--")] if linear_is_seen else handles


def _missing(published: pd.DataFrame, methods: list[str], counts: list[int]) -> str:
    """Which published cells are not there, in words."""
    there = set(zip(published["method"], published["gpus"], strict=True))
    if not there:
        return "no published cells of this panel in this edition"
    lacking = {
        gpus: [m for m in methods if m != "single" and (m, gpus) not in there] for gpus in counts
    }
    full = [name for name in methods if name != "single"]
    whole = [str(gpus) for gpus, names in lacking.items() if names == full]
    said = [f"no published cells with {_listed(whole)} GPUs"] if whole else []
    said += [
        f"none of {_listed(names)} with {gpus}"
        for gpus, names in lacking.items()
        if names and names != full
    ]
    return "; ".join(said) or "every cell has a published one"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[:-1] else words)


def _joined(rows: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    columns = [c for c in ("source", "machine") if c in rows]
    parts = [part.reindex(columns=columns) for part in (rows, published) if len(part)]
    return pd.concat(parts) if len(parts) > 1 else parts[0]
