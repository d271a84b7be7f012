"""What the operations of a GPU wait for, and the calls on the host that launch them.

CUPTI does not always say on which stream an event was recorded (since CUDA 13 it says -1). A stream
that waits for such an event is then taken to wait for what every other stream had been given by
then and had done by the time the waiting operation began: all that the event can have been, and
nothing that the trace's own times rule out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.traces.kineto.events import GPU, Event, Recording

STREAM, LAUNCH, WAIT, HOST, SYNCHRONISE = "stream", "launch", "event", "host", "synchronise"
HANDOVER = "handover"  # from one thread of the host to another
ALL_STREAMS = ("cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize")
ONE_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize")
ONE_EVENT = ("cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize")
SYNCHRONISING = (*ALL_STREAMS, *ONE_STREAM, *ONE_EVENT)


@dataclass(frozen=True)
class Edge:
    """``after`` waits for ``before``, of operations by number, and for ``lag`` seconds more."""

    before: int
    after: int
    why: str
    lag: float = 0.0


class Launched:
    """The operations of a stream by when they were launched: correlations grow on the host."""

    def __init__(self, operations: Sequence[Event], places: list[int]):
        """Sort the operations at these places by correlation."""
        self._operations = operations
        self._order = sorted((operations[place].correlation or 0, place) for place in places)

    def last_before(self, correlation: int) -> int | None:
        """Return the place of the last operation that was launched before this call, if any."""
        at = bisect_left(self._order, (correlation, -1))
        return self._order[at - 1][1] if at else None

    def last_done(self, correlation: int, by: float) -> int | None:
        """Return the last operation launched before this call and done by this instant, if any."""
        at = bisect_left(self._order, (correlation, -1))
        while at and self._operations[self._order[at - 1][1]].stop > by:
            at -= 1
        return self._order[at - 1][1] if at else None

    def first_after(self, correlation: int) -> int | None:
        """Return the place of the first operation that was launched after this call, if any."""
        at = bisect_left(self._order, (correlation + 1, -1))
        return self._order[at][1] if at < len(self._order) else None


def stream_of(event: Event) -> str:
    """Return the device and the stream of an operation."""
    return f"{event.args.get('device', '')}:{event.args.get('stream', event.thread[1])}"


def host_edges(operations: Sequence[Event], calls: Sequence[int]) -> list[Edge]:
    """Return what each call waits for: the one before it on its thread, or on any thread.

    A thread that made no call while another one did was waiting for it, as the main thread waits
    for autograd's: what passed since its own last call is then no work of its own.
    """
    edges: list[Edge] = []
    latest: dict[tuple[str, str], int] = {}
    for place in calls:
        one = operations[place]
        done = [p for p in latest.values() if operations[p].stop <= one.start]
        own = latest.get(one.thread)
        last = max(done, key=lambda p: operations[p].stop, default=own)
        if own is not None:
            worked = one.start - operations[own].stop if last == own else 0.0
            edges.append(Edge(own, place, HOST, worked))
        if last is not None and last != own:
            edges.append(Edge(last, place, HANDOVER, one.start - operations[last].stop))
        latest[one.thread] = place
    return edges


def launch_edges(
    trace: Recording, operations: Sequence[Event], before_on_stream: dict[int, int]
) -> list[Edge]:
    """Return the edges from launches; the lag is that of operations whose stream was idle."""
    number = {id(one): place for place, one in enumerate(operations)}
    pairs = []
    for place, one in enumerate(operations):
        call = trace.launch_of.get(one.correlation) if one.correlation is not None else None
        if one.category in GPU and call is not None:
            before = before_on_stream.get(place)
            idle = before is None or operations[before].stop < call.start
            pairs.append((number[id(call)], place, one.start - call.stop, idle))
    usual = float(np.median([lag for *_, lag, idle in pairs if idle] or [0.0]))
    return [
        Edge(call, place, LAUNCH, lag if idle else min(lag, usual))
        for call, place, lag, idle in pairs
    ]


def wait_edges(
    trace: Recording, operations: Sequence[Event], streams: dict[str, Launched]
) -> list[Edge]:
    """Return the edges of events that streams were told to wait for, where they are recorded."""
    edges = []
    for wait in trace.events:
        if wait.category != "cuda_sync" or "wait_on_stream" not in wait.args:
            continue
        device = wait.args.get("device", "")
        own, waited = (f"{device}:{wait.args.get(key)}" for key in ("stream", "wait_on_stream"))
        recorded = int(wait.args.get("wait_on_cuda_event_record_corr_id", -1))
        told = wait.correlation if wait.correlation is not None else recorded
        after = streams[own].first_after(told) if own in streams else None
        if after is None:
            continue
        start = operations[after].start
        if recorded >= 0:
            known = streams[waited].last_before(recorded) if waited in streams else None
            found = {known} if known is None or operations[known].start <= start else set()
        else:
            others = [each for name, each in streams.items() if name != own]
            found = {each.last_done(told, start) for each in others}
        edges += [Edge(before, after, WAIT) for before in found if before is not None]
    return list(dict.fromkeys(edges))


def synchronise_edges(
    trace: Recording, operations: Sequence[Event], streams: dict[str, Launched]
) -> list[Edge]:
    """Return the edges from what a synchronising call waits for: the last launched of streams.

    A call that waits for an event waits for what each stream had done when it returned, because
    the trace does not say which event it was.
    """
    which = {
        event.correlation: stream_of(event)
        for event in trace.events
        if event.category == "cuda_sync"
    }
    edges = []
    for place, call in enumerate(operations):
        if call.name not in SYNCHRONISING:
            continue
        waited = list(streams.values())
        if call.name in ONE_STREAM:
            waited = [streams[name] for name in {which.get(call.correlation)} if name in streams]
        for stream in waited:
            launched = call.correlation or 0
            last = stream.last_before(launched)
            if call.name in ONE_EVENT:
                last = stream.last_done(launched, call.stop)
            if last is not None and operations[last].stop <= call.stop:
                done = max(operations[last].stop, call.start)
                edges.append(Edge(last, place, SYNCHRONISE, call.stop - done))
    return edges
