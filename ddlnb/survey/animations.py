"""Five algorithms that move: a ring, a double tree, a priority queue, SSP's clock, and 1F1B.

An animation is one SVG that browsers play by themselves, in a notebook, on the site or from a file;
a click halts it. What it shows are the library's own collectives and timelines, slowed down.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlnb.errors import look_up
from ddlnb.figures.gantt import KIND_COLOURS
from ddlnb.figures.style import PALETTE, text_on
from ddlnb.files import write_atomically
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.collectives.double_tree import complementary_trees, depths
from ddlnb.parallelism.schedules import PipelineTimes, play, schedule
from ddlnb.plans.transfers import Collective
from ddlnb.results.timeline import Timeline
from ddlnb.survey.fig3_timelines import PARTS, simulated_schedules
from ddlnb.survey.sec3_1_2_synchronisation import activities

WIDTH, LANE, LEFT = 720, 22, 110  # in pixels: of the picture, of a lane, of its name
REST = 0.12  # of a round, in which the end is seen
HALT = "this.animationsPaused() ? this.unpauseAnimations() : this.pauseAnimations()"
Place = tuple[float, float]


@dataclass(frozen=True)
class Animation:
    """A picture that moves, with what it shows; it needs no script and nothing beside it."""

    svg: str
    caption: str

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return a page's part, and the picture alone for those that show no page."""
        shown = f"<figure>{self.svg}<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        return {"text/html": shown, "image/svg+xml": self.svg, "text/plain": self.caption}

    def write(self, path: str | Path) -> Path:
        """Write the picture as an SVG file, and return its path."""
        return write_atomically(path, self.svg)


@dataclass(frozen=True)
class Mark:
    """A bar of a lane: from when to when, its colour, and whether it only waits."""

    lane: str
    start: float
    stop: float
    colour: str
    text: str = ""
    waits: bool = False


def ring(workers: int = 4) -> Animation:
    """Return a ring all-reduce: a part gathers a share of every worker, then all get the sum."""
    turn = 2 * math.pi / workers
    places = [
        (360 - 140 * math.sin(-i * turn), 175 - 120 * math.cos(i * turn)) for i in range(workers)
    ]
    collective = get_collective("ring", workers)
    return of_collective(collective, 350, lambda rank, _: places[rank], "Ring all-reduce")


def double_tree(workers: int = 8) -> Animation:
    """Return a double-tree all-reduce: each tree adds up one half and hands the sum down."""
    heights = [depths(parents) for parents in complementary_trees(workers)]
    deepest = max(max(height) for height in heights)

    def place(rank: int, part: int) -> Place:
        below = (-1, 1)[part] * (deepest - heights[part][rank] + 0.6) * -52
        return 60 + rank * 600 / (workers - 1), 210 - below

    collective = get_collective("double-tree(1)", workers)
    return of_collective(collective, 420, place, "Double tree all-reduce")


def priority_queue() -> Animation:
    """Return an iteration of a five-layer model whose parts are sent by priority, one at a time."""
    return of_queue(simulated_schedules()[PARTS].window(1, 3))


def stale_clock(bound: int = 2) -> Animation:
    """Return four workers under SSP, the first of which takes twice as long for a gradient."""
    rows = activities([f"ssp({bound}) on PS"], workers=4, steps=8)
    marks = [
        Mark(
            f"worker {row.rank}",
            row.start_seconds,
            row.stop_seconds,
            KIND_COLOURS["wait" if row.kind == "wait" else "backward"],
            "" if row.kind == "wait" else str(row.iteration + 1),
            row.kind == "wait",
        )
        for row in rows.itertuples()
    ]
    said = f"SSP with a bound of {bound}: gradients by number; hatched workers wait for the slowest"
    return of_marks(marks, [f"worker {rank}" for rank in range(4)], said)


def one_forward_one_backward(stages: int = 4, micro_batches: int = 8) -> Animation:
    """Return an iteration of a pipeline under 1F1B, whose backward passes take twice as long."""
    return of_pipeline(play(schedule("1f1b", stages, micro_batches), {"F": 1.0, "B": 2.0}))


