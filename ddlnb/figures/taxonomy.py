"""The taxonomy (survey, Fig. 2): levels above their aspects, aspects above all registered."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from ddlnb.errors import require
from ddlnb.figures.colours import DARK
from ddlnb.figures.style import note, styled
from ddlnb.plans.methods import spoken
from ddlnb.survey.fig2_taxonomy import LEVELS, Aspect

LEVEL_COLOURS = ("#0072B2", "#009E73", "#D55E00")  # of levels 1 to 3
COLUMN, GAP = 1.0, 0.08  # widths
ROW = 0.30  # heights from here on
BOX = 0.62
ROOT = "communication in data-parallel training"


@styled
def taxonomy_tree(aspects: Sequence[Aspect]) -> Figure:
    """The survey's taxonomy, Fig. 2, made of what this edition has registered.

    ``aspects`` are those of `ddlnb.survey.fig2_taxonomy.taxonomy`.
    """
    require(len(aspects) > 0, "there are no aspects to draw")
    rows = max(sum(1.6 + len(branch.leaves) for branch in aspect.branches) for aspect in aspects)
    width, height = len(aspects) * COLUMN, 3.8 * BOX + ROW * rows
    figure, ax = plt.subplots(figsize=(2.35 * len(aspects), height))
    ax.set(xlim=(0, width), ylim=(-height, 0))
    ax.axis("off")
    top = BOX / 2
    _box(ax, width / 2, -top, width / 2, ROOT, DARK)
    for number, level in enumerate(LEVELS, start=1):
        columns = [i for i, aspect in enumerate(aspects) if aspect.level == number]
        if not columns:
            continue
        colour = LEVEL_COLOURS[number - 1]
        middle = (columns[0] + columns[-1] + 1) / 2 * COLUMN
        _line(ax, width / 2, -2 * top, middle, -1.4 * BOX)
        _box(
            ax, middle, -1.4 * BOX - top, len(columns) * COLUMN - GAP, f"{number}  {level}", colour
        )
        for column in columns:
            _line(ax, middle, -2.4 * BOX, (column + 0.5) * COLUMN, -2.7 * BOX)
            _aspect(ax, column, aspects[column], colour)
    origin = "levels, aspects and sections are the survey's"
    note(figure, f"source: the registries of this edition; {origin}")
    return figure


def _aspect(ax: Axes, column: int, aspect: Aspect, colour: str) -> None:
    middle, left = (column + 0.5) * COLUMN, column * COLUMN + GAP
    text = f"{aspect.name}\nsection {aspect.section}"
    _box(ax, middle, -3.2 * BOX, COLUMN - GAP, text, colour, pale=True)
    y = -3.7 * BOX
    for branch in aspect.branches:
        y -= 0.8 * ROW
        ax.text(left, y, branch.name, color=colour, fontsize=8.5, weight="bold", va="center")
        ends = y
        for leaf in branch.leaves:
            y -= ROW
            ends = y
            ax.text(left + 0.09, y, spoken(leaf.name), fontsize=9, va="center")
            ax.plot([left + 0.02, left + 0.07], [y, y], color=colour, linewidth=0.8)
        ax.plot(
            [left + 0.02] * 2, [y + ROW * (len(branch.leaves) - 0.5), ends], color=colour, lw=0.8
        )
        y -= 0.8 * ROW


def _box(
    ax: Axes, x: float, y: float, width: float, text: str, colour: str, pale: bool = False
) -> None:
    box = FancyBboxPatch(
        (x - width / 2, y - BOX / 2),
        width,
        BOX,
        boxstyle="round,pad=0,rounding_size=0.04",
        facecolor="white" if pale else colour,
        edgecolor=colour,
        linewidth=1.2,
        zorder=2,
    )
    ax.add_patch(box)
    ax.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        color=colour if pale else "white",
        fontsize=9.5,
        weight="bold",
        zorder=3,
    )


def _line(ax: Axes, x: float, y: float, to_x: float, to_y: float) -> None:
    between = (y + to_y) / 2
    ax.plot([x, x, to_x, to_x], [y, between, between, to_y], color="#999999", lw=1.2, zorder=1)
