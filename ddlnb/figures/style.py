"""What all figures share: style, panels, bars, axes, legends, and the note that says the source.

Nothing global changes: style and sizes hold while a figure is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation

from ddlnb.errors import require
from ddlnb.figures.colours import METHOD_COLOURS, OTHER_COLOUR, colour_of
from ddlnb.figures.described import described
from ddlnb.figures.logarithmic import label_logarithmic_axes
from ddlnb.registry import abridged, parsed, parts_of

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED: dict[str, Any] = {"hatch": "///", "alpha": 0.55}  # the look of published bars
BAR_GROUP = 0.86  # of the distance between two groups of bars
POINT: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4, "linestyle": "none"}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under our style, and leave matplotlib's settings and list of figures as they were.

    The figure then says in words what is seen (`DescribedFigure`).
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        ours = {
            **sns.axes_style("whitegrid"),
            **sns.plotting_context("notebook", font_scale=0.8),
            "hatch.linewidth": 0.6,
            "legend.frameon": False,
            "figure.constrained_layout.use": True,
        }
        with plt.rc_context(ours):
            figure = draw(*args, **kwargs)
        plt.close(figure)  # the caller shows it; an open figure would be shown twice
        label_logarithmic_axes(figure)
        return described(figure, draw.__doc__)

    return drawn


def facets(
    rows: pd.DataFrame,
    by: str | Sequence[str],
    *,
    width: tuple[float, float],
    height: float,
    **shared: Any,
) -> tuple[Figure, list[tuple[Axes, Any, pd.DataFrame]]]:
    """Return a figure with a panel for every value of ``by``: its axes, the value, and its rows.

    Panels stand side by side under their values; the figure is ``width[0]`` inches wide plus
    ``width[1]`` for each. Raises InputError if there are no rows.
    """
    require(len(rows) > 0, "there are no rows to draw")
    parts = list(rows.groupby(by, sort=False))
    size = (width[0] + width[1] * len(parts), height)
    figure, axes = plt.subplots(1, len(parts), figsize=size, squeeze=False, **shared)
    found = [(ax, value, part) for ax, (value, part) in zip(axes[0], parts, strict=True)]
    for ax, value, _ in found:
        ax.set_title(str(value))
    return figure, found


def short(method: str) -> str:
    """Return the method without what is usual: BSP, the architecture A2A, default parameters.

    >>> short("bsp + dgc(0.001, 0.9, None, 0, True) on A2A"), short("bsp on A2A"), short("MG-WFBP")
    ('dgc(0.001)', 'bsp', 'MG-WFBP')
    """
    return abridged_method(method).removesuffix(" on A2A").removeprefix("bsp + ")


@functools.cache
def abridged_method(method: str) -> str:
    """Return the text of a method or a compressor without parameters that have their defaults.

    >>> abridged_method("choco(ring, 0.1, 1) + powersgd(4, False, True) on gossip")
    'choco(ring) + powersgd(4) on gossip'
    """
    if "(" not in method:
        return method
    from ddlnb.compression.catalogue import COMPRESSORS  # brings torch
    from ddlnb.training.method import SYNCHRONISATIONS

    known: dict[str, Any] = {**SYNCHRONISATIONS, **COMPRESSORS}
    choices, on, where = method.partition(" on ")
    parts = parts_of(choices, "+")
    for number, part in enumerate(parts):
        name = part.partition("(")[0]
        if "(" in part and name in known:
            parts[number] = abridged(name, parsed("choice", part, known))
    return " + ".join(parts) + on + where


def in_order(methods: Iterable[str]) -> list[str]:
    """Return the methods without repetition, in the order of their colours."""
    return ordered(methods, METHOD_COLOURS)


def ordered(names: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    """Return the names without repetition, the known ones first, in the order of ``known``."""
    present = list(dict.fromkeys(names))
    return [name for name in known if name in present] + [n for n in present if n not in known]


def bar(
    ax: Axes,
    x: float,
    height: float,
    width: float,
    colour: str,
    *,
    published: bool = False,
    **options: Any,
) -> None:
    """Draw one upright bar of a group; published ones are hatched and pale."""
    look = PUBLISHED if published else {}
    ax.bar(
        x,
        height,
        0.94 * width,
        color=colour,
        edgecolor="white",
        linewidth=0,
        zorder=2,
        **look,
        **options,
    )


def on_bar(ax: Axes, x: float, top: float, text: str, *, lift: float = 2) -> Annotation:
    """Write the text upright on top of a bar, ``lift`` points above it."""
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


def beside(ax: Axes, x: float, y: float, text: str, **look: Any) -> Annotation:
    """Write the text a few points to the right of a bar's end or of a point."""
    place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
    return ax.annotate(text, (x, y), **{**place, **look})


def names_down(ax: Axes, names: Sequence[str], **look: Any) -> None:
    """Name the lines 0, 1, 2, ... of a panel, from its top to its bottom."""
    ax.set_yticks(range(len(names)), names, **look)
    ax.set_ylim(len(names) - 0.5, -0.5)


def doubling_axis(
    ax: Axes, ticks: Iterable[Any], label: Callable[[Any], str] = str, **look: Any
) -> None:
    """Make the horizontal axis logarithmic, with a labelled tick at each of these values."""
    ticks = list(ticks)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [label(tick) for tick in ticks], **look)
    ax.minorticks_off()


def legend(
    figure: Figure,
    handles: Sequence[Any] | None = None,
    where: str = "right upper",
    columns: int = 1,
    **options: Any,
) -> None:
    """Put a legend outside the panels; without handles, of what the first panel has labelled."""
    if handles is None:
        handles, _ = figure.axes[0].get_legend_handles_labels()
    place: Any = f"outside {where}"
    figure.legend(handles=handles, loc=place, ncols=columns, **options)


def legend_line(colour: str, label: str, style: Any) -> Line2D:
    """Return the entry of a line in a legend."""
    return Line2D([], [], color=colour, linestyle=style, label=label)


def legend_mark(colour: str, marker: str, label: str, **look: Any) -> Line2D:
    """Return the entry of a marker in a legend."""
    return Line2D([], [], **{"linestyle": "none", **look}, color=colour, marker=marker, label=label)


def legend_methods(methods: Iterable[str]) -> list[Any]:
    """Return the entries of these methods in a legend."""
    return [Patch(color=colour_of(name), label=name) for name in methods]


def legend_published() -> Patch:
    """Return the entry of published bars in a legend."""
    return Patch(facecolor=OTHER_COLOUR, edgecolor="white", label="published", **PUBLISHED)


def over_seeds(seeds: int) -> str:
    """Say what the bars on a mean are."""
    return f"mean and 95 % t-interval over {seeds} seeds" if seeds > 1 else "one seed"


def note(figure: Figure, text: str) -> None:
    """Write a note under the figure."""
    figure.supxlabel(text, fontsize=8, x=0.99, ha="right")


def say_source(figure: Figure, source: pd.DataFrame | str, remark: str) -> None:
    """Write under the figure what the source is, or of rows their sources and machines."""
    if not isinstance(source, str):
        said = []
        for name, part in source.groupby("source", sort=False):
            machines = part["machine"].dropna().unique() if "machine" in part else []
            said.append(f"{name} on {' and '.join(machines)}" if len(machines) else str(name))
        source = "; ".join(said)
    note(figure, f"source: {source} | {remark}")
