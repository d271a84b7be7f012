"""Figures of advice: what can be done, and what would make it faster."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from ddlnb.figures.style import (
    DARK,
    GREY,
    METHOD_COLOURS,
    POINT,
    beside,
    colour_of,
    doubling_axis,
    in_order,
    legend,
    line_look,
    note,
    styled,
)
from ddlnb.units import show_seconds

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
