"""Throughput by method and workers, in the look of the survey's Fig. 4.

Rows of a source alone, forecast bars beside published ones with their intervals, and how far
simulated cells are from measured ones.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import (
    BAR_GROUP,
    OTHER_COLOUR,
    PALE,
    POINT,
    bar,
    colour_of,
    in_order,
    legend,
    legend_line,
    legend_mark,
    legend_methods,
    legend_published,
    names_down,
    on_bar,
    say_source,
    styled,
)
from ddlnb.results.schema import KEY, require_frame
from ddlnb.units import counted, listed

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


BAND = 0.15  # of relative error: what a simulation is expected to stay within
BAND_COLOUR = "#e9e4d4"
MARKERS = ("o", "s", "D", "^", "v", "P")
ROOM = 1.25  # of the range of the throughputs, on both sides


@styled
def simulated_against_measured(simulated: pd.DataFrame, measured: pd.DataFrame) -> plt.Figure:
    """Simulated against measured throughput, and the relative error by method.

    Both frames are tidy rows; drawn is every cell (model, local_batch, network, method, gpus) that
    both of them have. Lines are the measured std and, where it is known, the simulated interval.
    """
    rows = _paired(simulated, measured)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), width_ratios=[1, 1.1])
    counts = sorted(rows["gpus"].unique())
    marker_of = dict(zip(counts, MARKERS * len(counts), strict=False))
    methods = in_order(rows["method"])
    _draw_throughputs(left, rows, marker_of)
    left.set(
        xlabel=f"{measured['source'].iloc[0]} throughput (samples/s)",
        ylabel="simulated throughput (samples/s)",
    )
    _draw_errors(right, rows, methods, marker_of)
    within = (rows["error"].abs() <= BAND).sum()
    figure.suptitle(
        f"{within} of {len(rows)} cells within {100 * BAND:.0f} %, "
        f"median error of throughput {100 * rows['error'].abs().median():.1f} %"
    )
    sizes = [legend_mark(OTHER_COLOUR, m, counted(n, "worker")) for n, m in marker_of.items()]
    legend(figure, [*sizes, *legend_methods(methods), legend_band()])
    both = [part.reindex(columns=["source", "machine"]) for part in (simulated, measured)]
    known = {
        "std of the measured": rows["std"].fillna(0) > 0,
        "90 % interval of the simulated": rows.get("low", rows["std"] * np.nan).notna(),
    }
    lines = " and ".join(what for what, are_known in known.items() if are_known.any())
    return say_source(figure, pd.concat(both), f"lines: {lines}" if lines else "without intervals")


def _paired(simulated: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell of both frames, with the relative error of the simulated one."""
    for name, frame in (("simulated", simulated), ("measured", measured)):
        require(not frame.duplicated(KEY).any(), f"the {name} rows repeat a cell; keep one")
    bounds = [column for column in ("low", "high") if column in simulated]
    ours = simulated[[*KEY, RATE, *bounds]].rename(columns={RATE: "simulated"})
    theirs = measured[[*KEY, RATE, "std"]].rename(columns={RATE: "measured"})
    rows = ours.merge(theirs, on=KEY)
    require(not rows.empty, "there are no rows to draw: no cell is in both frames")
    return rows.assign(error=rows["simulated"] / rows["measured"] - 1)


def _draw_throughputs(ax: plt.Axes, rows: pd.DataFrame, marker_of: dict[Any, str]) -> None:
    ends = [end for end in ("low", "high") if end in rows]
    least, most = rows[["simulated", *ends]].min().min(), rows[["simulated", *ends]].max().max()
    low = min(rows["measured"].min() / ROOM, least)
    high = max(rows["measured"].max() * ROOM, most)
    band = np.array([low / ROOM, high * ROOM])
    ax.fill_between(band, (1 - BAND) * band, (1 + BAND) * band, color=BAND_COLOUR, zorder=0)
    ax.plot(band, band, color="black", linewidth=1, zorder=1)
    for _, row in rows.iterrows():
        ax.errorbar(
            row["measured"],
            row["simulated"],
            xerr=np.nan_to_num(row["std"]),
            yerr=_interval(row),
            color=colour_of(row["method"]),
            marker=marker_of[row["gpus"]],
            elinewidth=0.8,
            zorder=3,
            **POINT,
        )
    ax.set(xscale="log", yscale="log", xlim=band, ylim=band)


def _interval(row: pd.Series) -> list[list[float]] | None:
    if "low" not in row or not np.isfinite([row["low"], row["high"]]).all():
        return None
    reach = row["simulated"] - row["low"], row["high"] - row["simulated"]
    return [[max(0.0, part)] for part in reach]


