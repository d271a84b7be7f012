"""A trace of torch.profiler, and what can be had from it: a workload, a timeline, a GPU's time."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ddlnb.errors import InputError, require, require_whole
from ddlnb.results.timeline import Span, Timeline
from ddlnb.traces.chrome import TraceEvent
from ddlnb.traces.kineto.events import (
    EVALUATE,
    Arrival,
    Event,
    Passes,
    Recording,
    between,
    outermost,
    recording,
)
from ddlnb.traces.kineto.graph import OperationGraph, operation_graph
from ddlnb.traces.kineto.libraries import bytes_of, element_bytes
from ddlnb.units import counted
from ddlnb.workloads.workload import Gradient, Layer, Workload

FORWARD = "forward"  # the layer of all operations where a trace tells none apart
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


@dataclass(frozen=True)
class Longest:
    """What all operations of a name take in an iteration, and how many there are (means)."""

    name: str
    seconds: float
    calls: float


def busy_seconds(operations: Sequence[Event]) -> list[float]:
    """Return for each operation, in order of start, its seconds beyond the ends of those before."""
    reached = float("-inf")
    found = []
    for one in operations:
        found.append(max(0.0, one.stop - max(one.start, reached)))
        reached = max(reached, one.stop)
    return found


def _launched_by(outer: Mapping[tuple[str, str], Sequence[Event]], call: Event | None) -> str:
    """Return the operation of the host around a launch, "" where there is none."""
    if call is None:
        return ""
    of_thread = outer.get(call.thread, ())
    place = bisect_right(of_thread, call.start, key=lambda one: one.start) - 1
    if place < 0 or call.start > of_thread[place].stop:
        return ""
    return of_thread[place].name.removeprefix(EVALUATE)


def _group(trace: Recording, one: Event, passes: Sequence[Passes]) -> tuple[int | None, str]:
    call = trace.launch(one)
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


def _computation(one: Passes, rank: int, number: int, workload: Workload | None) -> Iterator[Span]:
    gradients = [gradient.name for gradient in workload.gradients] if workload else []
    layers = sorted({(a.began, a.layer) for a in one.arrivals if a.forward is not None})
    named = dict.fromkeys(layer for _, layer in layers)
    starts = [next(at for at, layer in layers if layer == name) for name in named]
    edges = [one.start, *starts[1:], one.turn] if starts else [one.start, one.turn]
    for name, begin, end in zip(named or ["forward"], edges, edges[1:], strict=False):
        yield Span(rank, "forward", name, begin, max(begin, end), number)
    before = one.turn
    for place, arrival in enumerate(one.arrivals):
        name = gradients[place] if place < len(gradients) else f"{arrival.layer} {place}"
        yield Span(rank, "backward", name, before, max(before, arrival.ready), number)
        before = max(before, arrival.ready)
    for begin, end in one.updates:
        yield Span(rank, "update", "optimizer", max(before, begin), max(before, begin, end), number)


def _messages(trace: Recording) -> Sequence[Event]:
    """Return the collectives: kernels if there are any, else what the host says."""
    kernels = [event for event in trace.gpu if event.is_communication]
    if kernels or trace.gpu:
        return kernels
    return [event for event in trace.events if event.is_communication]


def _forward_seconds(one: Passes, known: Workload) -> dict[str, float]:
    """Return the seconds from the start of each layer to that of the next one.

    A layer whose operations no flow leads to belongs to the one before it.
    """
    starts: dict[str, float] = {}
    for gradient, arrival in zip(known.gradients, one.arrivals, strict=True):
        if arrival.forward is not None:
            starts[gradient.layer] = min(arrival.began, starts.get(gradient.layer, math.inf))
    edges = sorted(set(starts.values()))
    stops = dict(zip(edges, [*edges[1:], one.turn], strict=False))  # no flow may lead to any layer
    begins = dict.fromkeys(edges[:1], one.start)  # what comes before it belongs to the first one
    seconds = {name: max(0.0, stops[at] - begins.get(at, at)) for name, at in starts.items()}
    return seconds or {FORWARD: one.turn - one.start}


def _since_before(one: Passes, number: int) -> float:
    before = one.arrivals[number - 1].ready if number else one.turn
    return max(0.0, one.arrivals[number].ready - before)


def _joined(trace: Recording, passes: Sequence[Passes], model: Workload) -> Workload:
    """Return the model's workload, if its gradients are those of the trace, in the trace's order.

    Precision changes in which order a layer's weight and bias arrive. Where the trace has shapes,
    each arrival is the first of the model's gradients of its shape that has not yet arrived.
    """
    arrivals = passes[0].arrivals
    require(
        len(arrivals) == len(model.gradients),
        f"{trace.name!r} has {counted(len(arrivals), 'gradient')} in an iteration and model "
        f"{model.model!r} has {len(model.gradients)}; name the model that was traced",
    )
    waiting = list(model.gradients)
    arrived: list[Gradient] = []
    for number, arrival in enumerate(arrivals):
        fits = (g for g in waiting if None in (arrival.shape, g.shape) or g.shape == arrival.shape)
        gradient = next(fits, None)
        if gradient is None:
            expected = model.gradients[number]
            raise InputError(
                f"gradient {number + 1} of {trace.name!r} has shape {arrival.shape}, that of model "
                f"{model.model!r} is {expected.name!r} of {expected.shape}; name the model that "
                f"was traced"
            )
        waiting.remove(gradient)
        arrived.append(gradient)
    return replace(model, gradients=tuple(arrived))


def _named(trace: Recording, one: Passes, local_batch: int | None) -> Workload:
    """Return the layers and gradients that the trace itself names, without seconds."""
    if local_batch is not None:
        require_whole(batch=local_batch)
    require(
        local_batch is not None,
        f"{trace.name!r} does not say how many samples a batch had; give the batch, or the model "
        f"(--batch or --model)",
    )
    lacking = next((a for a in one.arrivals if a.shape is None or not element_bytes(a.dtype)), None)
    require(
        lacking is None,
        f"{trace.name!r} does not say how large its gradients are; record it with "
        f"record_shapes=True, or give the model that was traced",
    )
    names = [arrival.layer or FORWARD for arrival in one.arrivals]
    gradients = [
        Gradient(
            f"{name}.{names[:number].count(name)}",
            name,
            math.prod(arrival.shape or ()),
            element_bytes(arrival.dtype),
            shape=arrival.shape,
        )
        for number, (name, arrival) in enumerate(zip(names, one.arrivals, strict=True))
    ]
    layers = [Layer(name) for name in _in_forward_order(names, one.arrivals)]
    source = f"structure of trace {trace.name!r}"
    return Workload(trace.name, local_batch or 1, tuple(layers), tuple(gradients), source)


def _in_forward_order(names: Sequence[str], arrivals: Sequence[Arrival]) -> list[str]:
    first = {
        name: min(
            (a.forward for n, a in zip(names, arrivals, strict=True) if n == name and a.forward),
            default=0.0,
        )
        for name in names
    }
    return sorted(first, key=lambda name: first[name])


class KinetoTrace(Recording):
    """A trace of one rank by torch.profiler."""

    def workload(self, model: Workload | None = None, local_batch: int | None = None) -> Workload:
        """Return the workload of the trace; seconds are medians over its iterations.

        ``model`` is the workload that ``ddlnb.trace`` returns: it gives layers and gradients their
        names and their work, and its gradients must have the shapes of the trace's, where the trace
        has them. Without it, layers are named by modules (``with_stack=True``) or operations,
        gradients by their layers, and the trace must have shapes (``record_shapes=True``) and the
        batch be given. Raises InputError where trace and model differ or something that is needed
        was not recorded, and for several forward and backward passes in an iteration.
        """
        passes = self.passes
        require(
            not any(one.accumulates for one in passes),
            f"{self.name!r} has several forward and backward passes in an iteration; record one "
            f"with a single pass of each, and forecast gradients that add up with --accumulate",
        )
        require(
            model is None or any(one.forward is not None for one in passes[0].arrivals),
            f"{self.name!r} does not say which operation of the forward pass a gradient is of (it "
            f"has no fwdbwd event that fits), so that layers have no seconds; leave the model out",
        )
        known = (
            _named(self, passes[0], local_batch) if model is None else _joined(self, passes, model)
        )
        forward_of = [_forward_seconds(one, known) for one in passes]
        forward = {
            layer.name: statistics.median(seconds.get(layer.name, 0.0) for seconds in forward_of)
            for layer in known.layers
        }
        backward = {
            gradient.name: statistics.median(_since_before(one, number) for one in passes)
            for number, gradient in enumerate(known.gradients)
        }
        where = self.device if self.gpu else "the CPU"
        source = (
            f"trace {self.name!r} of torch.profiler on {where}, {counted(len(passes), 'iteration')}"
        )
        return known.with_seconds(forward, backward, source, self.device if self.gpu else "cpu")

    def timeline(self, workload: Workload | None = None) -> Timeline:
        """Return passes, updates and messages, to be drawn beside a simulation.

        Names are those of a workload, if given. Messages are kernels of NCCL, or on the host the
        collectives of its library, with the bytes that the trace has for them. A wait lasts from
        the last gradient to the update while messages are under way.
        """
        passes = self.passes
        spans: list[Span] = []
        messages = _messages(self)
        for number, one in enumerate(passes):
            spans += _computation(one, self.rank, number, workload)
            until = passes[number + 1].start if number + 1 < len(passes) else float("inf")
            own = between(messages, one.start, until)
            spans += [
                Span(
                    self.rank,
                    "message",
                    each.name,
                    each.start,
                    each.stop,
                    number,
                    bytes_of(each.args),
                )
                for each in own
            ]
            ready = max(arrival.ready for arrival in one.arrivals)
            waited = max((each.stop for each in own), default=ready)
            if one.updates:
                waited = min(waited, max(ready, one.updates[0][0]))
            if waited > ready:
                spans.append(Span(self.rank, "wait", "messages", ready, waited, number))
        return Timeline(self.name, f"traced on {self.device if self.gpu else 'CPU'}", tuple(spans))

    @cached_property
    def gpu_times(self) -> tuple[GpuTime, ...]:
        """The GPU's seconds in each pass of each iteration; every operation is in exactly one.

        An operation belongs to the pass in which the host launched it. Outside of all passes are
        what nobody launched in the trace, inputs that are copied before the first layer, and the
        value of the loss. Raises InputError for a trace without GPU or without a backward pass.
        """
        require(bool(self.gpu), f"{self.name!r} was recorded without a GPU")
        passes = self.passes
        groups: dict[tuple[int | None, str], list[tuple[float, float]]] = defaultdict(list)
        for one, busy in zip(self.gpu, busy_seconds(self.gpu), strict=True):
            groups[_group(self, one, passes)].append((one.seconds, busy))
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

    @cached_property
    def longest(self) -> tuple[Longest, ...]:
        """What takes the device longest, by the outermost operations of the host, longest first.

        What a GPU does is of the operation that launched it; communication, and what none launched,
        stands by itself. Seconds of operations that overlap count for each of them.
        """
        outer: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for one in outermost([event for event in self.events if event.category == "cpu_op"]):
            outer[one.thread].append(one)
        found: dict[str, list[float]] = defaultdict(list)
        if self.gpu:
            for one in self.gpu:
                launched = "" if one.is_communication else _launched_by(outer, self.launch(one))
                found[launched or one.name].append(one.seconds)
        else:
            for one in (each for of_thread in outer.values() for each in of_thread):
                found[one.name.removeprefix(EVALUATE)].append(one.seconds)
        each = max(1, len(self.iterations))
        rows = [Longest(name, sum(of) / each, len(of) / each) for name, of in found.items()]
        return tuple(sorted(rows, key=lambda one: -one.seconds))

    @cached_property
    def operations(self) -> OperationGraph:
        """Every operation with what it waits for, proven to have no circle."""
        return operation_graph(self)


def kineto_trace(events: Iterable[TraceEvent], header: dict[str, Any], name: str) -> KinetoTrace:
    """Return the trace of these events as torch.profiler exports them. Raises InputError."""
    return KinetoTrace(**vars(recording(events, header, name)))
