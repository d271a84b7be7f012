"""One drawing of each of the survey's six aspects, side by side, as in its Fig. 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi, sin

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ddlnb.figures.colours import ARCHITECTURE_COLOURS, DARK, GREY, METHOD_COLOURS, PALE
from ddlnb.figures.gantt import draw_schedule, legend_lanes, shades
from ddlnb.figures.networks import draw_network
from ddlnb.figures.style import note, styled
from ddlnb.figures.synchronisation import draw_workers, legend_activity
from ddlnb.networks.network import Network
from ddlnb.results.timeline import Timeline
from ddlnb.survey.fig3_timelines import Overview

Point = tuple[float, float]
BOX = "round,pad=0.02,rounding_size=0.06"
PATHS = ("TCP/IP", "RoCE", "RDMA over InfiniBand")  # from the application to the wire


@styled
def techniques_overview(found: Overview) -> Figure:
    """The six aspects of a training method, one example drawn of each, as in Fig. 3.

    The parts are (1) synchronisation, (2) compression, (3) scheduling, (4) architecture,
    (5) protocol and (6) topology. Parts 1 and 3 are simulated, part 2 is what compressors make of
    one gradient, the graphs of part 6 are built; parts 4 and 5 are pictures.
    """
    figure = plt.figure(figsize=(15, 8.6))
    grid = figure.add_gridspec(2, 3, wspace=0.03, hspace=0.05)
    parts = [figure.add_subfigure(grid[number // 3, number % 3]) for number in range(6)]
    _synchronisation(parts[0], found.activity)
    _compression(parts[1], found.compressed)
    _scheduling(parts[2], found.schedules)
    _architecture(parts[3])
    _protocol(parts[4])
    _topology(parts[5], found.networks)
    names = ("synchronisation", "compression", "scheduling", "architecture", "protocol", "topology")
    for number, (part, name) in enumerate(zip(parts, names, strict=True), start=1):
        part.suptitle(f"({number}) {name}", fontweight="bold", fontsize=11)
    note(figure, "source: (1) and (3) simulated, (2) and (6) computed, (4) and (5) schematic")
    return figure


def _synchronisation(part: SubFigure, activity: pd.DataFrame) -> None:
    methods = list(activity["method"].unique())
    axes = part.subplots(len(methods), 1, sharex=True)
    until = float(activity.groupby(["method", "rank"])["stop_seconds"].max().min())
    for ax, method in zip(axes, methods, strict=True):
        rows = activity[activity["method"] == method]
        draw_workers(ax, method, rows, sorted(rows["rank"].unique()), until)
        ax.set_xlim(0, until)
    axes[-1].set_xlabel("time (s)")
    part.legend(handles=legend_activity(), loc="outside lower center", ncols=2, fontsize=8)


def _compression(part: SubFigure, compressed: Mapping[str, np.ndarray]) -> None:
    axes = part.subplots(len(compressed), 1, sharex=True, sharey=True)
    for ax, (name, values) in zip(axes, compressed.items(), strict=True):
        colour = DARK if name == "gradient" else METHOD_COLOURS["WFBP-A2A"]
        ax.bar(range(len(values)), values, color=colour)
        ax.axhline(0, color=GREY, linewidth=0.6)
        different = len(np.unique(values))
        zeros = int((values == 0).sum())
        said = f"{different} different values" + (f", {zeros} of {len(values)} zero" * bool(zeros))
        ax.set_title(f"{name}: {said}", loc="left", fontsize=9, pad=3)
        ax.set_xticks([])
        ax.grid(visible=False)
    axes[-1].set_xlabel("coordinates")


def _scheduling(part: SubFigure, schedules: Mapping[str, Timeline]) -> None:
    axes = part.subplots(len(schedules), 1, sharex=True)
    shade = shades(schedules.values())
    ends = [
        draw_schedule(ax, name, line, shade)
        for ax, (name, line) in zip(axes, schedules.items(), strict=True)
    ]
    axes[0].set_xlim(0, 1e3 * 1.01 * max(ends))
    axes[-1].set_xlabel("time (ms)")
    handles = legend_lanes(schedules.values())
    part.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)


def _architecture(part: SubFigure) -> None:
    left, right = part.subplots(1, 2)
    around = _circle(5)
    for ax, title in ((left, "parameter server (PS)"), (right, "all-to-all (A2A), as a ring")):
        _blank(ax, title)
        ax.set_xlim(-1.6, 1.6)
        ax.set_ylim(-1.6, 1.6)
    for number, point in enumerate(around):
        _arrow(left, point, (0, 0), both=True, shrink=25.0)
        _arrow(right, point, around[(number + 1) % len(around)], shrink=25.0)
    for ax, kind in ((left, "PS"), (right, "A2A")):
        for number, (x, y) in enumerate(around):
            _box(ax, x - 0.33, y - 0.16, 0.66, 0.32, f"worker {number}", PALE)
        if kind == "PS":
            _box(ax, -0.36, -0.18, 0.72, 0.36, "server", ARCHITECTURE_COLOURS[kind])


def _protocol(part: SubFigure) -> None:
    """Draw through what a message goes: the kernel's copies, or the card alone."""
    for ax, path in zip(part.subplots(1, len(PATHS)), PATHS, strict=True):
        _blank(ax, path)
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        bypasses = path != PATHS[0]
        _box(ax, 0.12, 0.8, 0.76, 0.13, "application", PALE)
        if not bypasses:
            _box(
                ax, 0.12, 0.5, 0.76, 0.13, "kernel: copies,\nTCP and IP", METHOD_COLOURS["BSP-A2A"]
            )
        _box(ax, 0.12, 0.2, 0.76, 0.13, "card" if not bypasses else "card: RDMA", PALE)
        steps = [(0.8, 0.34)] if bypasses else [(0.8, 0.64), (0.5, 0.34)]
        for start, stop in steps:
            _arrow(ax, (0.5, start), (0.5, stop))
        wire = "InfiniBand" if path == PATHS[2] else "Ethernet"
        _arrow(ax, (0.5, 0.2), (0.5, 0.09))
        ax.text(0.5, 0.03, wire, ha="center", va="center", fontsize=9)


def _topology(part: SubFigure, networks: Sequence[Network]) -> None:
    for ax, network in zip(part.subplots(len(networks), 1), networks, strict=True):
        _blank(ax, f"{network.name}: {network.ranks} servers, {network.switches} switches")
        draw_network(ax, network)


def _circle(count: int) -> list[Point]:
    angles = [pi / 2 + 2 * pi * number / count for number in range(count)]
    return [(1.15 * cos(angle), 1.15 * sin(angle)) for angle in angles]


def _blank(ax: Axes, title: str) -> None:
    ax.axis("off")
    ax.set_title(title, fontsize=9)


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    patch = FancyBboxPatch((x, y), width, height, boxstyle=BOX, facecolor=colour, edgecolor=GREY)
    ax.add_patch(patch)
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)


def _arrow(ax: Axes, tail: Point, head: Point, *, both: bool = False, shrink: float = 2.0) -> None:
    ax.add_patch(
        FancyArrowPatch(
            tail,
            head,
            arrowstyle="<|-|>" if both else "-|>",
            mutation_scale=11,
            color=DARK,
            shrinkA=shrink,
            shrinkB=shrink,
        )
    )
