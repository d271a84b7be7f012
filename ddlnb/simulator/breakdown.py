"""Where an iteration's time goes: computation, and what each group of effects adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ddlnb.clusters.effects import Group, without
from ddlnb.simulator.events import spans
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell, steady_seconds

# In the reverse of the order in which a message meets them.
REMOVED: tuple[Group, ...] = ("contention", "latency", "bandwidth")
ROUNDING = 1e-9  # of an iteration
SETTLED = 4  # iterations after which messages go in their order


@dataclass(frozen=True)
class Breakdown:
    """The seconds of a steady iteration in parts that add up to ``iteration_seconds``.

    ``contention`` is what computation and communication take from one another, ``latency`` what
    latencies and software cost, ``bandwidth`` what the bytes cost, ``computation`` the rest. A part
    is negative where an iteration takes longer without the effects. That can only be because
    messages go in another order then, and ``is_reordered`` says so.
    """

    iteration_seconds: float
    computation: float
    contention: float
    latency: float
    bandwidth: float
    is_reordered: bool = False


def breakdown(cells: Sequence[Cell]) -> list[Breakdown]:
    """Return the breakdown of every cell: effects are removed group by group, plans stay.

    First contention goes, then latencies, then the cost of bytes; what remains is computation. The
    order matters where effects hide one another: it is the reverse of the order in which a message
    meets them.
    """
    steps = [without(*REMOVED[:count]) for count in range(len(REMOVED) + 1)]
    found = []
    for cell in cells:
        planned = replace(cell, planned_on=cell.planned_on or cell.cluster)
        cases = [replace(planned, cluster=cell.cluster.with_effects(**step)) for step in steps]
        seconds = [one.iteration_seconds for one in steady_seconds(cases)]
        parts = [before - after for before, after in pairwise(seconds)]
        is_reordered = any(
            part < -ROUNDING * seconds[0] and _order(before) != _order(after)
            for part, (before, after) in zip(parts, pairwise(cases), strict=True)
        )
        contention, latency, bytes_ = parts
        found.append(Breakdown(seconds[0], seconds[-1], contention, latency, bytes_, is_reordered))
    return found


def _order(cell: Cell) -> list[list[str]]:
    """Return the messages of an iteration in the order in which they start, and that of ends."""
    listed = [
        span
        for span in spans(lower(cell.workload, cell.cluster, cell.plan), SETTLED)
        if span.kind == "message" and span.iteration == SETTLED - 1
    ]
    return [
        [span.name for span in sorted(listed, key=lambda one: one.start_seconds)],
        [span.name for span in sorted(listed, key=lambda one: one.stop_seconds)],
    ]
