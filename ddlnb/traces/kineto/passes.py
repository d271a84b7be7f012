"""The passes of every iteration in a Kineto trace: when layers began, when gradients were ready.

Autograd runs ``AccumulateGrad`` once for each parameter, right after the operation whose backward
made the gradient; a flow leads from that operation back to the forward pass, where a module was
running. On a GPU the host is ahead: what it says at an instant has happened once everything that it
had launched until then is done.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ddlnb.errors import InputError, require
from ddlnb.traces.kineto.events import ACCUMULATE, EVALUATE, MODULE, Event, Recording


@dataclass(frozen=True)
class Arrival:
    """A gradient: when it was ready, and in which layer its forward operation ran.

    ``forward`` is when the host came to that operation, None where no flow leads back to it, and
    ``began`` when the device did. ``shape`` and ``dtype`` are there with ``record_shapes=True``.
    """

    ready: float
    layer: str
    forward: float | None
    began: float
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class OnHost:
    """When the host came to the passes of an iteration: forward, ``turn``, end of the backward.

    ``steps`` are those of the optimizer, from start to stop.
    """

    start: float
    turn: float
    end: float
    steps: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Passes:
    """One iteration, in seconds of the device: forward from ``start``, backward from ``turn``."""

    start: float
    turn: float
    arrivals: tuple[Arrival, ...]
    updates: tuple[tuple[float, float], ...]
    host: OnHost


class DeviceClock:
    """When what the host does at an instant begins and is done where it is computed."""

    def __init__(self, trace: Recording):
        """Read when each computation of the GPU was launched; without a GPU the host computes."""
        launched = []
        for one in trace.gpu:
            call = trace.launch_of.get(one.correlation) if one.correlation is not None else None
            if call is not None and not one.is_communication:
                launched.append((call.start, one.start, one.stop))
        launched.sort()
        self._calls = [call for call, _, _ in launched]
        self._starts = [start for _, start, _ in launched]
        self._done = list(accumulate((stop for _, _, stop in launched), max))

    def begins(self, at: float) -> float:
        """Return when the first operation that is launched from this instant on begins."""
        place = bisect_left(self._calls, at)
        return self._starts[place] if place < len(self._calls) else at

    def done(self, at: float) -> float:
        """Return when everything that was launched until this instant is done."""
        place = bisect_right(self._calls, at)
        return self._done[place - 1] if place else at


def passes_of(trace: Recording) -> tuple[Passes, ...]:
    """Return the passes of every complete iteration; those with fewer gradients are left out.

    Raises InputError for a trace without a backward pass.
    """
    clock = DeviceClock(trace)
    ops = [event for event in trace.events if event.category == "cpu_op"]
    modules = [event for event in trace.events if event.name.startswith(MODULE)]
    notes = [event for event in trace.events if event.category == "user_annotation"]
    found = []
    for start, stop in trace.iterations:
        within = [event for event in ops if start <= event.start < stop]
        steps = [e for e in notes if start <= e.start < stop and e.name.startswith("Optimizer.st")]
        one = _passes(within, modules, trace, clock, steps)
        if one is not None:
            found.append(one)
    if not found:
        raise InputError(
            f"{trace.name!r} has no backward pass: no gradient arrives (AccumulateGrad) on the "
            f"host; record a whole iteration with ProfilerActivity.CPU among the activities"
        )
    most = max(len(one.arrivals) for one in found)
    return tuple(one for one in found if len(one.arrivals) == most)


def _passes(
    ops: list[Event],
    modules: list[Event],
    trace: Recording,
    clock: DeviceClock,
    steps: list[Event],
) -> Passes | None:
    evaluated = [event for event in ops if event.name.startswith(EVALUATE)]
    if not any(event.name == ACCUMULATE for event in ops):
        return None
    turn = evaluated[0].start if evaluated else ops[0].start
    forward_at = {at: start for start, at in trace.flows if ops[0].start <= start <= at}
    flows = sorted(forward_at)
    outer = outermost(ops)
    arrivals = []
    source: float | None = None
    for event in ops:
        if event.name.startswith(EVALUATE) and ACCUMULATE not in event.name:
            place = bisect_left(flows, event.start)
            is_its = place < len(flows) and flows[place] <= event.stop
            source = forward_at[flows[place]] if is_its else source
        elif event.name == ACCUMULATE:
            layer = _layer(source, modules, outer)
            ready = clock.done(event.stop) if trace.gpu else event.stop
            began = source or 0.0
            began = clock.begins(began) if trace.gpu else began
            arrivals.append(Arrival(ready, layer, source, began, _shape(event), _dtype(event)))
    first = min((a.forward for a in arrivals if a.forward is not None), default=ops[0].start)
    end = max(event.stop for event in ops if event.name == ACCUMULATE)
    host = OnHost(first, turn, end, tuple((step.start, step.stop) for step in steps))
    if not trace.gpu:
        return Passes(first, turn, tuple(arrivals), host.steps, host)
    updates = tuple((clock.begins(start), clock.done(stop)) for start, stop in host.steps)
    return Passes(clock.begins(first), clock.begins(turn), tuple(arrivals), updates, host)


def outermost(ops: Sequence[Event]) -> list[Event]:
    """Return those of these events, in order of start, that no other one of their thread holds."""
    found = []
    until: dict[tuple[str, str], float] = {}
    for event in ops:
        if event.start >= until.get(event.thread, event.start):
            until[event.thread] = event.stop
            found.append(event)
    return found


def _layer(at: float | None, modules: list[Event], outer: list[Event]) -> str:
    """Return the innermost module that ran at this instant, else the operation, else nothing.

    The operation is the outermost one: a linear layer transposes its weight, and with autocast
    converts it, inside of ``aten::linear``.
    """
    if at is None:
        return ""
    around = [one for one in modules if one.start <= at <= one.stop]
    if around:
        return around[-1].name.removeprefix(MODULE)
    place = bisect_right(outer, at, key=lambda one: one.start) - 1
    return f"{outer[max(place, 0)].name} {place}"


def _shape(event: Event) -> tuple[int, ...] | None:
    shapes = event.args.get("Input Dims")
    if not isinstance(shapes, list) or not shapes or not isinstance(shapes[0], list):
        return None
    require(
        all(isinstance(size, int) and size >= 1 for size in shapes[0]),
        f"a gradient has the impossible shape {shapes[0]}",
    )
    return tuple(shapes[0])


def _dtype(event: Event) -> str:
    kinds = event.args.get("Input type")
    return str(kinds[0]) if isinstance(kinds, list) and kinds else ""
