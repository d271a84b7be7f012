"""Where a GPU's time goes: which pass launched each of its operations, and how long it was busy."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ddlnb.errors import require
from ddlnb.traces.kineto.events import Event, Recording
from ddlnb.traces.kineto.passes import Passes, passes_of

OUTSIDE = "outside"
PASSES = ("forward", "backward", "update", OUTSIDE)


@dataclass(frozen=True)
class GpuTime:
    """What a GPU did in one pass of one iteration, or outside of all passes (iteration None).

    ``work_seconds`` adds up the operations. ``busy_seconds`` counts an instant once, however many
    operations ran in it: for the one that began first.
    """

    iteration: int | None
    kind: str
    operations: int
    work_seconds: float
    busy_seconds: float


def gpu_times(trace: Recording) -> tuple[GpuTime, ...]:
    """Return the GPU's seconds in each pass of each iteration; every operation is in exactly one.

    An operation belongs to the pass in which the host launched it. Outside of all passes are what
    nobody launched in the trace, inputs that are copied before the first layer, and the value of
    the loss. Raises InputError for a trace without GPU or without a backward pass.
    """
    require(bool(trace.gpu), f"{trace.name!r} was recorded without a GPU")
    passes = passes_of(trace)
    groups: dict[tuple[int | None, str], list[tuple[float, float]]] = defaultdict(list)
    for one, busy in zip(trace.gpu, busy_seconds(trace.gpu), strict=True):
        groups[_group(trace, one, passes)].append((one.seconds, busy))
    keys = [(number, kind) for number in range(len(passes)) for kind in PASSES[:-1]]
    return tuple(
        GpuTime(
            number,
            kind,
            len(groups[number, kind]),
            sum(work for work, _ in groups[number, kind]),
            sum(busy for _, busy in groups[number, kind]),
        )
        for number, kind in [*keys, (None, OUTSIDE)]
    )


def busy_seconds(operations: Sequence[Event]) -> list[float]:
    """Return for each operation, in order of start, its seconds beyond the ends of those before."""
    reached = float("-inf")
    found = []
    for one in operations:
        found.append(max(0.0, one.stop - max(one.start, reached)))
        reached = max(reached, one.stop)
    return found


def _group(trace: Recording, one: Event, passes: Sequence[Passes]) -> tuple[int | None, str]:
    call = trace.launch_of.get(one.correlation) if one.correlation is not None else None
    number = bisect_right(passes, call.start, key=lambda each: each.host.start) - 1 if call else -1
    if call is None or number < 0:
        return None, OUTSIDE
    host = passes[number].host
    if call.start < host.turn:
        return number, "forward"
    if call.start <= host.end:
        return number, "backward"
    if any(start <= call.start <= stop for start, stop in host.steps):
        return number, "update"
    return None, OUTSIDE
