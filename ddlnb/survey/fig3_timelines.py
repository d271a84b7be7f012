"""Fig. 3: recorded timelines, what overlapped in them, and an overview of the six aspects.

What an overview of the six aspects shows (survey, Fig. 3, parts 1 to 6), one example of each.

Nothing is drawn by hand that the package can make: activities, compressed gradients, schedules and
networks are those of its own definitions, small enough to be seen whole.

One drawing of each of the survey's six aspects, side by side, as in its Fig. 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ddlnb.compression.base import Codec, Round
from ddlnb.compression.catalogue import get_compressor
from ddlnb.errors import require
from ddlnb.figures.gantt import draw_schedule, legend_lanes, shades
from ddlnb.figures.networks import draw_network
from ddlnb.figures.style import ARCHITECTURE_COLOURS, DARK, GREY, METHOD_COLOURS, PALE, note, styled
from ddlnb.files import BUILD
from ddlnb.networks.network import Network
from ddlnb.networks.topologies import BCube, FatTree, Torus
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.simulate import simulate
from ddlnb.survey.items import Rows, tabled
from ddlnb.survey.sec3_1_2_synchronisation import activities, draw_workers, legend_activity
from ddlnb.survey.time_to_target import made_up_cluster
from ddlnb.units import MB, MS
from ddlnb.workloads.workload import Gradient, Layer, Workload

SYNCHRONISATIONS = ("bsp on PS", "ssp(1)", "asp", "local(4)")
COMPRESSORS = ("ef-sign", "qsgd(3)", "top-k(0.25)")
PARTS = "ByteScheduler-A2A"
SCHEDULES = ("BSP-A2A", "WFBP-A2A", "MG-WFBP", PARTS)
ELEMENTS = 16  # of the gradient that is compressed
WORKERS = 4
# Layers a to e, of which the first three have few elements and compute quickly.
FIVE_LAYERS = Workload(
    "five layers",
    1,
    tuple(Layer(name, 0.010) for name in "abcde"),
    tuple(
        Gradient(f"{name}.weight", name, elements, 4, seconds)
        for name, elements, seconds in (
            ("e", 1_000_000, 0.030),
            ("d", 700_000, 0.030),
            ("c", 50_000, 0.006),
            ("b", 50_000, 0.006),
            ("a", 50_000, 0.006),
        )
    ),
    "made up",
)
PARTITION, CREDIT = "1MB", "1MB"
BANDWIDTH, LATENCY = "1 Gb/s", "1 ms"


class Overview(NamedTuple):
    """One example of each aspect that can be computed; architecture and protocol are pictures.

    ``activity`` is what workers do when, by synchronisation. ``compressed`` has the values of a
    gradient as they arrive, by compressor, itself under "gradient". ``schedules`` are simulated
    timelines by method, ``networks`` graphs of hosts and switches.
    """

    activity: pd.DataFrame
    compressed: Mapping[str, np.ndarray]
    schedules: Mapping[str, Timeline]
    networks: tuple[Network, ...]


def overview(seed: int = 0) -> Overview:
    """Return one example of each aspect of the taxonomy."""
    return Overview(
        activities(SYNCHRONISATIONS, workers=WORKERS, steps=8),
        compressed_gradient(seed),
        simulated_schedules(),
        tuple(one.network(1.0) for one in (FatTree(4), BCube(4, 2), Torus(4, 4))),
    )


def compressed_gradient(seed: int = 0) -> dict[str, np.ndarray]:
    """Return normal numbers, and what of them arrives through every compressor."""
    gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))
    found = {"gradient": gradient.numpy()}
    for name in COMPRESSORS:
        codec = get_compressor(name)
        assert isinstance(codec, Codec)  # the catalogue's own
        payload = codec.encode(gradient, Round(rank=0, workers=1, step=0, seed=seed), {})
        found[name] = codec.decode(payload, ELEMENTS).numpy()
    return found


def simulated_schedules() -> dict[str, Timeline]:
    """Return four simulated iterations of a model of five layers, by method."""
    cluster = made_up_cluster(BANDWIDTH, LATENCY, WORKERS)
    methods = {name: METHODS[name] for name in SCHEDULES}
    methods[PARTS] = methods[PARTS].tuned(partition=PARTITION, credit=CREDIT)
    return {
        name: simulate(FIVE_LAYERS, cluster, method, iterations=4)
        for name, method in methods.items()
    }


EARLY, LATE = "started in backward", "still sent in next forward"
PLACES = "places of waits"


@tabled(index=["method"], digits=3)
def overlap_table(timelines: Mapping[str, Timeline], rank: int = 0) -> Rows:
    """Return one row per method: times and messages of one rank, averaged over the iterations.

    The columns are those of `overlap`, before them the milliseconds of computing and waiting, and
    after them the number of places at which the worker waits: 1 if it waits for all layers at
    once. Raises InputError for a rank without spans, and for a single iteration.
    """
    for name, whole in timelines.items():
        timeline = whole.on(rank)
        require(bool(timeline.spans), f"timeline of {name!r} has no spans of rank {rank}")
        iterations = sorted({span.iteration for span in timeline.spans})
        require(
            len(iterations) > 1,
            f"timeline of {name!r} has one iteration, and messages may end in the next; take "
            f"iterations=2 or more",
        )
        counts = pd.DataFrame([overlap(timeline, iteration) for iteration in iterations])
        kinds = ("forward", "backward", "wait", "update")
        spent = {f"{kind} (ms)": timeline.seconds(kind) / MS / len(iterations) for kind in kinds}
        largest = {"largest (MB)": counts["largest (MB)"].max()}
        yield {
            "method": name,
            **spent,
            **counts.mean(),
            **largest,
            PLACES: places_of_waits(timeline),
        }


def overlap(timeline: Timeline, iteration: int) -> dict[str, float]:
    """Count the messages of one iteration, and those that overlap with computation.

    EARLY counts messages that started before the iteration's backward pass ended, and LATE those
    still under way when the next forward pass had started; it is NaN in the last iteration.
    """
    spans = [span for span in timeline.spans if span.iteration == iteration]
    sent = [span for span in spans if span.kind == "message"]
    end = max(span.stop_seconds for span in spans if span.kind == "backward")
    following = [
        span.start_seconds
        for span in timeline.spans
        if span.kind == "forward" and span.iteration == iteration + 1
    ]
    return {
        "messages": len(sent),
        "largest (MB)": max((span.bytes for span in sent), default=0) / MB,
        EARLY: sum(span.start_seconds < end for span in sent),
        LATE: sum(span.stop_seconds > min(following) for span in sent) if following else nan,
    }


def places_of_waits(timeline: Timeline) -> int:
    """Return at how many places of an iteration the worker waits."""
    return len({span.name for span in timeline.spans if span.kind == "wait"})


def write_traces(timelines: Mapping[str, Timeline], folder: str | Path | None = None) -> list[str]:
    """Write a Chrome trace per method to the folder, by default build/traces; return their names.

    chrome://tracing and Perfetto open them; `Timeline.write_chrome_trace` says what they hold.
    """
    folder = Path(folder) if folder is not None else BUILD / "traces"
    return [
        timeline.write_chrome_trace(folder / f"{name}.json").name
        for name, timeline in timelines.items()
    ]


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
    names = ("synchronisation", "compression", "scheduling", "architecture", "protocol", "topology")
    for number, (part, name) in enumerate(zip(parts, names, strict=True), start=1):
        part.suptitle(f"({number}) {name}", fontweight="bold", fontsize=11)
    _synchronisation(parts[0], found.activity)
    _compression(parts[1], found.compressed)
    _scheduling(parts[2], found.schedules)
    _architecture(parts[3])
    _protocol(parts[4])
    _topology(parts[5], found.networks)
    return note(
        figure, "source: (1) and (3) simulated, (2) and (6) computed, (4) and (5) schematic"
    )


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
        zeros = int((values == 0).sum())
        said = f"{len(np.unique(values))} different values"
        said += f", {zeros} of {len(values)} zero" * bool(zeros)
        ax.set_title(f"{name}: {said}", loc="left", fontsize=9, pad=3)
        ax.set_xticks([])
        ax.grid(visible=False)
    axes[-1].set_xlabel("coordinates")


def _scheduling(part: SubFigure, schedules: Mapping[str, Timeline]) -> None:
    axes = part.subplots(len(schedules), 1, sharex=True)
    shade, lines = shades(schedules.values()), zip(axes, schedules.items(), strict=True)
    ends = [draw_schedule(ax, name, line, shade) for ax, (name, line) in lines]
    axes[0].set_xlim(0, 1e3 * 1.01 * max(ends))
    axes[-1].set_xlabel("time (ms)")
    handles = legend_lanes(schedules.values())
    part.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)


def _architecture(part: SubFigure) -> None:
    angles = np.pi / 2 + 2 * np.pi * np.arange(5) / 5
    around = list(zip(1.15 * np.cos(angles), 1.15 * np.sin(angles), strict=True))
    titles = ("parameter server (PS)", "all-to-all (A2A), as a ring")
    left, right = part.subplots(1, 2)
    for ax, title in zip((left, right), titles, strict=True):
        _blank(ax, title)
        ax.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
        for number, (x, y) in enumerate(around):
            _box(ax, x - 0.33, y - 0.16, 0.66, 0.32, f"worker {number}", PALE)
    for number, point in enumerate(around):
        _arrow(left, point, (0, 0), both=True, shrink=25.0)
        _arrow(right, point, around[(number + 1) % len(around)], shrink=25.0)
    _box(left, -0.36, -0.18, 0.72, 0.36, "server", ARCHITECTURE_COLOURS["PS"])


def _protocol(part: SubFigure) -> None:
    """Draw through what a message goes: the kernel's copies, or the card alone."""
    kernel = ("kernel: copies,\nTCP and IP", METHOD_COLOURS["BSP-A2A"])
    for ax, path in zip(part.subplots(1, len(PATHS)), PATHS, strict=True):
        _blank(ax, path)
        ax.set(xlim=(0, 1), ylim=(0, 1))
        bypasses = path != PATHS[0]
        card = ("card: RDMA" if bypasses else "card", PALE)
        passed = {0.8: ("application", PALE), 0.5: kernel, 0.2: card}
        if bypasses:
            del passed[0.5]
        for y, (text, colour) in passed.items():
            _box(ax, 0.12, y, 0.76, 0.13, text, colour)
        for start, stop in pairwise(passed):
            _arrow(ax, (0.5, start), (0.5, stop + 0.14))
        _arrow(ax, (0.5, 0.2), (0.5, 0.09))
        wire = "InfiniBand" if path == PATHS[2] else "Ethernet"
        ax.text(0.5, 0.03, wire, ha="center", va="center", fontsize=9)


def _topology(part: SubFigure, networks: Sequence[Network]) -> None:
    for ax, network in zip(part.subplots(len(networks), 1), networks, strict=True):
        _blank(ax, f"{network.name}: {network.ranks} servers, {network.switches} switches")
        draw_network(ax, network)


def _blank(ax: plt.Axes, title: str) -> None:
    ax.axis("off")
    ax.set_title(title, fontsize=9)


def _box(
    ax: plt.Axes, x: float, y: float, width: float, height: float, text: str, colour: str
) -> None:
    patch = FancyBboxPatch((x, y), width, height, boxstyle=BOX, facecolor=colour, edgecolor=GREY)
    ax.add_patch(patch)
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)


def _arrow(
    ax: plt.Axes, tail: Point, head: Point, *, both: bool = False, shrink: float = 2.0
) -> None:
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
