"""Where an iteration's time goes: computation, and what each kind of cost adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddlnb.clusters.effects import UNITS, UNLIMITED
from ddlnb.simulator.simulate import Cell, steady_seconds


@dataclass(frozen=True)
class Breakdown:
    """The seconds of a steady iteration in parts that add up to ``iteration_seconds``.

    ``contention`` is what computation and communication take from one another, ``latency`` what
    latencies and software cost, ``bandwidth`` what the bytes cost, ``computation`` the rest.
    """

    iteration_seconds: float
    computation: float
    contention: float
    latency: float
    bandwidth: float


LATENCIES = ("inside", "between", "operation", "rank", "priority", "server")
BANDWIDTHS = tuple(
    name for name in UNITS if name.endswith("_bandwidth") and name != "update_bandwidth"
)
NO_CONTENTION = {name: 1.0 for name in UNITS if name.endswith("_share")}
NO_LATENCY = {f"{name}_latency": 0.0 for name in LATENCIES} | {"message_compute": 0.0}
NO_BYTES = dict.fromkeys(BANDWIDTHS, UNLIMITED)


def breakdown(cells: Sequence[Cell]) -> list[Breakdown]:
    """Return the breakdown of every cell: effects are removed group by group, plans stay.

    First contention goes, then latencies, then the cost of bytes; what remains is computation. The
    order matters where effects hide one another: it is the reverse of the order in which a message
    meets them.
    """
    steps: list[dict[str, float]] = [{}, NO_CONTENTION, NO_CONTENTION | NO_LATENCY]
    steps.append(steps[-1] | NO_BYTES)
    cases = []
    for cell in cells:
        planned = replace(cell, planned_on=cell.planned_on or cell.cluster)
        cases += [replace(planned, cluster=cell.cluster.with_effects(**step)) for step in steps]
    seconds = [found.iteration_seconds for found in steady_seconds(cases)]
    found = []
    for start in range(0, len(seconds), len(steps)):
        full, calm, quick, free = seconds[start : start + len(steps)]
        found.append(Breakdown(full, free, full - calm, calm - quick, quick - free))
    return found
