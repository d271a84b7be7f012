"""Layouts of large models: forecasts, pipelines, time and what failures leave; unlike GPUs.

The last ones are those of advice: what can be done, and what would make it faster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch, Rectangle

from ddlnb.figures.style import (
    DARK,
    GREY,
    METHOD_COLOURS,
    PALETTE,
    POINT,
    beside,
    colour_of,
    doubling_axis,
    facets,
    in_order,
    legend,
    legend_mark,
    line_look,
    names_down,
    note,
    say_source,
    styled,
)
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import MS, show_seconds

NEAR = 0.2


@styled
def layout_forecasts(rows: pd.DataFrame, source: str) -> plt.Figure:
    """Forecast against published throughput of runs that the fit had not seen, a dot for a run.

    ``rows`` have the columns left_out, model, measured and tokens_per_s_per_gpu; a panel for what
    was left out. Between the dashed lines forecasts are within 20 %.
    """
    models = list(rows["model"].unique())
    figure, panels = facets(rows, "left_out", width=(1.6, 3.4), height=3.9, sharey=True)
    ends = np.array([rows["measured"].min() / 2, rows["measured"].max() * 2])
    for ax, left_out, part in panels:
        for share in (1 - NEAR, 1, 1 + NEAR):
            look = "-" if share == 1 else "--"
            ax.plot(ends, share * ends, look, color=GREY, linewidth=0.8)
        for model, of in part.groupby("model", sort=False):
            colour = PALETTE[1 + models.index(model)]
            ax.plot(of["measured"], of["tokens_per_s_per_gpu"], ".", color=colour, markersize=5)
        ax.set(
            xscale="log",
            yscale="log",
            xlim=ends,
            ylim=ends,
            title=f"without {left_out}",
            xlabel="published (tokens/s per GPU)",
        )
    panels[0][0].set_ylabel("forecast (tokens/s per GPU)")
    legend(figure, [legend_mark(PALETTE[1 + i], ".", model) for i, model in enumerate(models)])
    return say_source(figure, source, "dashed: 20 % off")


FORWARD, BACKWARD, WEIGHTS = "#9ad0f0", "#0072B2", "#009E73"
PASSES = {"forward": FORWARD, "backward": BACKWARD, "gradients of weights": WEIGHTS}
PART_COLOURS = {
    "computation": FORWARD,
    "update": WEIGHTS,
    "bubble": "#dddddd",
    "tp": "#D55E00",
    "shards": "#882255",
    "cp": "#E69F00",
    "ep": "#CC79A7",
    "data": "#56329c",
    "ends": "#8c6d31",
    "pp": "#F0E442",
    "fixed": "#999999",
    "slow": "#7f0000",
}
MEANINGS = {
    "tp": "waits for tensor ranks",
    "shards": "exchanges of shards",
    "cp": "waits for context ranks",
    "ep": "waits for experts",
    "data": "waits for replicas",
    "ends": "waits for the tied embedding",
    "bubble": "bubble",
    "pp": "transfers between stages",
    "fixed": "the rest of a step",
    "slow": "slow runs",
}
ROOM = 1.5  # of the longest bar, for the text behind it
# The end of a span's name: its chunk, unless that is the first; micro batch; which gradients.
PASS = re.compile(r"(?: chunk (\d+),)? (\d+)( weights)?$")
LATER_CHUNKS = 0.6  # their opacity


@styled
def pipeline_schedules(timelines: Mapping[str, Timeline]) -> plt.Figure:
    """What every pipeline stage does in one iteration, a panel for every schedule.

    Boxes are passes of micro batches, with their numbers, paler in later chunks of a stage; white
    is the bubble. ``timelines`` are those of `play_iteration`, by name; all panels share one axis.
    """
    stages = [len({span.rank for span in line.spans}) for line in timelines.values()]
    figure, axes = plt.subplots(
        len(timelines),
        1,
        figsize=(11, 0.8 + sum(0.55 + 0.27 * count for count in stages)),
        height_ratios=[0.8 + count for count in stages],
        sharex=True,
        squeeze=False,
    )
    end = max(span.stop_seconds for line in timelines.values() for span in line.spans)
    for ax, (name, line), count in zip(axes[:, 0], timelines.items(), stages, strict=True):
        _draw_stages(ax, line, end)
        idle = sum(span.seconds for span in line.spans if span.name == "bubble")
        whole = count * max(span.stop_seconds for span in line.spans)
        ax.set_title(f"{name}: bubble {idle / whole:.0%}", loc="left", fontsize=10)
        ax.set_yticks(range(count), [f"stage {stage}" for stage in range(count)])
        ax.set_ylim(count - 0.4, -0.6)
        ax.grid(False)
    axes[-1, 0].set(xlim=(0, end / MS), xlabel="time (ms)")
    drawn = {_pass(span)[0] for line in timelines.values() for span in line.spans}
    handles = [Patch(color=color, label=name) for name, color in PASSES.items() if name in drawn]
    legend(figure, handles)
    return note(
        figure, "source: " + ", ".join(sorted({line.source for line in timelines.values()}))
    )


def _draw_stages(ax: plt.Axes, line: Timeline, end: float) -> None:
    for stage in sorted({span.rank for span in line.spans}):
        spans = [s for s in line.on(stage).spans if s.kind in ("forward", "backward")]
        spans.sort(key=lambda span: span.start_seconds)
        for (kind, chunk, number), run in groupby(spans, key=_pass):
            own = list(run)
            start, stop = own[0].start_seconds / MS, own[-1].stop_seconds / MS
            ax.add_patch(
                Rectangle(
                    (start, stage - 0.4),
                    stop - start,
                    0.8,
                    facecolor=PASSES[kind],
                    alpha=LATER_CHUNKS if chunk else 1.0,
                    edgecolor="white",
                    linewidth=0.6,
                )
            )
            if stop - start > (0.003 + 0.009 * len(number)) * end / MS:
                colour = "black" if kind == "forward" else "white"
                middle = (start + stop) / 2
                ax.text(middle, stage, number, ha="center", va="center", color=colour, fontsize=7)


def _pass(span: Span) -> tuple[str, str, str]:
    """Return the kind of pass, the later chunk if it is one, and the micro batch of a span."""
    found = PASS.search(span.name)
    if found is None:
        return span.kind, "", ""
    return ("gradients of weights" if found[3] else span.kind), found[1] or "", found[2]


@styled
def layout_times(table: pd.DataFrame, source: str) -> plt.Figure:
    """Where the time of an iteration goes under every layout.

    ``table`` is that of `ddlnb.survey.scale_strategies.split_table`, which averages over pipeline
    stages, or of `ddlnb.survey.scale_case_study.time_table`: a row per layout, seconds by reason,
    ``seconds`` in all, ``tokens_per_second`` of a GPU and ``memory_gib`` of a rank.
    """
    figure, ax = plt.subplots(figsize=(9.5, 1.3 + 0.4 * len(table)))
    parts = [part for part in PART_COLOURS if part in table]
    for y, (_, row) in enumerate(table.iterrows()):
        left = 0.0
        for part in parts:
            ax.barh(y, row[part], 0.72, left=left, color=PART_COLOURS[part], linewidth=0)
            left += row[part]
        text = f"{row['tokens_per_second']:,.0f} tokens/s, {row['memory_gib']:.0f} GiB"
        beside(ax, left, y, text)
    names_down(ax, list(table.index))
    ax.set(xlim=(0, ROOM * table["seconds"].max()), xlabel="time of an iteration (s)")
    handles = [Patch(color=PART_COLOURS[one], label=MEANINGS.get(one, one)) for one in parts]
    legend(figure, handles)
    return say_source(
        figure, source, "behind a bar: tokens per second and GPU, and memory of a rank"
    )


PARTS = {  # of the time of a job: what it is called, and its colour
    "useful": ("useful", "#009E73"),
    "slowed": ("stragglers", "#E69F00"),
    "shrunk": ("missing replicas", "#F0E442"),
    "checkpoints": ("checkpoints", "#56B4E9"),
    "redone": ("work redone", "#D55E00"),
    "restarts": ("restarts", "#CC79A7"),
    "waiting": ("waiting for nodes", "#999999"),
}


@styled
def time_spent(table: pd.DataFrame, labels: Sequence[str]) -> plt.Figure:
    """Where the time of a job goes in a month: mean shares, with the interval of what is useful.

    ``table`` is that of `goodput_table`, ``labels`` name its rows. The line is the 90 % interval of
    the goodput over clusters that differ in their rate of failures and in their stragglers.
    """
    figure, ax = plt.subplots(figsize=(9, 1.6 + 0.42 * len(table)))
    left, places = np.zeros(len(table)), np.arange(len(table))
    for part, (words, colour) in PARTS.items():
        shares = 100 * table[part].to_numpy()
        if shares.max() > 0.05:
            ax.barh(places, shares, left=left, color=colour, label=words)
        left += shares
    ax.hlines(places, 100 * table["low"], 100 * table["high"], color="black", linewidth=1.2)
    ax.plot(100 * table["goodput"], places, marker="o", color="black", **POINT)
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="share of the time of a month (%)")
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return note(figure, "source: simulated; point and line: median goodput and 90 % of clusters")


PALE = 0.3  # bars of ways whose states do not fit


WAY_COLOURS = {
    "equal shares": "#D55E00",
    "shares by speed": "#009E73",
    "pipeline, equal layers": "#E69F00",
    "pipeline by speed": "#0072B2",
}


@styled
def unlike_ways(table: pd.DataFrame) -> plt.Figure:
    """What ways to share a batch or layers among unlike GPUs yield; pale where memory is too small.

    ``table`` is that of `way_table`. Dashed: the sum of all speeds.
    """
    figure, ax = plt.subplots(figsize=(7.5, 1.3 + 0.38 * len(table)))
    draw_ways(ax, table)
    return note(figure, "source: simulated")


def draw_ways(ax: plt.Axes, table: pd.DataFrame) -> None:
    bars = ax.barh(
        range(len(table)),
        table["samples_per_second"],
        color=[WAY_COLOURS.get(way, GREY) for way in table["way"]],
    )
    for bar, fits in zip(bars, table["fits"], strict=True):
        bar.set_alpha(1.0 if fits else PALE)
    together = (table["samples_per_second"] / table["of_all"]).iloc[0]
    ax.axvline(together, color=DARK, linestyle="--", linewidth=1)
    ax.set_yticks(range(len(table)), table["way"])
    ax.invert_yaxis()
    ax.set_xlabel("throughput (samples/s); dashed: sum of speeds")


RATE, TOKENS = "throughput_samples_per_s", "throughput_tokens_per_s"
ROW = 0.32  # inches
COLOURS = {
    "no change to learning": METHOD_COLOURS["MG-WFBP"],
    "with further machines": METHOD_COLOURS["WFBP-PS"],
    "changes learning": METHOD_COLOURS["ByteScheduler-A2A"],
    "fewer GPUs": GREY,
}


@styled
def advice_options(options: pd.DataFrame, title: str = "") -> plt.Figure:
    """What can be done, by the throughput that is forecast: points with 90 % intervals.

    ``options`` are those of `ddlnb.advise` or `ddlnb.advise_layouts`, the best one first. Colours
    say what an option takes.
    """
    rate, unit = (RATE, "samples/s") if RATE in options else (TOKENS, "tokens/s")
    figure, ax = plt.subplots(figsize=(9, 1.3 + ROW * len(options)))
    places = pd.Series(range(len(options)), options.index)
    shown = options.apply(_group, axis=1)
    for group, rows in options.groupby(shown, sort=False):
        at, colour = places[rows.index], COLOURS[group]
        ax.hlines(at, rows["low"], rows["high"], color=colour, linewidth=3, alpha=0.5)
        ax.plot(rows[rate], at, marker="o", color=colour, label=group, **POINT)
    ax.set_yticks(range(len(options)), options["option"])
    ax.invert_yaxis()
    ax.set(xlim=(0, None), xlabel=f"throughput ({unit})")
    ax.axvline(options[rate].iloc[0], color=DARK, linewidth=0.6, linestyle=":")
    legend(figure, ax.get_legend_handles_labels()[0], "upper center", columns=shown.nunique())
    ax.set_title(title, loc="left")
    bars = "bars: 90 % of the draws"
    if 0 < options["low"].isna().sum() < len(options):
        bars += " (not drawn for all)"
    return note(figure, f"source: simulated; {bars}; dotted: the first option")


@styled
def advice_reasons(reasons: pd.DataFrame, title: str = "") -> plt.Figure:
    """How many times as fast an iteration would be with one thing changed.

    ``reasons`` are those of `ddlnb.advise`; each bar is simulated again.
    """
    changed = reasons.iloc[1:]
    figure, ax = plt.subplots(figsize=(9, 1.1 + ROW * len(changed)))
    colours = [DARK if bought else GREY for bought in changed["can_be_bought"]]
    ax.barh(range(len(changed)), changed["times_as_fast"], color=colours)
    for place, times in enumerate(changed["times_as_fast"]):
        beside(ax, max(times, 1.0), place, f"{times:.2f}x", fontsize=9)
    ax.set_yticks(range(len(changed)), "with " + changed["what"])
    ax.grid(visible=False, axis="y")
    ax.invert_yaxis()
    ax.axvline(1.0, color="black", linewidth=0.8)
    ax.set(xlim=(0, 1.12 * changed["times_as_fast"].max()), xlabel="times as fast as it is")
    seconds = reasons["iteration_seconds"].iloc[0]
    said = f"an iteration takes {show_seconds(seconds)} as it is"
    ax.set_title(f"{title}: {said}" if title else said, loc="left")
    return note(figure, "source: simulated; dark bars can be bought")


@styled
def scaling_curves(rows: pd.DataFrame, share: float, title: str = "") -> plt.Figure:
    """The share of linear scaling that each method keeps, by the number of GPUs.

    ``rows`` are those of `ddlnb.scaling`; the line across is the share that is good enough. The
    band is the 90 % interval of the share that the best method keeps at each size.
    """
    figure, ax = plt.subplots(figsize=(7.5, 4))
    for number, method in enumerate(in_order(list(rows["method"].unique()))):
        line = rows[rows["method"] == method].sort_values("gpus")
        own = {"color": colour_of(method)} if method in METHOD_COLOURS else {}
        look = {"marker": "o", "markersize": 4, "label": method, **line_look(number), **own}
        ax.plot(line["gpus"], 100 * line["efficiency"], **look)
    best = rows.loc[rows.groupby("gpus")[RATE].idxmax()].sort_values("gpus")
    ends = 100 * best[["efficiency_low", "efficiency_high"]]
    if ends.notna().any(axis=None):
        label = "90 % interval of the best"
        ax.fill_between(best["gpus"], *ends.to_numpy().T, color=GREY, alpha=0.2, label=label)
    ax.axhline(100 * share, color=DARK, linewidth=0.8, linestyle=":")
    doubling_axis(ax, sorted(rows["gpus"].unique()), "{:,}".format)
    most = max(100.0, ends.max(axis=None))
    ax.set(ylim=(0, 1.05 * most), xlabel="GPUs", ylabel="share of linear scaling (%)")
    if title:
        ax.set_title(title, loc="left")
    ax.legend(fontsize=8, ncols=2, loc="lower left")
    return note(figure, f"source: simulated; dotted: {share:.0%} of linear")


def _group(row: pd.Series) -> str:
    if row["kind"] == "fewer machines":
        return "fewer GPUs"
    if row["learning"]:
        return "changes learning"
    return "with further machines" if row["server_machines"] else "no change to learning"
