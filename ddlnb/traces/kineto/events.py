"""The events of a Kineto trace that we use, in seconds, and the passes of every iteration.

Autograd runs ``AccumulateGrad`` once for each parameter, right after the operation whose backward
made the gradient; a flow leads from that operation back to the forward pass, where a module was
running. On a GPU the host is ahead: what it says at an instant has happened once everything that it
had launched until then is done.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from sys import intern
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from ddlnb.errors import InputError, require
from ddlnb.reading import json_of
from ddlnb.traces.chrome import CUT, TraceEvent, said
from ddlnb.traces.kineto.libraries import library_of
from ddlnb.units import US, counted, show_seconds

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")
FLOW = "fwdbwd"  # from an operation of the forward pass to that of the backward pass
KEPT = (*GPU, *HOST_CALLS, "cuda_sync", "cpu_op", "user_annotation", "python_function", FLOW)
MODULE = "nn.Module: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
EVALUATE = "autograd::engine::evaluate_function: "
NOTHING = msgspec.Raw(b"{}")
COLLECTIVES = ("nccl:", "gloo:", "mpi:", "ucc:")  # what c10d calls its collectives on the host


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that took time on a thread of the host, or on a stream of the GPU.

    ``correlation`` is the number that a launch and what it launched have in common.
    ``is_communication`` says whether this is a kernel or a host's collective of a library that
    communicates.
    """

    name: str
    category: str
    thread: tuple[str, str]
    start: float
    seconds: float
    correlation: int | None
    is_communication: bool
    packed: msgspec.Raw

    @property
    def stop(self) -> float:
        """When it ended, in seconds."""
        return self.start + self.seconds

    @property
    def args(self) -> dict[str, Any]:
        """What the trace says of it beside, as far as anything here asks for it (`_event`)."""
        return said(self.packed)


@dataclass(frozen=True)
class Recording:
    """A trace of one rank: its events in order of start, from 0, and its flows.

    ``flows`` are pairs of instants on the host: when an operation of the forward pass ran, and when
    the backward pass came to it. ``rank`` is that of the process group, 0 if there was none, and
    ``ranks`` how many it had. ``began`` is when the first event did, by the clock of the host, and
    ``groups`` are the ranks of the process groups by name, where the trace says so.
    """

    name: str
    events: tuple[Event, ...]
    flows: tuple[tuple[float, float], ...]
    rank: int
    device: str
    ranks: int = 1
    began: float = 0.0
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def gpu(self) -> tuple[Event, ...]:
        """Kernels, copies and fills, in order of start; empty for a trace without GPU."""
        return tuple(event for event in self.events if event.category in GPU)

    @cached_property
    def calls(self) -> tuple[Event, ...]:
        """Calls of the GPU's runtime on the host, in order of start."""
        return tuple(event for event in self.events if event.category in HOST_CALLS)

    @cached_property
    def _launches(self) -> dict[int | None, Event]:
        return {e.correlation: e for e in self.calls if e.correlation is not None}

    def launch(self, one: Event) -> Event | None:
        """Return the call that launched an operation, None where the trace has none."""
        return self._launches.get(one.correlation)

    @cached_property
    def extent(self) -> tuple[float, float]:
        """When the first operation or call began, and when the last one ended."""
        timed = [e for e in self.events if e.category in (*GPU, *HOST_CALLS, "cpu_op")]
        return min(event.start for event in timed), max(event.stop for event in timed)

    @property
    def seconds(self) -> float:
        """From the start of the first operation to the end of the last one."""
        start, stop = self.extent
        return stop - start

    @cached_property
    def passes(self) -> tuple[Passes, ...]:
        """Those of `passes_of`."""
        return passes_of(self)

    @cached_property
    def iterations(self) -> tuple[tuple[float, float], ...]:
        """Start and stop of every iteration on the host.

        Taken from ``profiler.step()``, else from steps of the optimizer, else all is one iteration.
        Several optimizers that step after one backward pass end one iteration.
        """
        notes = [event for event in self.events if event.category == "user_annotation"]
        steps = [event for event in notes if event.name.startswith("ProfilerStep#")]
        if steps:
            return tuple((step.start, step.stop) for step in steps)
        ends = [event.stop for event in notes if event.name.startswith("Optimizer.step#")]
        came = [event.start for event in self.events if event.name == ACCUMULATE]
        if came:
            found = [bisect_left(came, end) for end in ends]
            ends = [
                end for end, (own, after) in zip(ends, pairwise(found), strict=False) if after > own
            ]
        else:
            ends = ends[:-1]
        return tuple(pairwise([0.0, *ends, math.inf]))

    def __repr__(self) -> str:
        count = len(self.iterations)
        where = (
            f"{counted(len(self.gpu), 'operation')} on {self.device}" if self.gpu else "CPU only"
        )
        return (
            f"{type(self).__name__}({self.name!r}, {counted(len(self.events), 'event')}, "
            f"{where}, "
            f"{counted(count, 'iteration')}, {show_seconds(self.seconds)})"
        )


