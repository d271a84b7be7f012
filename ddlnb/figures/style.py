"""What all figures share: colours, panels, bars, axes, legends, captions and sources."""

from __future__ import annotations

import base64
import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ddlnb.errors import require
from ddlnb.registry import abridged, parsed, parts_of

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
    "DeAR": "#6a51a3",
    "searched": "#000000",
}
OTHER_COLOUR = "#b0a695"  # a method of the reader's own, and whatever else has no colour yet
ENGINE_COLOURS = {
    "single": "#999999",
    "ddp": "#3d3d3d",
    "torch": "#0072B2",
    "horovod": "#E69F00",
    "byteps": "#009E73",
}
MODEL_COLOURS = {"resnet50": "#0072B2", "bert-base": "#E69F00", "bert-large": "#009E73"}
NETWORK_COLOURS = {"10GbE": "#D55E00", "100GbE": "#E69F00", "100GbIB": "#009E73"}
MEASURED_COLOURS = ("#0072B2", "#CC79A7", "#56B4E9")  # networks that the survey does not have
ARCHITECTURE_COLOURS = {"PS": METHOD_COLOURS["WFBP-PS"], "A2A": METHOD_COLOURS["WFBP-A2A"]}

ALGORITHM_COLOURS = {
    "ring": "#0072B2",
    "tree": "#D55E00",
    "double-tree": "#CC79A7",
    "recursive-doubling": "#E69F00",
    "halving-doubling": "#56B4E9",
    "direct": "#009E73",
    "swing": "#7a5230",
    "torus": "#3d3d3d",
    "hierarchical": "#F0E442",
    "blueconnect": "#999999",
}

# The palette in an order that keeps neighbours apart; beyond it, dashes tell lines apart.
PALETTE = (
    *("#3d3d3d", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7a5230"),
)
DASHES = ("-", "--", ":", "-.")
BRIGHT = 0.5  # the luminance beyond which dark text reads better
DARK, GREY, PALE = "#3d3d3d", "#777777", "#dddddd"


def colour_of(method: str) -> str:
    """Return the colour of this method in every figure."""
    return METHOD_COLOURS.get(method, OTHER_COLOUR)


def text_on(colour: str) -> str:
    """Return the colour in which text on this one can be read.

    >>> text_on("#0072B2"), text_on("#F0E442")
    ('white', 'black')
    """
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > BRIGHT else "white"


def line_look(number: int) -> dict[str, Any]:
    """Return colour and dash of the line of this number, counted from 0.

    >>> line_look(0), line_look(9)
    ({'color': '#3d3d3d', 'linestyle': '-'}, {'color': '#0072B2', 'linestyle': '--'})
    """
    dash = DASHES[number // len(PALETTE) % len(DASHES)]
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": dash}


STEPS = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))  # ticks in a decade, from few to many
FEWEST, ENOUGH = 2, 4  # ticks: a scale needs two, and reads well with four
PLAIN = (1e-3, 1e6)  # what is written with all its digits
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label_logarithmic_axes(figure: Figure) -> None:
    """Give every logarithmic axis readable ticks, unless its ticks are set one by one.

    It is called when everything is drawn: ticks follow the range.
    """
    for ax in figure.axes:
        for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            is_set = isinstance(axis.get_major_locator(), FixedLocator)
            if axis.get_scale() == "log" and not is_set:
                low, high = sorted(limits)
                _label(axis, low, high)


def _label(axis: Axis, low: float, high: float) -> None:
    steps = next((s for s in STEPS if len(_ticks(low, high, s)) >= ENOUGH), STEPS[-1])
    if len(_ticks(low, high, STEPS[0])) >= FEWEST and high / low > 1e3:
        steps = STEPS[0]
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_figures(value)))
    axis.set_minor_locator(NullLocator())


