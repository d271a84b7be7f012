"""The schedules figure: simulated timelines, network beside network (survey, section 3.1.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from ddlnb.errors import require
from ddlnb.figures.style import in_order, styled
from ddlnb.figures.timelines import KIND_COLOURS, WAIT_HATCH, pack, shades, timeline_handles
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import MS

FIRST, ITERATIONS = 1, 2  # shown are two iterations in which earlier messages are still under way
Box = tuple[float, float, float, float]  # left, right, bottom, top


@styled
def schedules(timelines: Mapping[str, Mapping[str, Timeline]], title: str = "") -> Figure:
    """Two steady iterations of every method, a column for every network.

    ``timelines`` gives for every network the timelines by method, of four iterations or more. The
    upper lane is what a worker computes or waits for, the lower one its messages, darker the larger
    they are, stacked where they overlap. All methods of a network share one axis.
    """
    require(bool(timelines), "there are no timelines to draw")
    methods = in_order([name for by_method in timelines.values() for name in by_method])
    figure, grid = plt.subplots(
        len(methods),
        len(timelines),
        figsize=(2.2 + 3.7 * len(timelines), 1.2 + 1.0 * len(methods)),
        sharex="col",
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    sizes = [
        span.bytes
        for by_method in timelines.values()
        for line in by_method.values()
        for span in line.spans
        if span.kind == "message"
    ]
    shade = shades(sizes)
    for column, (network, by_method) in enumerate(timelines.items()):
        ends = [_panel(grid[i, column], m, by_method[m], shade) for i, m in enumerate(methods)]
        grid[0, column].set_xlim(0, 1.01 * max(ends))
        grid[0, column].annotate(
            network,
            (0.5, 1),
            xytext=(0, 18),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            fontsize=11,
            fontweight="bold",
        )
        grid[-1, column].set_xlabel("time (ms)")
    figure.legend(handles=timeline_handles(sizes, shade), loc="outside right upper", frameon=False)
    if title:
        figure.suptitle(title)
    sources = ", ".join(sorted({o.source for lines in timelines.values() for o in lines.values()}))
    note = f"source: {sources}; one worker stands for all | every network has its own axis"
    figure.supxlabel(note, fontsize=8, x=0.99, ha="right")
    return figure


def _panel(ax: Axes, method: str, line: Timeline, shade: Callable[[int], Any]) -> float:
    """Draw two iterations; where they end, in milliseconds."""
    spans = line.on(0).spans
    starts = _forward_starts(spans)
    last = FIRST + ITERATIONS
    require(last in starts, f"the timeline of {method!r} has {len(starts)} iterations, not {last}+")
    start, stop = starts[FIRST], starts[last]
    shown = [span for span in spans if span.stop_seconds > start and span.start_seconds < stop]

    def box(span: Span, bottom: float, top: float) -> Box:
        left, right = max(start, span.start_seconds), min(stop, span.stop_seconds)
        return (left - start) / MS, (right - start) / MS, bottom, top

    for kind, colour in KIND_COLOURS.items():
        of_kind = [box(span, 1.1, 2.0) for span in shown if span.kind == kind]
        hatch = WAIT_HATCH if kind == "wait" else None
        _draw(ax, of_kind, [colour] * len(of_kind), hatch)
    messages = sorted((s for s in shown if s.kind == "message"), key=lambda s: s.start_seconds)
    row_of = pack(messages)
    height = 1 / (max(row_of, default=0) + 1)
    boxes = [
        box(span, 1 - (row + 1) * height, 1 - (row + 0.06) * height)
        for span, row in zip(messages, row_of, strict=True)
    ]
    _draw(ax, boxes, [shade(span.bytes) for span in messages])
    for number in range(FIRST, last):
        ax.axvline((starts[number] - start) / MS, color="black", linestyle=":", linewidth=1)
    waiting = sum(
        min(stop, span.stop_seconds) - max(start, span.start_seconds)
        for span in shown
        if span.kind == "wait"
    )
    sent = sum(span.kind == "message" and span.iteration == FIRST for span in spans)
    seconds = (stop - start) / ITERATIONS
    ax.set_title(
        f"{method}: {seconds / MS:.0f} ms, waits {waiting / ITERATIONS / MS:.0f}, "
        f"{sent} message{'s' * (sent > 1)}",
        loc="left",
        fontsize=8,
        pad=2,
    )
    ax.set_yticks([0.5, 1.55], ["network", "compute"], fontsize=8)
    ax.set_ylim(-0.06, 2.1)
    ax.grid(False)
    return (stop - start) / MS


def _draw(ax: Axes, boxes: list[Box], colours: list[Any], hatch: str | None = None) -> None:
    """All boxes as one collection: one artist each would take most of a minute."""
    corners = [
        [(left, bottom), (left, top), (right, top), (right, bottom)]
        for left, right, bottom, top in boxes
    ]
    ax.add_collection(
        PolyCollection(
            corners,
            facecolors=colours,
            edgecolors="white" if hatch else "face",
            linewidths=0 if hatch else 0.2,
            hatch=hatch,
        )
    )


def _forward_starts(spans: tuple[Span, ...]) -> dict[int, float]:
    starts: dict[int, float] = {}
    for span in spans:
        if span.kind == "forward":
            before = starts.get(span.iteration, span.start_seconds)
            starts[span.iteration] = min(before, span.start_seconds)
    return starts
