"""A Kineto trace as a timeline, to be drawn beside a simulated one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ddlnb.results.timeline import Span, Timeline
from ddlnb.traces.kineto.events import Event, Recording
from ddlnb.traces.kineto.passes import Passes, passes_of
from ddlnb.workloads.workload import Workload

BYTES_OF = {"Float": 4, "Double": 8, "Half": 2, "Bfloat16": 2, "Long": 8, "Int": 4, "Byte": 1}


def timeline_of(trace: Recording, workload: Workload | None = None) -> Timeline:
    """Return the passes, updates and messages of a trace; names are those of a workload, if given.

    Messages are kernels of NCCL, or on the host the collectives of its library, with the bytes that
    the trace has for them. A wait lasts from the last gradient to the update while messages are
    under way.
    """
    passes = passes_of(trace)
    spans: list[Span] = []
    messages = _messages(trace)
    for number, one in enumerate(passes):
        spans += _computation(one, trace.rank, number, workload)
        until = passes[number + 1].start if number + 1 < len(passes) else float("inf")
        own = [each for each in messages if one.start <= each.start < until]
        spans += [
            Span(trace.rank, "message", each.name, each.start, each.stop, number, _bytes(each))
            for each in own
        ]
        ready = max(arrival.ready for arrival in one.arrivals)
        waited = max((each.stop for each in own), default=ready)
        if one.updates:
            waited = min(waited, max(ready, one.updates[0][0]))
        if waited > ready:
            spans.append(Span(trace.rank, "wait", "messages", ready, waited, number))
    return Timeline(trace.name, f"traced on {trace.device if trace.gpu else 'CPU'}", tuple(spans))


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


def _bytes(event: Event) -> int:
    """Return the bytes of a collective, as NCCL's kernels and record_shapes=True have them."""
    if "In msg nelems" in event.args:
        elements, kind = int(event.args["In msg nelems"]), event.args.get("dtype", "")
    else:
        shapes, kinds = event.args.get("Input Dims") or [[0]], event.args.get("Input type") or [""]
        elements, kind = math.prod(shapes[0] or [0]), kinds[0]
    return elements * BYTES_OF.get(str(kind).removeprefix("c10::").capitalize(), 0)
