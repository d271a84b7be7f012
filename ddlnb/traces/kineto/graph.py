"""Every operation of a trace with what it waits for: a graph without circles.

A GPU's operation waits for the one before it on its stream, for the call that launched it, and for
the events that its stream was told to wait for. A call on the host waits for the call before it,
and for what the host itself computes in between; a call that synchronises also waits for the
streams. Without a GPU, operations are those of the host that no other one contains.

CUPTI does not always say on which stream an event was recorded (since CUDA 13 it says -1). A stream
that waits for such an event is then taken to wait for what every other stream had been given by
then and had done by the time the waiting operation began: all that the event can have been, and
nothing that the trace's own times rule out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.traces.kineto.events import GPU, Event, Recording, outermost
from ddlnb.traces.kineto.libraries import count_in
from ddlnb.traces.longest_path import Cyclic, Dependencies, EarliestTimes, Seconds, critical_path

if TYPE_CHECKING:
    import networkx as nx


STREAM, LAUNCH, WAIT, HOST, SYNCHRONISE = "stream", "launch", "event", "host", "synchronise"
HANDOVER = "handover"  # from one thread of the host to another
ALL_STREAMS = ("cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize")
ONE_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize")
ONE_EVENT = ("cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize")
SYNCHRONISING = (*ALL_STREAMS, *ONE_STREAM, *ONE_EVENT)


@dataclass(frozen=True, slots=True)
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

    def last_before(self, correlation: int, done_by: float = math.inf) -> int | None:
        """Return the place of the last operation that was launched before this call, if any.

        Of those that were done by an instant, if one is given.
        """
        at = bisect_left(self._order, (correlation, -1))
        while at and self._operations[self._order[at - 1][1]].stop > done_by:
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
        call = trace.launch(one)
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
        recorded = count_in(wait.args, "wait_on_cuda_event_record_corr_id", -1)
        told = wait.correlation if wait.correlation is not None else recorded
        after = streams[own].first_after(told) if own in streams else None
        if after is None:
            continue
        start = operations[after].start
        if recorded < 0:
            others = [each for name, each in streams.items() if name != own]
            ends = [each.last_before(told, start) for each in others]
        else:
            ends = [streams[waited].last_before(recorded)] if waited in streams else []
        known = {before for before in ends if before is not None}
        edges += [Edge(one, after, WAIT) for one in known if operations[one].stop <= start]
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
        done_by = call.stop if call.name in ONE_EVENT else math.inf
        for stream in waited:
            last = stream.last_before(call.correlation or 0, done_by)
            if last is not None and operations[last].stop <= call.stop:
                done = max(operations[last].stop, call.start)
                edges.append(Edge(last, place, SYNCHRONISE, call.stop - done))
    return edges


@dataclass(frozen=True)
class OperationGraph:
    """Operations of a trace, and the dependencies between them.

    The trace begins at ``start``: until its first call, the host is at work.
    """

    operations: tuple[Event, ...]
    edges: tuple[Edge, ...]
    start: float = 0.0

    @cached_property
    def graph(self) -> nx.MultiDiGraph:
        """The same for networkx: nodes by number with name, where and seconds; edges with why."""
        import networkx as nx

        graph = nx.MultiDiGraph()
        for number, one in enumerate(self.operations):
            graph.add_node(number, name=one.name, where=one.thread, seconds=one.seconds)
        for edge in self.edges:
            graph.add_edge(edge.before, edge.after, key=edge.why, lag=edge.lag)
        return graph

    @cached_property
    def _player(self) -> EarliestTimes:
        before = np.array([edge.before for edge in self.edges], dtype=np.int64)
        after = np.array([edge.after for edge in self.edges], dtype=np.int64)
        lags = np.array([edge.lag for edge in self.edges])
        return EarliestTimes(Dependencies(len(self.operations), before, after, lags))

    @cached_property
    def _played(self) -> tuple[Seconds, Seconds]:
        return self._play(1.0, 1.0)

    def _play(self, gpu: float, host: float) -> tuple[Seconds, Seconds]:
        """Return the seconds of every operation, and when it ends."""
        after = self._player.graph.after
        first = np.isin(np.arange(len(self.operations)), after, invert=True)
        own = np.array([one.seconds for one in self.operations])
        for number in np.unique([e.after for e in self.edges if e.why == SYNCHRONISE]):
            own[int(number)] = 0.0  # it waits; what comes after the waiting is the edges' lag
        own = own * np.where([one.category in GPU for one in self.operations], gpu, host)
        begins = np.array([one.start - self.start for one in self.operations])
        own = own + np.where(first, host * begins, 0.0)
        return own, self._player(own, host)

    @property
    def replayed_seconds(self) -> float:
        """Until the last operation ends, if dependencies alone decide when each one begins."""
        return float(self._played[1].max())

    def seconds_if(self, *, gpu: float = 1.0, host: float = 1.0) -> float:
        """Return the same if the GPU's operations, or all that the host does, took other seconds.

        ``gpu`` and ``host`` are factors of their seconds: ``seconds_if(gpu=0)`` is how long the
        host alone takes, ``seconds_if(host=0)`` the GPU alone. Raises InputError below 0.
        """
        require(
            gpu >= 0 and host >= 0, f"factors of seconds, here {gpu} and {host}, are at least 0"
        )
        return float(self._play(gpu, host)[1].max())

    @cached_property
    def critical_path(self) -> tuple[Event, ...]:
        """The operations that the end of the trace waited for, in order."""
        own, at = self._played
        path = critical_path(self._player.graph, at, own)
        return tuple(self.operations[number] for number in path)

    def critical_seconds(self) -> dict[str, float]:
        """Return the seconds of the critical path by what is done in them.

        They are ``computation``, ``communication`` and ``copies`` of the GPU, and ``host``, which
        is all else: launching, and what Python and PyTorch do in between.
        """
        spent = dict.fromkeys(("computation", "communication", "copies"), 0.0)
        for one in self.critical_path:
            if one.is_communication:
                spent["communication"] += one.seconds
            elif one.category in GPU:
                spent["computation" if one.category == "kernel" else "copies"] += one.seconds
            elif one.category == "cpu_op":
                spent["computation"] += one.seconds
        return {**spent, "host": max(0.0, self.replayed_seconds - sum(spent.values()))}


def operation_graph(trace: Recording) -> OperationGraph:
    """Return the operations of a trace and what they wait for.

    Raises InputError if they wait for one another in a circle, which a sound trace never shows.
    """
    found = _of_gpu(trace) if trace.gpu else _of_host(trace)
    try:
        _ = found._player
    except Cyclic as error:
        import networkx as nx

        circle = nx.find_cycle(found.graph.subgraph(error.nodes.tolist()))
        names = ", ".join(found.operations[one].name for one, *_ in circle[:4])
        raise InputError(
            f"operations of {trace.name!r} wait for one another in a circle: {names}"
        ) from None
    return found


def _of_host(trace: Recording) -> OperationGraph:
    """Return the graph of a trace without GPU."""
    outer = outermost([event for event in trace.events if event.category == "cpu_op"])
    return OperationGraph(
        tuple(outer), tuple(host_edges(outer, range(len(outer)))), trace.extent[0]
    )


def _of_gpu(trace: Recording) -> OperationGraph:
    launches = {e.correlation for e in trace.gpu if e.correlation is not None}
    calls = [
        call for call in trace.calls if call.correlation in launches or call.name in SYNCHRONISING
    ]
    operations = tuple(sorted([*trace.gpu, *calls], key=lambda e: (e.start, e.category in GPU)))
    streams: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(operations):
        if one.category in GPU:
            streams[stream_of(one)].append(place)
    edges = [Edge(a, b, STREAM) for places in streams.values() for a, b in pairwise(places)]
    before_on_stream = {edge.after: edge.before for edge in edges}
    on_host = [place for place, one in enumerate(operations) if one.category not in GPU]
    edges += host_edges(operations, on_host)
    edges += launch_edges(trace, operations, before_on_stream)
    launched = {name: Launched(operations, places) for name, places in streams.items()}
    edges += wait_edges(trace, operations, launched)
    edges += synchronise_edges(trace, operations, launched)
    return OperationGraph(operations, tuple(edges), trace.extent[0])
