"""Table 1 as a picture: the survey's word, ours, and the number behind it, cell by cell."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ddlnb.errors import require
from ddlnb.figures.style import legend, note, styled
from ddlnb.survey.table1_attributes import AGREES, DISAGREES, UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {AGREES: "#cde8dd", DISAGREES: "#f7d3bd", UNKNOWN: "#e2e2e2"}
CELL = (1.75, 0.44)  # inches


@styled
def attribute_cells(table: pd.DataFrame) -> Figure:
    """Every cell of Table 1: above the survey's word, below that of this edition and its number.

    ``table`` is from `ddlnb.survey.table1_attributes.compared`.
    """
    require(len(table) > 0, "there are no cells to draw")
    rows = list(table["row"].unique())
    columns = list(table["attribute"].unique())
    width, height = CELL
    size = (2.6 + width * len(columns), 1.6 + height * len(rows))
    figure, ax = plt.subplots(figsize=size)
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    for _, cell in table.iterrows():
        _draw(ax, columns.index(cell["attribute"]), rows.index(cell["row"]), cell)
    ax.set_xticks([i + 0.5 for i in range(len(columns))], [c.replace(" ", "\n") for c in columns])
    ax.set_yticks([i + 0.5 for i in range(len(rows))], rows)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    counts = table["verdict"].value_counts()
    handles = [
        Patch(color=colour, label=f"{verdict}: {counts.get(verdict, 0)}")
        for verdict, colour in COLOURS.items()
    ]
    legend(figure, handles, "lower left", columns=len(COLOURS))
    sources = ", ".join(sorted(set(table["source"])))
    note(figure, f"first line: the survey's word (Table 1); second: ours, by a number: {sources}")
    return figure


def _draw(ax: Axes, x: int, y: int, cell: pd.Series) -> None:
    colour, number = COLOURS[cell["verdict"]], float(cell["number"])
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
    ours = "no number" if math.isnan(number) else f"{cell['here']} ({_short(number)})"
    ax.text(x + 0.5, y + 0.28, cell["survey"], ha="center", va="center", fontsize=9)
    ax.text(x + 0.5, y + 0.7, ours, ha="center", va="center", fontsize=9, weight="bold")


def _short(number: float) -> str:
    return "never" if math.isinf(number) else f"{number:.2g}"
