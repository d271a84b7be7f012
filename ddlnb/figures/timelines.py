"""The timelines figure: who computes, waits or sends when, as in part 3 of Fig. 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddlnb.errors import require
from ddlnb.figures.style import legend_line, styled
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import MS, show_bytes

KIND_COLOURS = {"forward": "#9ad0f0", "backward": "#0072B2", "update": "#009E73", "wait": "#D55E00"}
WAIT_HATCH = "////"
MESSAGE_COLOURS = LinearSegmentedColormap.from_list("size", ["#e5d3ef", "#9467a8", "#3b1250"])


@styled
def timelines(timelines_by_method: Mapping[str, Timeline], rank: int = 0) -> Figure:
    """The methods' timelines on one rank, one above the other, as in part 3 of Fig. 3.

    The upper lane of a method is what the worker computes or waits for, the lower one its
    messages, stacked where they overlap, darker the larger they are. Vertical lines are starts of
    forward passes; time starts with the first one. All methods share one axis.
    """
    require(bool(timelines_by_method), "there are no timelines to draw")
    chosen = {name: _from_zero(line.on(rank)) for name, line in timelines_by_method.items()}
    figure, grid = plt.subplots(
        len(chosen),
        1,
        figsize=(11, 0.9 + 1.12 * len(chosen)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    sizes = [s.bytes for line in chosen.values() for s in line.spans if s.kind == "message"]
    shade = shades(sizes)
    end = max(span.stop_seconds for line in chosen.values() for span in line.spans) / MS
    for ax, (name, line) in zip(grid[:, 0], chosen.items(), strict=True):
        ax.set_xlim(0, end * 1.01)
        _timeline_panel(ax, name, line, shade, end)
    grid[-1, 0].set_xlabel("time (ms)")
    handles = timeline_handles(sizes, shade)
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    sources = ", ".join(sorted({line.source for line in chosen.values()}))
    figure.supxlabel(f"source: {sources}; rank {rank}", fontsize=8, x=0.99, ha="right")
    return figure


def timeline_handles(sizes: list[int], shade: Callable[[int], Any]) -> list[Any]:
    """The legend of timelines: kinds of spans, the smallest and the largest message."""
    handles: list[Any] = [
        Patch(
            facecolor=colour,
            edgecolor="white",
            hatch=WAIT_HATCH if kind == "wait" else None,
            label=kind,
        )
        for kind, colour in KIND_COLOURS.items()
    ]
    if sizes:
        handles += [
            Patch(color=shade(size), label=f"message, {show_bytes(size)}")
            for size in sorted({min(sizes), max(sizes)})
        ]
    return [*handles, legend_line("black", "forward starts", ":")]


def _from_zero(line: Timeline) -> Timeline:
    iterations = [span.iteration for span in line.spans]
    require(bool(iterations), f"the timeline of {line.method!r} has no span on this rank")
    return line.window(min(iterations), max(iterations))


def shades(sizes: Sequence[int]) -> Callable[[int], Any]:
    """A colour for a message size, on a logarithmic scale between the smallest and the largest."""
    low, high = np.log(max(1, min(sizes, default=1))), np.log(max(2, *sizes, 2))

    def shade(size: int) -> Any:
        if high == low:
            return MESSAGE_COLOURS(0.5)
        return MESSAGE_COLOURS((np.log(max(1, size)) - low) / (high - low))

    return shade


def _timeline_panel(
    ax: Axes, name: str, line: Timeline, shade: Callable[[int], Any], end: float
) -> None:
    for kind, colour in KIND_COLOURS.items():
        spans = [span for span in line.spans if span.kind == kind]
        ax.broken_barh(
            [(span.start_seconds / MS, span.seconds / MS) for span in spans],
            (1.1, 0.9),
            facecolor=colour,
            edgecolor="white" if kind == "wait" else colour,
            linewidth=0 if kind == "wait" else 0.3,
            hatch=WAIT_HATCH if kind == "wait" else None,
        )
    messages = sorted(
        (span for span in line.spans if span.kind == "message"), key=lambda s: s.start_seconds
    )
    row_of = pack(messages)
    rows = max(row_of, default=0) + 1
    for span, row in zip(messages, row_of, strict=True):
        _draw_message(ax, span, 1 - (row + 1) / rows, 1 / rows, shade, end)
    for start in _forward_starts(line):
        ax.axvline(start / MS, color="black", linestyle=":", linewidth=1)
    waits = 1e3 * line.exposed_communication_seconds
    per_iteration = len(messages) / max(1, line.iterations)
    plural = "s" if per_iteration > 1 else ""
    ax.set_title(
        f"{name}: waits {waits:.1f} ms per iteration, {per_iteration:.0f} message{plural}",
        loc="left",
        fontsize=9,
        fontweight="bold",
        pad=3,
    )
    ax.set_yticks([0.5, 1.55], ["network", "compute"])
    ax.set_ylim(-0.06, 2.1)
    ax.grid(False)


def _draw_message(
    ax: Axes, span: Span, bottom: float, height: float, shade: Callable[[int], Any], end: float
) -> None:
    colour = shade(span.bytes)
    ax.broken_barh(
        [(span.start_seconds / MS, span.seconds / MS)],
        (bottom, height * 0.94),
        facecolor=colour,
        edgecolor="white",
        linewidth=0.2,
    )
    text = show_bytes(span.bytes)
    if height > 0.24 and span.seconds / MS > 0.011 * end * len(text):
        dark = sum(to_rgb(colour)) < 1.7
        ax.text(
            (span.start_seconds + span.stop_seconds) / 2 / MS,
            bottom + height * 0.47,
            text,
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
        )


def pack(spans: Sequence[Span]) -> list[int]:
    """A row for every span, in order of their starts, so that spans in one row do not overlap.

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


def _forward_starts(line: Timeline) -> list[float]:
    """When the forward pass of every iteration starts."""
    starts: dict[int, float] = {}
    for span in line.spans:
        if span.kind == "forward":
            before = starts.get(span.iteration, span.start_seconds)
            starts[span.iteration] = min(before, span.start_seconds)
    return sorted(starts.values())
