"""Layers of communication: who sends to whom, what choices bring, two jobs on one tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.colours import DARK, GREY, METHOD_COLOURS
from ddlnb.figures.style import beside, names_down, note, styled
from ddlnb.units import GB

if TYPE_CHECKING:
    import pandas as pd

TRAFFIC_COLOURS, PAIR_COLOURS = "viridis_r", "PuOr"
ALONE, LAST, PRODUCT = METHOD_COLOURS["WFBP-A2A"], METHOD_COLOURS["WFBP-PS"], GREY
LINES = {"apart": METHOD_COLOURS["MG-WFBP"], "mixed": METHOD_COLOURS["ByteScheduler-A2A"]}
STYLES = {"aligned": "-", "shifted": "--"}
MOST_COLUMNS = 5
LIMIT = 2.0  # interactions beyond it, either way, have the strongest colour


@styled
def traffic_maps(traffic: Mapping[str, Mapping[str, np.ndarray]], source: str) -> Figure:
    """The bytes that each rank sends to each other one in an iteration, a panel for every layout.

    ``traffic`` has matrices of bytes by layout and axis; those of all axes are added up. White is
    nothing.
    """
    require(bool(traffic), "there is no traffic to draw")
    sums = {
        text: np.sum(list(matrices.values()), axis=0) / GB
        for text, matrices in traffic.items()
        if matrices
    }
    require(len(sums) == len(traffic), "a layout of one rank exchanges nothing; leave it out")
    columns = min(MOST_COLUMNS, len(sums))
    lines = -(-len(sums) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(2.3 * columns + 1, 2.6 * lines + 0.4), squeeze=False
    )
    values = np.concatenate([matrix[matrix > 0] for matrix in sums.values()])
    norm = LogNorm(values.min() / 1.01, values.max() * 1.01)
    for ax, (text, matrix) in zip(axes.flat, sums.items(), strict=False):
        ranks = len(matrix)
        shown = ax.imshow(np.where(matrix > 0, matrix, np.nan), TRAFFIC_COLOURS, norm=norm)
        ax.set_title(text, fontsize=9)
        ax.set_xticks([0, ranks - 1])
        ax.set_yticks([0, ranks - 1])
        ax.set_xlabel("to rank", labelpad=-6)
        ax.set_ylabel("from rank", labelpad=-8)
        ax.grid(False)
    for ax in axes.flat[len(sums) :]:
        ax.set_visible(False)
    figure.colorbar(shown, ax=axes, label="GB in an iteration", shrink=0.8)
    note(figure, f"source: {source}")
    return figure


@styled
def layer_gains(gains: pd.DataFrame, source: str) -> Figure:
    """What each choice brings alone and after all others, and what all bring together.

    ``gains`` is the table of `ddlnb.survey.layers_codesign.gain_table`: speed-ups by topology and
    choice. The grey bar is the product of what each brings alone.
    """
    require(not gains.empty, "there are no gains to draw")
    topologies = list(dict.fromkeys(gains.index.get_level_values("topology")))
    figure, axes = plt.subplots(
        1, len(topologies), figsize=(4.6 * len(topologies) + 1.4, 3.2), sharex=True, squeeze=False
    )
    for ax, topology in zip(axes[0], topologies, strict=True):
        own = gains.loc[topology]
        choices = [name for name in own.index if name != "all"]
        for y, name in enumerate(choices):
            _gain(ax, y - 0.2, own.loc[name, "alone"], ALONE, "alone" if not y else "")
            _gain(ax, y + 0.2, own.loc[name, "last"], LAST, "after all others" if not y else "")
        y = len(choices)
        _gain(ax, y - 0.2, own.loc["all", "alone"], DARK, "all together")
        _gain(ax, y + 0.2, own.loc["all", "product"], PRODUCT, "product of each alone")
        names_down(ax, [*choices, "all"])
        ax.axvline(1, color=DARK, linewidth=0.8)
        ax.set_title(topology, loc="left", fontsize=10)
        ax.set_xlabel("speed-up of an iteration")
        ax.grid(False, axis="y")
    axes[0, 0].set_xlim(0.9, 1.08 * (gains[["alone", "last", "product"]].max().max() - 0.9) + 1)
    handles, _ = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    note(figure, f"source: {source}")
    return figure


def _gain(ax: Axes, y: float, gain: float, colour: str, label: str) -> None:
    ax.barh(y, gain - 1, 0.36, left=1, color=colour, linewidth=0, label=label or None)
    beside(ax, max(gain, 1), y, f"{gain:.2f}")


@styled
def layer_pairs(pairs: pd.DataFrame, source: str) -> Figure:
    """What pairs of choices bring over the product of what each of the two brings alone.

    ``pairs`` is the table of `ddlnb.survey.layers_codesign.pair_table`. Above 1 the two need each
    other, below 1 one does a part of the other's work; in brackets what both bring together.
    """
    require(not pairs.empty, "there are no pairs to draw")
    topologies = list(dict.fromkeys(pairs["topology"]))
    names = list(dict.fromkeys([*pairs["one"], *pairs["other"]]))
    figure, axes = plt.subplots(
        1, len(topologies), figsize=(4.0 * len(topologies) + 1.2, 3.1), squeeze=False
    )
    for ax, topology in zip(axes[0], topologies, strict=True):
        cells = np.full((len(names) - 1, len(names) - 1), np.nan)
        for pair in pairs[pairs["topology"] == topology].itertuples():
            y, x = names.index(pair.one), names.index(pair.other) - 1
            cells[y, x] = np.log2(pair.interaction)
            text = f"{pair.interaction:.2f}\n({pair.both:.2f})"
            ax.text(x, y, text, ha="center", va="center", fontsize=8)
        edge = np.log2(LIMIT)
        shown = ax.imshow(cells, PAIR_COLOURS, vmin=-edge, vmax=edge)
        ax.set_xticks(range(len(names) - 1), names[1:])
        names_down(ax, names[:-1])
        ax.set_xlabel("and")
        ax.set_title(topology, loc="left", fontsize=10)
        ax.grid(False)
    bar = figure.colorbar(shown, ax=axes, label="over the product", shrink=0.8)
    ticks = (1 / LIMIT, 1.0, LIMIT)
    bar.set_ticks([float(np.log2(tick)) for tick in ticks], labels=[f"{t:.2f}" for t in ticks])
    note(figure, f"in brackets: speed-up of both together; source: {source}")
    return figure


@styled
def phase_slowdowns(table: pd.DataFrame, source: str) -> Figure:
    """How much longer an iteration takes when two equal jobs share a tree, by their duty cycle.

    ``table`` is that of `ddlnb.survey.layers_codesign.slowdown_table`: a row per duty cycle, a
    column per placement and phase.
    """
    require(not table.empty, "there are no slowdowns to draw")
    figure, ax = plt.subplots(figsize=(6.4, 3.4))
    for name in table:
        placement, phase = name.split(", ")
        ax.plot(
            100 * table.index,
            table[name],
            STYLES[phase],
            color=LINES[placement],
            marker="o" if phase == "aligned" else "s",
            markersize=4,
            label=name,
        )
    ax.set_xlabel("duty cycle: share of an iteration alone in which a job sends (%)")
    ax.set_ylabel("slowdown")
    figure.legend(loc="outside right upper", title="jobs, bursts")
    note(figure, f"source: {source}")
    return figure