ANIMATIONS: dict[str, Callable[[], Animation]] = {
    "ring": ring,
    "double-tree": double_tree,
    "priority-queue": priority_queue,
    "stale-clock": stale_clock,
    "1f1b": one_forward_one_backward,
}


def animation(name: str) -> Animation:
    """Return one of ANIMATIONS by its name. Raises UnknownName.

    >>> len(animation("ring").svg) < 60_000
    True
    """
    return look_up("animation", name, ANIMATIONS)()


def of_pipeline(times: PipelineTimes) -> Animation:
    """Return the passes of a pipeline, a lane per stage, numbered by micro batch."""
    names = [f"stage {stage}" for stage in range(len(times.stages))]
    colours = {"F": KIND_COLOURS["forward"], "B": KIND_COLOURS["backward"]}
    marks = [
        Mark(name, start, stop, colours.get(one.kind, PALETTE[3]), str(one.micro_batch))
        for name, stage in zip(names, times.stages, strict=True)
        for one, start, stop in stage
    ]
    said = (
        f"1F1B: light forward, dark backward passes; stages are idle {times.bubble:.0%} of the time"
    )
    return of_marks(marks, names, said)


def of_queue(line: Timeline) -> Animation:
    """Return how messages wait and are sent, a lane per layer in the order of their priority.

    A part waits from the end of its layer's backward pass until it is sent.
    """
    ready: dict[tuple[int, str], float] = {}
    marks = []
    for span in sorted(line.spans, key=lambda one: one.start_seconds):
        layer = span.name.split(".")[0]
        if span.kind == "message":
            since = ready.get((span.iteration, layer), span.start_seconds)
            colour = PALETTE[(1 + ord(layer[0])) % len(PALETTE)]
            marks.append(Mark(layer, since, span.start_seconds, colour, waits=True))
            marks.append(Mark(layer, span.start_seconds, span.stop_seconds, colour))
        else:
            colour = KIND_COLOURS[span.kind]
            text = "" if span.kind == "wait" else layer
            marks.append(
                Mark("worker", span.start_seconds, span.stop_seconds, colour, text, not text)
            )
            if span.kind == "backward":
                ready[span.iteration, layer] = span.stop_seconds
    layers = sorted({mark.lane for mark in marks} - {"worker"})
    said = (
        "Parts by priority: hatched ones are ready and wait for credit; the first layer goes first"
    )
    return of_marks(marks, ["worker", *layers], said)


