"""Architectures (survey, section 3.2): servers beside all-to-all, and kinds of all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.colours import ALGORITHM_COLOURS, ARCHITECTURE_COLOURS, GREY
from ddlnb.figures.style import doubling_axis, legend, legend_line, say_source, styled
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.units import MS, size_in_words

if TYPE_CHECKING:
    import pandas as pd


@styled
def architecture_bottleneck(rows: pd.DataFrame, formulas: pd.DataFrame) -> Figure:
    """Milliseconds of an iteration against workers (left) and against servers (right).

    ``rows`` are those of `measure_architectures`, one point each; ``formulas`` those of
    `architecture_formulas`, dashed. On the right are the most workers; all-to-all is a level there.
    """
    require(not formulas.empty, "there are no formulas to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    most = formulas["workers"].max()
    for name, colour in ARCHITECTURE_COLOURS.items():
        few = formulas["servers"] <= 1
        line = formulas[(formulas["architecture"] == name) & few].sort_values("workers")
        _draw(left, line, _of(rows, name)[lambda part: part["servers"] <= 1], "workers", colour)
    servers = formulas[(formulas["architecture"] == "PS") & (formulas["workers"] == most)]
    measured = _of(rows, "PS")[lambda part: part["workers"] == most]
    _draw(right, servers.sort_values("servers"), measured, "servers", ARCHITECTURE_COLOURS["PS"])
    level = formulas[(formulas["architecture"] == "A2A") & (formulas["workers"] == most)]
    here = _of(rows, "A2A")[lambda part: part["workers"] == most]
    colour = ARCHITECTURE_COLOURS["A2A"]
    right.axhline(level["iteration_seconds"].iloc[0] / MS, color=colour, linestyle="--")
    if not here.empty:
        right.axhline(here["iteration_seconds"].median() / MS, color=colour)
    left.set(xlabel="workers", ylabel="iteration (ms)", title="One server, or none")
    right.set(xlabel="servers", title=f"More servers for {most} workers")
    left.set_ylim(bottom=0)
    left.set_xticks(sorted(formulas["workers"].unique()))
    right.set_xticks(sorted(servers["servers"].unique()))
    legend(figure, _handles(ARCHITECTURE_COLOURS))
    _say(figure, rows, "points: repetitions, line: median")
    return figure


@styled
def all_reduce_times(rows: pd.DataFrame, formulas: Mapping[str, AlphaBeta]) -> Figure:
    """Milliseconds of each all-reduce against the message size, both logarithmic.

    ``rows`` are those of `measure_topologies`; ``formulas`` give an algorithm's a + b M, dashed.
    Bars reach from the quickest to the slowest repetition.
    """
    require(bool(formulas), "there are no formulas to draw")
    figure, ax = plt.subplots(figsize=(8.5, 4.6))
    sizes = sorted(rows["bytes"].unique()) if len(rows) else [2**k for k in range(10, 19, 2)]
    smooth = np.geomspace(min(sizes), max(sizes), 80)
    for name, formula in formulas.items():
        colour = ALGORITHM_COLOURS[name]
        ax.plot(smooth, [formula.seconds(m) / MS for m in smooth], "--", color=colour)
        part = rows[rows["algorithm"] == name]
        if not part.empty:
            times = part.groupby("bytes")["seconds"].agg(["median", "min", "max"]) / MS
            low, high = times["median"] - times["min"], times["max"] - times["median"]
            ax.errorbar(
                times.index, times["median"], [low, high], color=colour, marker="o", capsize=2
            )
    ax.set_yscale("log")
    doubling_axis(ax, [int(size) for size in sizes], size_in_words)
    ax.set_xlabel("message size")
    ax.set_ylabel("all-reduce (ms)")
    ax.set_title("Few hops for small messages, few bytes for large ones")
    legend(figure, _handles({name: ALGORITHM_COLOURS[name] for name in formulas}))
    _say(figure, rows, "median, least and most")
    return figure


def _of(rows: pd.DataFrame, architecture: str) -> pd.DataFrame:
    return rows[rows["architecture"] == architecture]


def _draw(ax: Axes, formula: pd.DataFrame, rows: pd.DataFrame, x: str, colour: str) -> None:
    ax.plot(formula[x], formula["iteration_seconds"] / MS, "--", color=colour)
    if rows.empty:
        return
    medians = rows.groupby(x)["iteration_seconds"].median() / MS
    ax.plot(medians.index, medians, color=colour)
    ax.plot(rows[x], rows["iteration_seconds"] / MS, "o", color=colour, alpha=0.6)


def _handles(colours: Mapping[str, str]) -> list:
    lines = [legend_line(colour, name, "-") for name, colour in colours.items()]
    return [*lines, legend_line(GREY, "formula", "--")]


def _say(figure: Figure, rows: pd.DataFrame, remark: str) -> None:
    """Say the source of what is drawn: the formulas alone, where nothing could be emulated."""
    if rows.empty:
        say_source(figure, "formulas alone", "no network could be emulated here")
    else:
        say_source(figure, rows, f"{rows['network'].iloc[0]}; {remark}; dashed: formula")