def _draw_errors(
    ax: plt.Axes, rows: pd.DataFrame, methods: list[str], marker_of: dict[Any, str]
) -> None:
    """Draw the relative error of every row in per cent, in one line for every method."""
    ax.axvspan(-100 * BAND, 100 * BAND, color=BAND_COLOUR, zorder=0)
    ax.axvline(0, color="black", linewidth=1, zorder=1)
    for line, method in enumerate(methods):
        ax.axhline(line + 0.5, color=PALE, linewidth=0.8)
        found = rows[rows["method"] == method].sort_values(["gpus", "model"])
        heights = line + spread_out(len(found))
        for y, (_, row) in zip(heights, found.iterrows(), strict=True):
            look = {"color": colour_of(method), "marker": marker_of[row["gpus"]], **POINT}
            ax.plot(100 * row["error"], y, zorder=3, **look)
    reach = 1.15 * max(100 * BAND, 100 * rows["error"].abs().max())
    ax.set_xlim(-reach, reach)
    names_down(ax, methods)
    ax.set_xlabel("simulated over measured, less 1 (%)")


def legend_band() -> Patch:
    """Return the entry of the band of expected errors in a legend."""
    return Patch(color=BAND_COLOUR, label=f"within {100 * BAND:.0f} %")


def spread_out(count: int, width: float = 0.6) -> np.ndarray:
    """Return the given number of offsets around zero, evenly over ``width``.

    >>> spread_out(3, 0.5).tolist(), spread_out(1).tolist()
    ([-0.25, 0.0, 0.25], [0.0])
    """
    return np.linspace(-width / 2, width / 2, count) if count > 1 else np.zeros(count)


PANEL = ["model", "local_batch", "network"]
LABEL_ROOM = 1.2  # of the highest bar, for the number on it
SEEN = 1.02  # times linear speed-up: as high an axis must be to show the line of that
PAIRED_WIDTH = 1.5  # of a part whose methods have two bars


@styled
def forecast_bars(
    forecast_rows: pd.DataFrame, published_rows: pd.DataFrame | None = None
) -> plt.Figure:
    """Throughput forecast for one model on one network, beside the published cells if there are.

    ``forecast_rows`` are those of `ddlnb.simulator.forecast`, ``published_rows`` those of Fig. 4,
    of which only the panel's are drawn. One part for every number of GPUs, whose axes end at the
    same share of linear speed-up: bars of one height scale equally well. A number on a bar is the
    speed-up over one GPU, a line on it the 90 % interval of the forecast or one published std. A
    question mark stands on published cells that a column ``suspicious`` marks.
    """
    require_frame(forecast_rows, "method", "gpus", "speedup", RATE, *PANEL)
    rows = forecast_rows[forecast_rows["method"] != "single"]
    require(not rows.empty, "there are no rows to draw")
    panels = rows[PANEL].drop_duplicates()
    require(len(panels) == 1, f"the rows are of {len(panels)} panels; draw one at a time")
    rows, published = _with_reach(rows), of_panel(published_rows, rows)
    methods = in_order([*rows["method"], *published["method"]])
    counts = sorted(rows["gpus"].unique())
    single = float((rows[RATE] / rows["speedup"]).median())
    shown = pd.concat([part for part in (rows, published) if len(part)])
    tops = (shown[RATE] + shown["up"]) / shown["gpus"] / single
    top_share = LABEL_ROOM * tops[shown["gpus"].isin(counts)].max()
    figure, axes = plt.subplots(
        1,
        len(counts),
        figsize=(2.6 + 2.7 * len(counts), 4.6),
        width_ratios=[PAIRED_WIDTH if gpus in set(published["gpus"]) else 1 for gpus in counts],
        squeeze=False,
    )
    for ax, gpus in zip(axes[0], counts, strict=True):
        linear = gpus * single
        ours, theirs = (part[part["gpus"] == gpus] for part in (rows, published))
        width = BAR_GROUP / (2 if len(theirs) else 1)
        _draw_bars(ax, ours, methods, width / 2 if len(theirs) else 0, width)
        _draw_bars(ax, theirs, methods, -width / 2, width, published=True)
        if top_share > SEEN:
            ax.axhline(linear, color="black", linestyle="--", linewidth=1, zorder=1)
        ax.set(ylim=(0, top_share * linear), xlim=(-0.6, len(methods) - 0.4))
        ax.set(xlabel=counted(gpus, "GPU"), xticks=[])
        ax.grid(False, axis="x")
    axes[0][0].set_ylabel("throughput (samples/s)")
    share = axes[0][-1].secondary_yaxis(
        "right", functions=(lambda rate: 100 * rate / linear, lambda part: part * linear / 100)
    )
    share.set_ylabel("share of linear speed-up (%), in all parts")
    model, batch, network = panels.iloc[0]
    what = "published beside forecast" if len(published) else "forecast (simulated)"
    how = ", methods as the survey ran them" if _is_as_run(rows) else ""
    figure.suptitle(f"{model}, {batch} per GPU, {network}: {what}{how}")
    handles = [*legend_methods(methods), Patch(color=OTHER_COLOUR, label="forecast (simulated)")]
    if len(published):
        handles.append(legend_published())
    lines = {"90 % interval": rows, "1 std (published)": published}
    if said := [what for what, part in lines.items() if (part[["down", "up"]] > 0).any(axis=None)]:
        handles.append(legend_mark("black", "|", ",\n".join(said)))
    if top_share > SEEN:
        handles.append(legend_line("black", "linear speed-up", "--"))
    legend(figure, handles)
    doubt = ", ?: suspicious" if any(map(is_suspicious, published.to_dict("records"))) else ""
    note = f"number on a bar: speed-up over one GPU{doubt} | {_missing(published, methods, counts)}"
    return say_source(figure, shown, note)