def of_marks(
    marks: Sequence[Mark], lanes: Sequence[str], caption: str, seconds: float = 14.0
) -> Animation:
    """Return bars that grow as time goes on, in ``seconds`` from the first start to the end."""
    first, last = min(mark.start for mark in marks), max(mark.stop for mark in marks)
    scale = (1 - REST) / (last - first)

    def at(moment: float) -> float:
        return (moment - first) * scale

    def across(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * (moment - first) / (last - first)

    drawn = [_text(LEFT - 8, 30 + LANE * (n + 0.5), name, "end") for n, name in enumerate(lanes)]
    for mark in marks:
        top, width = 30 + LANE * lanes.index(mark.lane), across(mark.stop) - across(mark.start)
        grows = _animate(
            "width", [0, 0, width, width], [0, at(mark.start), at(mark.stop), 1], seconds
        )
        look = (
            f'fill="url(#waits)" stroke="{mark.colour}"' if mark.waits else f'fill="{mark.colour}"'
        )
        drawn.append(
            f'<rect x="{across(mark.start):.1f}" y="{top + 2}" height="{LANE - 4}" '
            f'width="{width:.1f}" {look}>{grows}</rect>'
        )
        if mark.text and width > 7:
            shown = _animate("opacity", [0, 1], [0, at(mark.start)], seconds, "discrete")
            middle = across((mark.start + mark.stop) / 2)
            look = text_on(mark.colour)
            drawn.append(_text(middle, top + LANE / 2, mark.text, inside=shown, colour=look))
    end = WIDTH - 10
    moves = "".join(
        _animate(side, [LEFT, end, end], [0, 1 - REST, 1], seconds) for side in ("x1", "x2")
    )
    bottom = 34 + LANE * len(lanes)
    drawn.append(f'<line x1="{end}" x2="{end}" y1="26" y2="{bottom}" stroke="black">{moves}</line>')
    return _animation(drawn, bottom + 6, caption)


def of_collective(
    collective: Collective, height: int, place: Callable[[int, int], Place], name: str
) -> Animation:
    """Return the steps of a collective: transfers as dots, and what every rank holds of each part.

    ``place`` says where a rank is for a part. A square is darker the more ranks its sum is of.
    """
    rows = collective.transfers.tolist()
    steps, parts = 1 + max(row[0] for row in rows), collective.parts
    seconds, each = 1.4 * steps / (1 - REST), (1 - REST) / steps
    held = {(rank, p): {rank} for rank in range(collective.workers) for p in range(parts)}
    history = {key: [len(own)] for key, own in held.items()}
    by_step = defaultdict(list)
    for row in rows:
        by_step[row[0]].append(row)
    lines, dots = {}, []
    for step in range(steps):
        before = {key: set(own) for key, own in held.items()}
        for _, source, target, start, stop, reduces in by_step[step]:
            for part in range(start, stop):
                sent = before[source, part]
                held[target, part] = held[target, part] | sent if reduces else set(sent)
                (x, y), (to_x, to_y) = place(source, part), place(target, part)
                ends = f'x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}"'
                lines[frozenset(((x, y), (to_x, to_y)))] = f'<line {ends} stroke="#999"/>'
                times = [0, step * each, (step + 0.8) * each]
                moves = [*times, 1]
                dots.append(
                    f'<circle r="7" fill="{PALETTE[1 + part % 7]}" opacity="0">'
                    + _animate("opacity", [0, 1, 0], times, seconds, "discrete")
                    + _animate("cx", [x, x, to_x, to_x], moves, seconds)
                    + _animate("cy", [y, y, to_y, to_y], moves, seconds)
                    + "</circle>"
                )
        for key, own in held.items():
            history[key].append(len(own))
    nodes = []
    for rank in range(collective.workers):
        for x, y in dict.fromkeys(place(rank, part) for part in range(parts)):
            nodes.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="13" fill="white" stroke="#333"/>')
            nodes.append(_text(x, y, str(rank)))
            here = [part for part in range(parts) if place(rank, part) == (x, y)]
            for number, part in enumerate(here):
                shares = [count / collective.workers for count in history[rank, part]]
                when = [0, *((step + 0.8) * each for step in range(steps))]
                nodes.append(
                    f'<rect x="{x + 17 + 12 * number:.0f}" y="{y - 6:.0f}" width="11" height="11" '
                    f'fill="{PALETTE[1 + part % 7]}" stroke="#333" fill-opacity="{shares[-1]:.2f}">'
                    + _animate("fill-opacity", shares, when, seconds, "discrete")
                    + "</rect>"
                )
    said = f"{name} of {collective.workers} ranks in {steps} steps: a square fills as its sum does"
    return _animation([*lines.values(), *nodes, *dots], height, said)


def _animate(
    name: str, values: Iterable[float], times: Sequence[float], seconds: float, mode: str = "linear"
) -> str:
    """Return how an attribute changes within a round of so many seconds, which is repeated."""
    said = ";".join(f"{value:.4g}" for value in values)
    when = ";".join(f"{min(1.0, time):.4f}" for time in times)
    return (
        f'<animate attributeName="{name}" values="{said}" keyTimes="{when}" calcMode="{mode}" '
        f'dur="{seconds:.3g}s" repeatCount="indefinite"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "middle",
    inside: str = "",
    colour: str = "black",
) -> str:
    place = f'x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}" font-size="12"'
    return f'<text {place} fill="{colour}">{html.escape(text)}{inside}</text>'


def _animation(drawn: Iterable[str], height: float, caption: str) -> Animation:
    hatch = (
        '<defs><pattern id="waits" width="5" height="5" patternUnits="userSpaceOnUse">'
        '<path d="M0 5L5 0" stroke="#D55E00"/></pattern></defs>'
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{html.escape(caption)}" style="width: 100%; max-width: {WIDTH}px; '
        f'background: white; font-family: sans-serif" onclick="{HALT}">'
        f"{hatch}{''.join(drawn)}</svg>"
    )
    return Animation(svg, f"{caption}. It plays by itself; a click halts it.")
