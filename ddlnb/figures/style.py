"""What all figures share: colours, style, labels on bars, the note that says the source.

Nothing global changes: style and sizes hold while a figure is made. Every method has one colour in
all figures (Okabe and Ito's colour-blind-safe palette).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation

if TYPE_CHECKING:
    import pandas as pd

METHOD_COLOURS = {
    "single": "#999999",
    "DDP": "#3d3d3d",
    "horovod": "#7a5230",
    "BSP-PS": "#F0E442",
    "BSP-A2A": "#E69F00",
    "WFBP-PS": "#56B4E9",
    "WFBP-A2A": "#0072B2",
    "MG-WFBP": "#009E73",
    "ByteScheduler-PS": "#CC79A7",
    "ByteScheduler-A2A": "#D55E00",
}
OTHER_COLOUR = "#b0a695"  # a method of the reader's own
PUBLISHED_HATCH = "///"
PUBLISHED_ALPHA = 0.55
BAR_GROUP = 0.86  # of the distance between two groups

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under our style, and leave matplotlib's settings and list of figures as they were."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        ours = {
            **sns.axes_style("whitegrid"),
            **sns.plotting_context("notebook", font_scale=0.8),
            "hatch.linewidth": 0.6,
        }
        with plt.rc_context(ours):
            figure = draw(*args, **kwargs)
        plt.close(figure)  # the caller shows it; an open figure would be shown twice
        return figure

    return drawn


def colour_of(method: str) -> str:
    """The colour of this method in every figure."""
    return METHOD_COLOURS.get(method, OTHER_COLOUR)


def short(method: str) -> str:
    """The method without what is usual: BSP, and the architecture A2A.

    >>> short("bsp + top-k(0.01) + feedback on A2A"), short("bsp on A2A"), short("MG-WFBP")
    ('top-k(0.01) + feedback', 'bsp', 'MG-WFBP')
    """
    return method.removesuffix(" on A2A").removeprefix("bsp + ")


def on_bar(ax: Axes, x: float, top: float, text: str, *, lift: float = 2) -> Annotation:
    """The text written upright on top of a bar, ``lift`` points above it."""
    return ax.annotate(
        text,
        (x, top),
        xytext=(0, lift),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=90,
        fontsize=8,
    )


def in_order(methods: Iterable[str]) -> list[str]:
    """The methods without repetition, in the order of their colours."""
    return ordered(methods, METHOD_COLOURS)


def ordered(names: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    """The names without repetition: the known ones first, in the order in which they are known."""
    present = list(dict.fromkeys(names))
    return [name for name in known if name in present] + [n for n in present if n not in known]


def legend_line(colour: str, label: str, style: Literal["-", "--", ":"]) -> Line2D:
    """The entry of a line in a legend."""
    return Line2D([], [], color=colour, linestyle=style, label=label)


def legend_published() -> Patch:
    """The entry of published bars, which are hatched and pale, in a legend."""
    return Patch(
        facecolor=OTHER_COLOUR,
        alpha=PUBLISHED_ALPHA,
        edgecolor="white",
        hatch=PUBLISHED_HATCH,
        label="published",
    )


def say_source(figure: Figure, rows: pd.DataFrame, note: str) -> None:
    """Write the sources of the rows, and the machine of the measured ones, under the figure."""
    said = []
    for source, part in rows.groupby("source", sort=False):
        machines = part["machine"].dropna().unique() if "machine" in part else []
        said.append(f"{source} on {' and '.join(machines)}" if len(machines) else str(source))
    figure.supxlabel(f"source: {'; '.join(said)} | {note}", fontsize=8, x=0.99, ha="right")