def recording(
    events: Iterable[TraceEvent],
    header: dict[str, Any],
    name: str,
    categories: Collection[str] = KEPT,
) -> Recording:
    """Return the trace of these events as torch.profiler exports them. Raises InputError.

    ``header`` is looked at once the events are read: what follows them in a file may add to it.
    """
    kept: list[Event] = []
    forward: dict[int, list[float]] = defaultdict(list)
    backward: dict[int, float] = {}
    shared: dict[Any, Any] = {}
    for event in events:
        category = event.cat
        if not isinstance(category, str) or category not in categories:
            continue
        if category == FLOW:
            _flow(event, forward, backward)
        elif event.ph == "X" and (
            category != "python_function" or str(event.name).startswith(MODULE)
        ):
            kept.append(_event(event, *_seconds(event, name), shared))
    name = f"{name}, cut after {header[CUT]:,} events" if CUT in header else name
    require(
        any(event.category in (*GPU, "cpu_op") for event in kept),
        f"{name!r} holds no operation; export it after the profiler's block has ended",
    )
    kept.sort(key=lambda one: (one.start, -one.seconds))
    zero = kept[0].start
    for one in kept:
        force_setattr(one, "start", one.start - zero)
    flows = [
        (start * US - zero, backward[number] * US - zero)
        for number, starts in forward.items()
        if number in backward
        for start in starts
    ]
    properties = header.get("deviceProperties") or [{}]
    group = header.get("distributedInfo") or {}
    return Recording(
        name,
        tuple(kept),
        tuple(sorted(flows)),
        int(group.get("rank", 0)),
        str(properties[0].get("name", "a GPU")),
        int(group.get("world_size", 1)),
        zero + float(header.get("baseTimeNanoseconds", 0)) / 1e9,
        _groups(group.get("pg_config")),
    )


