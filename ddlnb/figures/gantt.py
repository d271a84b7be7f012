"""Who computes, waits or sends when, as in part 3 of Fig. 3: recorded on a rank, and simulated."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import (
    beside,
    in_order,
    legend,
    legend_line,
    names_down,
    note,
    say_source,
    styled,
)
from ddlnb.plans.plan import ALL_GATHER, REDUCE_SCATTER
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import MS, counted, show_bytes

KIND_COLOURS = {
    "forward": "#9ad0f0",
    "backward": "#0072B2",
    "update": "#009E73",
    "delay": "#E69F00",
    "wait": "#D55E00",
}
WAIT_HATCH = "////"
MESSAGE_COLOURS = LinearSegmentedColormap.from_list("size", ["#e5d3ef", "#9467a8", "#3b1250"])
COMPUTE_LANE = (1.1, 2.0)  # bottom and top; the network's lane is from 0 to 1
FIRST, ITERATIONS = 1, 2  # a schedule shows two iterations with earlier messages still under way
Box = tuple[float, float, float, float]  # left, right, bottom, top
Shade = Callable[[int], Any]  # the colour of a message of this size


@styled
def timelines(
    timelines_by_method: Mapping[str, Timeline] | Sequence[Timeline], rank: int | None = 0
) -> plt.Figure:
    """The methods' timelines on one rank, one above the other, as in part 3 of Fig. 3.

    Those of a list are called by their methods. With None as the rank each timeline is already that
    of one rank, which its name says.

    The upper lane of a method is what the worker computes or waits for, the lower one its
    messages, stacked where they overlap, darker the larger they are. Vertical lines are starts of
    forward passes; time starts with the first one. All methods share one axis.
    """
    if not isinstance(timelines_by_method, Mapping):
        timelines_by_method = {line.method: line for line in timelines_by_method}
    chosen = {
        name: _from_zero(line if rank is None else line.on(rank))
        for name, line in timelines_by_method.items()
    }
    figure, grid = plt.subplots(
        len(chosen), 1, figsize=(11, 0.9 + 1.12 * len(chosen)), sharex=True, squeeze=False
    )
    shade = shades(chosen.values())
    end = max(span.stop_seconds for line in chosen.values() for span in line.spans)
    for ax, (name, line) in zip(grid[:, 0], chosen.items(), strict=True):
        rows = _draw_lanes(ax, line.spans, 0, end, shade)
        _write_sizes(ax, rows, shade, end)
        for start in _forward_starts(line.spans).values():
            ax.axvline(start / MS, color="black", linestyle=":", linewidth=1)
        sent = _messages(line.spans, min(span.iteration for span in line.spans))
        waits = f"waits {line.exposed_communication_seconds / MS:.1f} ms per iteration, "
        is_known = any(span.kind != "message" for span in line.spans)  # engines log messages only
        ax.set_title(
            f"{name}: {waits * is_known}{counted(sent, 'message')}",
            loc="left",
            fontsize=9,
            fontweight="bold",
            pad=3,
        )
    grid[-1, 0].set(xlim=(0, end / MS * 1.01), xlabel="time (ms)")
    legend(figure, legend_lanes(chosen.values()))
    sources = ", ".join(sorted({line.source for line in chosen.values()}))
    return note(figure, f"source: {sources}" + ("" if rank is None else f"; rank {rank}"))


@styled
def schedules(timelines: Mapping[str, Mapping[str, Timeline]], title: str = "") -> plt.Figure:
    """Two steady iterations of every method, a column for every network.

    ``timelines`` gives for every network the timelines by method, of four iterations or more. The
    upper lane is what a worker computes or waits for, the lower one its messages, darker the larger
    they are, stacked where they overlap. All methods of a network share one axis.
    """
    methods = in_order([name for by_method in timelines.values() for name in by_method])
    figure, grid = plt.subplots(
        len(methods),
        len(timelines),
        figsize=(2.2 + 3.7 * len(timelines), 1.2 + 1.0 * len(methods)),
        sharex="col",
        sharey=True,
        squeeze=False,
    )
    every = [line for by_method in timelines.values() for line in by_method.values()]
    shade = shades(every)
    for column, (network, by_method) in zip(grid.T, timelines.items(), strict=True):
        panels = zip(column, methods, strict=True)
        ends = [draw_schedule(ax, name, by_method[name], shade) for ax, name in panels]
        column[0].set_xlim(0, 1.01 * max(ends) / MS)
        column[0].annotate(
            network,
            (0.5, 1),
            xytext=(0, 18),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            fontsize=11,
            fontweight="bold",
        )
        column[-1].set_xlabel("time (ms)")
    legend(figure, legend_lanes(every))
    if title:
        figure.suptitle(title)
    sources = ", ".join(sorted({line.source for line in every}))
    remark = "every network has its own axis"
    return say_source(figure, f"{sources}; one worker stands for all", remark)


def draw_schedule(ax: plt.Axes, method: str, line: Timeline, shade: Shade) -> float:
    """Draw two iterations, and return how many seconds they take."""
    spans = line.on(0).spans
    starts, last = _forward_starts(spans), FIRST + ITERATIONS
    require(
        last in starts,
        f"the timeline of {method!r} has {counted(len(starts), 'iteration')}, not {last}+",
    )
    start, stop = starts[FIRST], starts[last]
    _draw_lanes(ax, spans, start, stop, shade)
    for number in range(FIRST, last):
        ax.axvline((starts[number] - start) / MS, color="black", linestyle=":", linewidth=1)
    waiting = sum(
        max(0.0, min(stop, span.stop_seconds) - max(start, span.start_seconds))
        for span in spans
        if span.kind == "wait"
    )
    sent = _messages(spans, FIRST)
    ax.set_title(
        f"{method}: {(stop - start) / ITERATIONS / MS:.0f} ms, "
        f"waits {waiting / ITERATIONS / MS:.0f}, {counted(sent, 'message')}",
        loc="left",
        fontsize=8,
        pad=2,
    )
    return stop - start


def _messages(spans: Sequence[Span], iteration: int) -> int:
    """Return how many messages an iteration has, those in two halves once."""
    halves = re.compile(f"^({REDUCE_SCATTER}|{ALL_GATHER}) of ")
    own = [span for span in spans if span.kind == "message" and span.iteration == iteration]
    return len({halves.sub("", span.name) for span in own})


def _draw_lanes(
    ax: plt.Axes, spans: Sequence[Span], start: float, stop: float, shade: Shade
) -> list[tuple[Span, Box]]:
    """Draw what lies between start and stop, and return the messages with their boxes."""
    shown = [span for span in spans if span.stop_seconds > start and span.start_seconds < stop]

    def box(span: Span, bottom: float, top: float) -> Box:
        left, right = max(start, span.start_seconds), min(stop, span.stop_seconds)
        return (left - start) / MS, (right - start) / MS, bottom, top

    for kind, colour in KIND_COLOURS.items():
        boxes = [box(span, *COMPUTE_LANE) for span in shown if span.kind == kind]
        _draw_boxes(ax, boxes, [colour] * len(boxes), WAIT_HATCH if kind == "wait" else None)
    messages = sorted((s for s in shown if s.kind == "message"), key=lambda s: s.start_seconds)
    row_of = pack(messages)
    height = 1 / (max(row_of, default=0) + 1)
    rows = [
        (span, box(span, 1 - (row + 1) * height, 1 - (row + 0.06) * height))
        for span, row in zip(messages, row_of, strict=True)
    ]
    _draw_boxes(ax, [one for _, one in rows], [shade(span.bytes) for span in messages])
    ax.set_yticks([0.5, 1.55], ["network", "compute"])
    ax.set_ylim(-0.06, 2.1)
    ax.grid(False)
    return rows


def _draw_boxes(
    ax: plt.Axes, boxes: list[Box], colours: list[Any], hatch: str | None = None
) -> None:
    """Draw all boxes as one collection: one artist each would take most of a minute."""
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


def _write_sizes(ax: plt.Axes, rows: list[tuple[Span, Box]], shade: Shade, end: float) -> None:
    """Write sizes into the messages that have room for them."""
    for span, (left, right, bottom, top) in rows:
        text = show_bytes(span.bytes)
        if top - bottom > 0.23 and right - left > 0.011 * end / MS * len(text):
            ax.text(
                (left + right) / 2,
                (bottom + top) / 2,
                text,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if sum(to_rgb(shade(span.bytes))) < 1.7 else "black",
            )


def legend_lanes(lines: Collection[Timeline]) -> list[Any]:
    """Return the entries of the kinds of spans, and of the smallest and the largest message."""
    kinds = {span.kind for line in lines for span in line.spans}
    sizes, shade = _sizes(lines)
    handles: list[Any] = [
        Patch(
            facecolor=colour,
            edgecolor="white",
            hatch=WAIT_HATCH if kind == "wait" else None,
            label=kind,
        )
        for kind, colour in KIND_COLOURS.items()
        if kind in kinds
    ]
    ends = sorted({min(sizes), max(sizes)}) if sizes else []
    handles += [Patch(color=shade(size), label=f"message, {show_bytes(size)}") for size in ends]
    return [*handles, legend_line("black", "forward starts", ":")]


def shades(lines: Any) -> Shade:
    """Return a colour for every size of message in these timelines."""
    return _sizes(lines)[1]


def _sizes(lines: Any) -> tuple[list[int], Shade]:
    """Return all message sizes, and a colour for each, on a logarithmic scale between them."""
    sizes = [span.bytes for line in lines for span in line.spans if span.kind == "message"]
    low, high = np.log(max(1, min(sizes, default=1))), np.log(max(2, *sizes, 2))

    def shade(size: int) -> Any:
        if high == low:
            return MESSAGE_COLOURS(0.5)
        return MESSAGE_COLOURS((np.log(max(1, size)) - low) / (high - low))

    return sizes, shade


def _from_zero(line: Timeline) -> Timeline:
    iterations = [span.iteration for span in line.spans]
    require(bool(iterations), f"the timeline of {line.method!r} has no span on this rank")
    return line.window(min(iterations), max(iterations))


def _forward_starts(spans: Sequence[Span]) -> dict[int, float]:
    """Return when the forward pass of every iteration starts."""
    starts: dict[int, float] = {}
    for span in spans:
        if span.kind == "forward":
            before = starts.get(span.iteration, span.start_seconds)
            starts[span.iteration] = min(before, span.start_seconds)
    return starts


def pack(spans: Sequence[Span]) -> list[int]:
    """Return a row for every span, in order of their starts, so that spans in a row do not overlap.

    >>> pack([Span(0, "message", "", 0, 3), Span(0, "message", "", 1, 2),
    ...       Span(0, "message", "", 2, 4)])
    [0, 1, 1]
    """
    free: list[float] = []
    rows = []
    for span in spans:
        row = next((r for r, until in enumerate(free) if until <= span.start_seconds), len(free))
        free[row : row + 1] = [span.stop_seconds]
        rows.append(row)
    return rows


PART_COLOURS = {
    "computation": "#9ad0f0",
    "contention": "#CC79A7",
    "latency": "#E69F00",
    "bandwidth": "#0072B2",
}
TOTAL_ROOM = 1.45  # of the longest bar, for the time behind it


@styled
def breakdown_bars(rows: pd.DataFrame) -> plt.Figure:
    """Where the time of an iteration goes: a panel for every network, a bar for every method.

    ``rows`` have the columns model, network, gpus, method, source, iteration_seconds and one of
    seconds for each of PART_COLOURS, which add up to it. Models stand below one another; the panels
    of one model share an axis.
    """
    models = list(rows.groupby(["model", "gpus"], sort=False))
    networks = list(rows["network"].unique())
    methods = in_order(rows["method"])
    figure, grid = plt.subplots(
        len(models),
        len(networks),
        figsize=(2.4 + 3.4 * len(networks), 0.6 + len(models) * (0.9 + 0.3 * len(methods))),
        sharex="row",
        sharey=True,
        squeeze=False,
    )
    for ((model, gpus), of_row), axes in zip(models, grid, strict=True):
        axes[0].set_xlim(0, TOTAL_ROOM * of_row["iteration_seconds"].max() / MS)
        for network, ax in zip(networks, axes, strict=True):
            _panel(ax, of_row[of_row["network"] == network], methods)
            ax.set_title(f"{model}, {counted(gpus, 'GPU')}, {network}", fontsize=10)
    for ax in grid[-1]:
        ax.set_xlabel("time of an iteration (ms)")
    legend(figure, [Patch(color=colour, label=part) for part, colour in PART_COLOURS.items()])
    return say_source(
        figure, rows, "behind a bar: the iteration, and how much of it is computation"
    )


def _panel(ax: plt.Axes, rows: pd.DataFrame, methods: list[str]) -> None:
    for _, row in rows.iterrows():
        y, left = methods.index(row["method"]), 0.0
        for part, colour in PART_COLOURS.items():
            width = row[part] / MS  # a negative one is drawn back into the part before it
            ax.barh(y, width, 0.72, left=left, color=colour, linewidth=0)
            left += width
        share = row["computation"] / row["iteration_seconds"]
        beside(ax, left, y, f"{row['iteration_seconds'] / MS:.0f} ms, {100 * share:.0f} %")
    names_down(ax, methods)