def _ticks(low: float, high: float, steps: tuple[float, ...]) -> list[float]:
    """Return the multiples of powers of ten within the range.

    >>> _ticks(0.9, 30, (1, 5))
    [1.0, 5.0, 10.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        step * 10.0**power
        for power in powers
        for step in steps
        if low <= step * 10.0**power <= high
    ]


def in_figures(value: float) -> str:
    """Return a number as it is read: 0.01, 20 or 500000, and powers of ten beyond.

    >>> in_figures(0.01), in_figures(500000), in_figures(1e-9), in_figures(2e7)
    ('0.01', '500000', '10⁻⁹', '2·10⁷')
    """
    if value == 0 or PLAIN[0] <= abs(value) < PLAIN[1]:
        return f"{value:.10f}".rstrip("0").rstrip(".")
    digits, power = f"{value:.9e}".split("e")
    factor = digits.rstrip("0").rstrip(".")
    tens = "10" + str(int(power)).translate(SUPERSCRIPTS)
    return tens if factor == "1" else f"{factor}·{tens}"


DOTS_PER_INCH, SHOWN_PER_INCH = 200, 100  # a picture is shown at half its size, to be sharp


class DescribedFigure(Figure):
    """A matplotlib Figure with a caption, which notebooks show beneath it."""

    shows = ""  # the first sentence of what its function says of itself

    @property
    def caption(self) -> str:
        """What the figure is about, and the title that it has or its only panel has."""
        panels = [ax for ax in self.axes if ax.get_visible() and not hasattr(ax, "_colorbar")]
        title = self.get_suptitle() or (panels[0].get_title() if len(panels) == 1 else "")
        return " ".join(f"{text}." for text in (_one_line(title), self.shows) if text)

    def _ipython_display_(self) -> None:
        """Show the picture, and the caption beneath; their metadata travel to the report."""
        from IPython.display import display

        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
        picture = drawn.getvalue()
        across = int.from_bytes(picture[16:20], "big")  # pixels, as the PNG says
        width = round(across * SHOWN_PER_INCH / DOTS_PER_INCH)
        about = {"alt": self.caption, "caption": self.caption, "width": width}
        shown = {"image/png": base64.b64encode(picture).decode(), "text/plain": repr(self)}
        display(shown, raw=True, metadata={"image/png": about})
        beneath = {"text/markdown": f"*{self.caption}*", "text/plain": self.caption}
        display(beneath, raw=True, metadata={"text/markdown": {"is_caption": True}})


def described(figure: Figure, description: str | None) -> Figure:
    """Return the same figure, which now says what it shows; ``description`` is a docstring."""
    figure.__class__ = DescribedFigure  # whichever of pyplot's functions made it
    figure.shows = shows(description)  # type: ignore[attr-defined]
    return figure


def shows(description: str | None) -> str:
    """Return the first sentence of a docstring, in one line and without its full stop.

    >>> shows('''Bars of throughput,
    ...    by method. More is better.''')
    'Bars of throughput, by method'
    """
    return _one_line(re.split(r"\.\s+(?=[A-Z`])", description or "")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


PUBLISHED: dict[str, Any] = {"hatch": "///", "alpha": 0.55}  # the look of published bars
BAR_GROUP = 0.86  # of the distance between two groups of bars
POINT: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4, "linestyle": "none"}

SEABORN = Path(__file__).with_name("seaborn.mplstyle")
STYLE = {
    **rc_params_from_file(SEABORN, use_default_template=False),
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
P = ParamSpec("P")
TABLES = (pd.DataFrame, Mapping, list, tuple)


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under our style, and leave matplotlib's settings and list of figures as they were.

    The figure then says in words what is seen (`DescribedFigure`). Raises InputError if there is
    nothing to draw: if every table, mapping or sequence that is given has no rows.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, TABLES)]
        require(not given or any(map(len, given)), "there are no rows to draw")
        with plt.rc_context(STYLE):
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


def names_down(ax: Axes, names: Sequence[str], *, ruled: bool = False, **look: Any) -> None:
    """Name the lines 0, 1, 2, ... of a panel, from its top to its bottom; ``ruled`` draws them."""
    ax.set_yticks(range(len(names)), names, **look)
    ax.grid(ruled, axis="y")
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


OF_TWO = 12.706  # half the 95 % t-interval of two values, over half their range


def over_seeds(seeds: int) -> str:
    """Say what the bars on a mean are: see `bars_of`."""
    if seeds < 3:
        return "mean and range of two seeds" if seeds == 2 else "one seed"
    return f"mean and 95 % t-interval over {seeds} seeds"


def bars_of(half_widths: pd.Series, seeds: int) -> pd.Series:
    """Return the half widths to draw of 95 % t-intervals: of two seeds their range says more."""
    return half_widths / OF_TWO if seeds == 2 else half_widths


def note(figure: Figure, text: str) -> Figure:
    """Return the figure with a note under it."""
    figure.supxlabel(text, fontsize=8, x=0.99, ha="right")
    return figure


def say_source(figure: Figure, source: pd.DataFrame | str, remark: str) -> Figure:
    """Return the figure that says under it what its source is, or of rows sources and machines."""
    if not isinstance(source, str):
        said = []
        for name, part in source.groupby("source", sort=False):
            machines = part["machine"].dropna().unique() if "machine" in part else []
            said.append(f"{name} on {' and '.join(machines)}" if len(machines) else str(name))
        source = "; ".join(said)
    return note(figure, f"source: {source} | {remark}")
