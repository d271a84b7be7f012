"""The gossip figure: spectral gaps against the workers, and the distance that is left by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import legend_line, say_source, styled
from ddlnb.training.synchronisation.graphs import make_graph, spectral_gap

if TYPE_CHECKING:
    import pandas as pd

GRAPH_COLOURS = {"ring": "#D55E00", "torus": "#0072B2", "complete": "#009E73"}
STYLES = ("-", (0, (5, 2)), (0, (1, 1)), "-.")
FLOOR = 1e-9  # what is left below is rounding


@styled
def gossip_mixing(gaps: pd.DataFrame, rounds: pd.DataFrame) -> Figure:
    """Spectral gaps, from `spectral_gaps`, beside the consensus distance, from `consensus_rounds`.

    Grey is the bound (1 - gap)^2 per round of every graph, for gossip without compression.
    """
    require(not gaps.empty and not rounds.empty, "there are no gaps or no rounds to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 4.6), layout="constrained")
    _draw_gaps(left, gaps)
    _draw_rounds(right, rounds)
    figure.legend(loc="outside right upper", frameon=False, handles=_handles(rounds))
    both = rounds[["source"]].merge(gaps[["source"]], how="outer")
    say_source(figure, both, "gossip alone, without gradients")
    return figure


def _draw_gaps(ax: Axes, gaps: pd.DataFrame) -> None:
    for graph, part in gaps.groupby("graph", sort=False):
        colour = GRAPH_COLOURS[str(graph)]
        ax.plot(part["workers"], part["gap"], marker="o", color=colour)
        last = part.iloc[-1]
        ax.annotate(
            str(graph),
            (last["workers"], last["gap"]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    counts = sorted(gaps["workers"].unique())
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.set_xlim(right=2.2 * counts[-1])  # room for the names
    ax.set(xlabel="workers", ylabel="spectral gap", title="Rings mix ever more slowly")


def _draw_rounds(ax: Axes, rounds: pd.DataFrame) -> None:
    count = int(rounds["workers"].iloc[0])
    last = int(rounds["round"].max())
    for graph in rounds["graph"].unique():
        factor = (1 - spectral_gap(make_graph(graph, count))) ** 2
        bound = factor ** np.arange(last + 1.0)
        ax.plot(np.arange(last + 1)[bound > FLOOR], bound[bound > FLOOR], color="#bbbbbb", lw=3)
    for method, style, colour in _looks(rounds):
        part = rounds[rounds["method"] == method]
        shown = part[part["distance"].shift(fill_value=1.0) > FLOOR]  # to the floor, not along it
        ax.plot(shown["round"], shown["distance"].clip(FLOOR**3), color=colour, linestyle=style)
    ax.set_yscale("log")
    ax.set_ylim(FLOOR, 3)
    ax.set(xlabel="round", ylabel="consensus distance, of the first")
    ax.set_title(f"{count} workers: what is left to agree on")


def _looks(rounds: pd.DataFrame) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    for graph, part in rounds.groupby("graph", sort=False):
        for number, method in enumerate(part["method"].unique()):
            style = STYLES[number % len(STYLES)]
            found.append((method, style, GRAPH_COLOURS[str(graph)]))
    return found


def _handles(rounds: pd.DataFrame) -> list:
    lines = [legend_line(colour, method, style) for method, style, colour in _looks(rounds)]
    return [*lines, legend_line("#bbbbbb", "bound by the gap, without compression", "-")]