def _groups(listed: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of process groups by name, as torch.profiler writes them in its header."""
    listed = json_of(listed, "pg_config") if isinstance(listed, str) else listed
    return {
        str(one["pg_name"]): tuple(int(rank) for rank in one["ranks"])
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and "pg_name" in one and isinstance(one.get("ranks"), list)
    }


def _seconds(event: TraceEvent, name: str) -> tuple[float, float]:
    """Return when an event began and how long it took. Raises InputError."""
    try:
        start, seconds = float(event.ts) * US, float(event.dur or 0) * US
        if math.isfinite(start) and 0 <= seconds < math.inf:
            return start, seconds
    except (TypeError, ValueError):
        pass
    raise InputError(
        f"{name!r}: event {str(event.name)!r} has ts {event.ts!r} and dur {event.dur!r}, which "
        f"must be numbers of microseconds"
    )


class _Stream(msgspec.Struct):
    device: Any = msgspec.UNSET
    stream: Any = msgspec.UNSET


class _Said(_Stream):
    correlation: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")


_SAID = msgspec.json.Decoder(_Said | None)


def _event(event: TraceEvent, start: float, seconds: float, shared: dict[Any, Any]) -> Event:
    """Return the event; what many have in common is ``shared``, and what none asks for is gone."""
    name, category = intern(str(event.name)), intern(event.cat)
    about = (_SAID.decode(event.args) if category != "cpu_op" else None) or _Said()
    number = int(about.correlation) if about.correlation is not None else None
    if category in GPU:
        communicates = bool(library_of(name)) or about.collective is not None
    else:
        communicates = name.startswith(COLLECTIVES)
    beside = NOTHING
    if communicates or name == ACCUMULATE or category == "cuda_sync":
        beside = event.args.copy()
    elif category in GPU:
        where = msgspec.json.encode(_Stream(about.device, about.stream))
        beside = shared.setdefault(where, msgspec.Raw(where))
    thread = (str(event.pid), str(event.tid))
    thread = shared.setdefault(thread, thread)
    return Event(name, category, thread, start, seconds, number, communicates, beside)


def _flow(event: TraceEvent, forward: dict[int, list[float]], backward: dict[int, float]) -> None:
    if not isinstance(event.id, int) or not isinstance(event.ts, int | float):
        return
    if event.ph == "s":
        forward[event.id].append(float(event.ts))
    elif event.ph == "f":
        backward[event.id] = float(event.ts)


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
    """One iteration, in seconds of the device: forward from ``start``, backward from ``turn``.

    ``accumulates`` is whether a gradient belongs to a forward pass that began after the first
    gradients had come.
    """

    start: float
    turn: float
    arrivals: tuple[Arrival, ...]
    updates: tuple[tuple[float, float], ...]
    host: OnHost
    accumulates: bool = False


class DeviceClock:
    """When what the host does at an instant begins and is done where it is computed."""

    def __init__(self, trace: Recording):
        """Read when each computation of the GPU was launched; without a GPU the host computes."""
        launched = sorted(
            (call.start, one.start, one.stop)
            for one in trace.gpu
            if (call := trace.launch(one)) is not None and not one.is_communication
        )
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
    modules = Around([event for event in trace.events if event.name.startswith(MODULE)])
    steps = [event for event in trace.events if _is_step(event)]
    found = []
    for start, stop in trace.iterations:
        within = between(ops, start, stop)
        one = _passes(within, modules, trace, clock, between(steps, start, stop))
        if one is not None:
            found.append(one)
    require(
        bool(found),
        f"{trace.name!r} has no backward pass: no gradient arrives (AccumulateGrad) on the "
        f"host; record a whole iteration with ProfilerActivity.CPU among the activities",
    )
    most = max(len(one.arrivals) for one in found)
    return tuple(one for one in found if len(one.arrivals) == most)


def _is_step(event: Event) -> bool:
    return event.category == "user_annotation" and event.name.startswith("Optimizer.st")


def _passes(
    ops: Sequence[Event],
    modules: Around,
    trace: Recording,
    clock: DeviceClock,
    steps: Sequence[Event],
) -> Passes | None:
    evaluated = [event for event in ops if event.name.startswith(EVALUATE)]
    if not any(event.name == ACCUMULATE for event in ops):
        return None
    turn = evaluated[0].start if evaluated else ops[0].start
    end = max((one.stop for one in evaluated), default=turn)
    began, last = bisect_left(trace.flows, (ops[0].start,)), bisect_right(trace.flows, (end, end))
    forward_at = {at: start for start, at in trace.flows[began:last] if start <= at}
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
            arrivals.append(
                Arrival(
                    clock.done(event.stop),
                    _layer(source, modules, outer),
                    source,
                    clock.begins(source or 0.0),
                    _shape(event),
                    _dtype(event),
                )
            )
    first = min((a.forward for a in arrivals if a.forward is not None), default=ops[0].start)
    end = max(event.stop for event in ops if event.name == ACCUMULATE)
    host = OnHost(first, turn, end, tuple((step.start, step.stop) for step in steps))
    updates = tuple((clock.begins(start), clock.done(stop)) for start, stop in host.steps)
    came = next(event.stop for event in ops if event.name == ACCUMULATE)
    later = {a.forward for a in arrivals if a.forward is not None and a.forward > came}
    # Within a node of the backward pass a layer is computed again, which is no pass of its own.
    nodes = Around(evaluated)
    again = {at for at in later if nodes.innermost(at) is not None}
    about = (clock.begins(first), clock.begins(turn), tuple(arrivals), updates, host)
    return Passes(*about, accumulates=later != again)


def between(events: Sequence[Event], start: float, stop: float) -> Sequence[Event]:
    """Return those of these events, in order of start, that began from one instant to another."""
    first, end = (bisect_left(events, at, key=lambda one: one.start) for at in (start, stop))
    return events[first:end]


class Around:
    """Which of some events, in order of start, an instant falls into."""

    def __init__(self, events: Sequence[Event]):
        """Find the event around the start of each one: the last before it that had not ended."""
        self._events = events
        self._outer: list[int] = []
        open_ones: list[int] = [-1]
        for place, one in enumerate(events):
            while open_ones[-1] >= 0 and events[open_ones[-1]].stop < one.start:
                open_ones.pop()
            self._outer.append(open_ones[-1])
            open_ones.append(place)

    def innermost(self, at: float) -> Event | None:
        """Return the one that began last of those around an instant, None where there is none."""
        place = bisect_right(self._events, at, key=lambda one: one.start) - 1
        while place >= 0 and self._events[place].stop < at:
            place = self._outer[place]
        return self._events[place] if place >= 0 else None


def outermost(ops: Sequence[Event]) -> list[Event]:
    """Return those of these events, in order of start, that no other one of their thread holds."""
    found = []
    until: dict[tuple[str, str], float] = {}
    for event in ops:
        if event.start >= until.get(event.thread, event.start):
            until[event.thread] = event.stop
            found.append(event)
    return found


def _layer(at: float | None, modules: Around, outer: list[Event]) -> str:
    """Return the innermost module that ran at this instant, else the operation, else nothing.

    The operation is the outermost one: a linear layer transposes its weight, and with autocast
    converts it, inside of ``aten::linear``.
    """
    if at is None:
        return ""
    around = modules.innermost(at)
    if around is not None:
        return around.name.removeprefix(MODULE)
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
