"""What is seen in a panel, in words: its axes, and where its bars, lines and points are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlnb.figures.logarithmic import in_figures

LISTED = 8  # so many bars or lines are named one by one
UNNAMED = "_"  # how matplotlib's own names of marks begin
FEW_TEXTS = 12  # of a drawing without axes


class Mark(NamedTuple):
    """A bar or a line: what the legend or its axis calls it, and where it begins and ends."""

    name: str
    first: float
    last: float


def seen_in(ax: Axes, figure: Figure) -> str:
    """Return what the panel shows, as sentences; what a legend names is called so."""
    if not ax.axison:
        texts = [text.get_text() for text in ax.texts if text.get_text().strip()]
        return _listed("It says", texts[:FEW_TEXTS])
    names = _names_of_colours(figure)
    axes = f"{_axis(ax.yaxis, ax.get_ylim())} against {_axis(ax.xaxis, ax.get_xlim())}."
    said = [axes[:1].upper() + axes[1:], _bars(ax, names), _lines(ax, names)]
    return " ".join(text for text in said if text)


def _axis(axis: Axis, limits: tuple[float, float]) -> str:
    """Return the label of an axis, its first and last tick, and whether it is logarithmic."""
    low, high = sorted(limits)
    room = 1e-9 * (high - low)
    shown = [text for at, text in _ticks(axis) if low - room <= at <= high + room]
    span = f"{shown[0]} to {shown[-1]}" if len(shown) > 1 else "".join(shown)
    scale = "logarithmic" if axis.get_scale() == "log" else ""
    beside = ", ".join(part for part in (span, scale) if part)
    return (_label(axis, shown) or "rows") + (f" ({beside})" if beside else "")


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return where the labelled ticks are, with their labels: a panel that shares them has some."""
    which = int(_letter(axis) == "y")
    for one in (axis, *_alike(axis)):
        texts = [(label.get_position()[which], label.get_text()) for label in one.get_ticklabels()]
        found = [(float(at), " ".join(text.split())) for at, text in texts if text.strip()]
        if found:
            return found
    return []


def _alike(axis: Axis) -> list[Axis]:
    """Return the same axis of the panels that share it."""
    ax, name = axis.axes, _letter(axis)
    shared = ax.get_shared_x_axes() if name == "x" else ax.get_shared_y_axes()
    return [getattr(one, f"{name}axis") for one in shared.get_siblings(ax) if one is not ax]


def _letter(axis: Axis) -> str:
    return "y" if axis is axis.axes.yaxis else "x"


def _label(axis: Axis, ticks: list[str]) -> str:
    """Return the label of an axis, or of one that shares it; of numbers, that of the figure."""
    figure = axis.get_figure()
    texts = [axis.get_label_text(), *(one.get_label_text() for one in _alike(axis))]
    is_numbers = not any(letter.isalpha() for letter in "".join(ticks))
    if figure is not None and _letter(axis) == "y" and is_numbers:
        texts += [figure.get_supylabel(), *(ax.get_ylabel() for ax in figure.axes)]
    return next((" ".join(text.split()) for text in texts if text), "")


def _names_of_colours(figure: Figure) -> dict[tuple[str, Any], str]:
    """Return what legends call each colour, of a kind of line."""
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes)]
    found: dict[tuple[str, Any], str] = {}
    for legend in legends:
        shown = zip(legend.legend_handles, legend.get_texts(), strict=True) if legend else ()
        for handle, text in shown:
            if isinstance(handle, Line2D):
                look = to_hex(handle.get_color()), handle.get_linestyle()
            elif isinstance(handle, Patch):
                look = to_hex(handle.get_facecolor()), "-"
            else:
                continue
            found.setdefault(look, text.get_text())
    return found


def _bars(ax: Axes, names: dict[tuple[str, Any], str]) -> str:
    """Return the bars with their ends: all if they are few, else the least and the largest.

    Of bars that stand on one another only the last end is said.
    """
    found: dict[tuple[float, bool], Mark] = {}
    for held in ax.containers:
        if not isinstance(held, BarContainer):
            continue
        is_upright = held.orientation == "vertical"
        for bar in held.patches:
            x, y, wide, high = bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()
            place, end = (x + wide / 2, y + high) if is_upright else (y + high / 2, x + wide)
            stands_on_another = abs(y if is_upright else x) > 0
            colour = "" if stands_on_another else names.get((to_hex(bar.get_facecolor()), "-"), "")
            category = _category(ax.xaxis if is_upright else ax.yaxis, place)
            parts = (category, colour, "published" if bar.get_hatch() else "")
            called = ", ".join(dict.fromkeys(part for part in parts if part))
            key = round(float(place), 6), bool(bar.get_hatch())
            found[key] = Mark(called, 0.0, float(end))
    return _told("bars", list(found.values()))


def _category(axis: Axis, place: float) -> str:
    """Return the label of the tick that is next to a place."""
    return min(_ticks(axis), key=lambda tick: abs(tick[0] - place), default=(0.0, ""))[1]


def _lines(ax: Axes, names: dict[tuple[str, Any], str]) -> str:
    """Return the lines with their ends that a legend names, and how many points there are."""
    bars = [held for held in ax.containers if isinstance(held, ErrorbarContainer)]
    whiskers = {line for held in bars for line in held.lines[1]}
    labels = {held.lines[0]: str(held.get_label()) for held in bars}
    found: list[Mark] = []
    points = 0
    for line in (line for line in ax.lines if line not in whiskers):
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        known = np.isfinite(x) & np.isfinite(y)
        own = labels.get(line, str(line.get_label()))
        look = to_hex(line.get_color()), line.get_linestyle()
        name = names.get(look, "") if own.startswith(UNNAMED) else own
        if line.get_linestyle() == "None":
            points += int(known.sum())
        elif name and np.unique(x[known]).size > 1 and line.get_transform() == ax.transData:
            found.append(Mark(name, float(y[known][0]), float(y[known][-1])))
    said = _told("lines", found)
    return " ".join(text for text in (said, f"{points} points." if points > 1 else "") if text)


def _told(kind: str, marks: list[Mark]) -> str:
    if not marks:
        return ""
    if len(marks) <= LISTED:
        return _listed(kind.capitalize(), [_one(kind, mark) for mark in marks])
    least, most = min(marks, key=lambda m: m.last), max(marks, key=lambda m: m.last)
    return f"{len(marks)} {kind}; the lowest ends at {_at(least)}, the highest at {_at(most)}."


def _one(kind: str, mark: Mark) -> str:
    is_level = kind == "bars" or mark.first == mark.last
    span = _number(mark.last)
    if not is_level:
        span = f"from {_number(mark.first)} to {span}"
    return f"{mark.name} {span}".strip()


def _at(mark: Mark) -> str:
    return _number(mark.last) + (f" ({mark.name})" if mark.name else "")


def _number(value: float) -> str:
    return in_figures(float(f"{value:.3g}"))


def _listed(what: str, parts: list[str]) -> str:
    inside = "; ".join(" ".join(part.split()) for part in parts)
    return f"{what}: {inside}." if inside else ""