def _is_as_run(rows: pd.DataFrame) -> bool:
    """Return whether the rows are those of `forecast_fig4`, and not of the methods proper."""
    return "settings" in rows and bool(rows["settings"].str.startswith("as-run").all())


def of_panel(published: pd.DataFrame | None, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the published bars of the panel of these rows, with speed-ups over one GPU if known.

    Rates of one GPU alone name no network.
    """
    if published is None or published.empty:
        return _with_reach(rows.iloc[:0])
    panel = rows[PANEL].iloc[0]
    trained = ["model", "local_batch"]
    is_of_model = (published[trained] == panel[trained]).all(axis=1)
    found = published[is_of_model & published["network"].isin([panel["network"], ""])]
    is_alone = found["method"] == "single"
    speedup = found[RATE] / found.loc[is_alone, RATE].median()
    return _with_reach(found.assign(speedup=speedup)[~is_alone])


def _with_reach(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with how far the line on a bar goes down and up.

    It is the interval, else one std, else nothing.
    """
    rate = rows[RATE]
    ends = rows.reindex(columns=["low", "high", "std"]).astype(float)
    std = ends["std"].where(np.isfinite(ends["std"]), 0.0)
    known = np.isfinite(ends[["low", "high"]]).all(axis=1)
    return rows.assign(
        down=(rate - ends["low"]).clip(lower=0).where(known, std),
        up=(ends["high"] - rate).clip(lower=0).where(known, std),
    )


def _draw_bars(
    ax: plt.Axes,
    rows: pd.DataFrame,
    methods: list[str],
    shift: float,
    width: float,
    *,
    published: bool = False,
) -> None:
    for row in rows.to_dict("records"):
        x, rate, down, up = methods.index(row["method"]) + shift, row[RATE], row["down"], row["up"]
        bar(ax, x, rate, width, colour_of(row["method"]), published=published)
        if down or up:
            reach = [[down], [up]]
            ax.errorbar(x, rate, yerr=reach, color="black", linewidth=1, capsize=2, zorder=3)
        if np.isfinite(speedup := row["speedup"]):
            said = f"{speedup:.{1 if speedup >= 10 else 2}f}" + " ?" * is_suspicious(row)
            label = on_bar(ax, x, rate + up, said, lift=4)
            label.set_bbox({"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6})


def is_suspicious(row: dict[Any, Any]) -> bool:
    """Return whether a published cell contradicts others."""
    return row.get("suspicious") is True


def _missing(published: pd.DataFrame, methods: list[str], counts: list[int]) -> str:
    """Say which published cells are not there."""
    there = set(zip(published["method"], published["gpus"], strict=True))
    if not there:
        return "no published cells of this panel in this edition"
    lacking = {gpus: [m for m in methods if (m, gpus) not in there] for gpus in counts}
    whole = [str(gpus) for gpus, names in lacking.items() if names == methods]
    said = [f"no published cells with {listed(whole)} GPUs"] if whole else []
    said += [
        f"none of {listed(names)} with {gpus}"
        for gpus, names in lacking.items()
        if names and names != methods
    ]
    return "; ".join(said) or "every cell has a published one"
