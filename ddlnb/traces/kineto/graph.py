"""Every operation of a trace with what it waits for: a graph without circles.

A GPU's operation waits for the one before it on its stream, for the call that launched it, and for
the events that its stream was told to wait for. A call on the host waits for the call before it,
and for what the host itself computes in between; a call that synchronises also waits for the
streams. Without a GPU, operations are those of the host that no other one contains.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import InputError
from ddlnb.traces.kineto.events import GPU, Event, Recording
from ddlnb.traces.longest_path import Dependencies, EarliestTimes, Seconds, critical_path

if TYPE_CHECKING:
    import networkx as nx

STREAM, LAUNCH, WAIT, HOST, SYNCHRONISE = "stream", "launch", "event", "host", "synchronise"
HANDOVER = "handover"  # from one thread of the host to another
ALL_STREAMS = ("cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize")
ONE_STREAM = ("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize")


@dataclass(frozen=True)
class Edge:
    """``after`` waits for ``before``, of operations by number, and for ``lag`` seconds more."""

    before: int
    after: int
    why: str
    lag: float = 0.0


class Launched:
    """The operations of a stream by when they were launched: correlations grow on the host."""

    def __init__(self, operations: tuple[Event, ...], places: list[int]):
        """Sort the operations at these places by correlation."""
        known = [(operations[place].correlation or 0, place) for place in places]
        self._order = sorted(known)

    def last_before(self, correlation: int) -> int | None:
        """Return the place of the last operation that was launched before this call, if any."""
        at = bisect_left(self._order, (correlation, -1))
        return self._order[at - 1][1] if at else None

    def first_after(self, correlation: int) -> int | None:
        """Return the place of the first operation that was launched after this call, if any."""
        at = bisect_left(self._order, (correlation + 1, -1))
        return self._order[at][1] if at < len(self._order) else None


@dataclass(frozen=True)
class OperationGraph:
    """Operations of a trace, and the dependencies between them."""

    operations: tuple[Event, ...]
    edges: tuple[Edge, ...]

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
    def _played(self) -> tuple[Dependencies, Seconds, Seconds]:
        count = len(self.operations)
        ends = np.array([(edge.before, edge.after) for edge in self.edges], dtype=np.int64)
        before, after = ends.reshape(-1, 2).T
        graph = Dependencies(count, before, after, np.array([edge.lag for edge in self.edges]))
        first = np.isin(np.arange(count), after, invert=True)
        own = np.array([one.seconds for one in self.operations])
        for number in np.unique([e.after for e in self.edges if e.why == SYNCHRONISE]):
            own[int(number)] = 0.0  # it waits; what comes after the waiting is the edges' lag
        own = own + np.where(first, [one.start for one in self.operations], 0.0)
        return graph, own, EarliestTimes(graph)(own)

    @property
    def replayed_seconds(self) -> float:
        """Until the last operation ends, if dependencies alone decide when each one begins."""
        return float(self._played[2].max() - min(one.start for one in self.operations))

    @cached_property
    def critical_path(self) -> tuple[Event, ...]:
        """The operations that the end of the trace waited for, in order."""
        graph, own, at = self._played
        return tuple(self.operations[number] for number in critical_path(graph, at, own))

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
    import networkx as nx

    found = _of_gpu(trace) if trace.gpu else _of_host(trace)
    if not nx.is_directed_acyclic_graph(found.graph):
        circle = nx.find_cycle(found.graph)
        names = ", ".join(found.operations[one].name for one, *_ in circle[:4])
        raise InputError(f"operations of {trace.name!r} wait for one another in a circle: {names}")
    return found


def _of_host(trace: Recording) -> OperationGraph:
    """Return the graph of a trace without GPU."""
    outer: list[Event] = []
    until: dict[tuple[str, str], float] = defaultdict(lambda: -1.0)
    for event in trace.events:
        if event.category == "cpu_op" and event.start >= until[event.thread]:
            until[event.thread] = event.stop
            outer.append(event)
    return OperationGraph(tuple(outer), tuple(_host_edges(outer, range(len(outer)))))


def _of_gpu(trace: Recording) -> OperationGraph:
    launches = {e.correlation for e in trace.gpu if e.correlation is not None}
    calls = [
        call
        for call in trace.calls
        if call.correlation in launches or call.name in (*ALL_STREAMS, *ONE_STREAM)
    ]
    operations = tuple(sorted([*trace.gpu, *calls], key=lambda e: (e.start, e.category in GPU)))
    number = {id(one): place for place, one in enumerate(operations)}
    streams: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(operations):
        if one.category in GPU:
            streams[_stream(one)].append(place)
    edges = [Edge(a, b, STREAM) for places in streams.values() for a, b in pairwise(places)]
    before_on_stream = {edge.after: edge.before for edge in edges}
    edges += _host_edges(operations, [number[id(call)] for call in calls])
    edges += _launch_edges(trace, operations, number, before_on_stream)
    launched = {name: Launched(operations, places) for name, places in streams.items()}
    edges += _wait_edges(trace, operations, launched)
    edges += _synchronise_edges(trace, operations, launched)
    return OperationGraph(operations, tuple(edges))


def _stream(event: Event) -> str:
    return f"{event.args.get('device', '')}:{event.args.get('stream', event.thread[1])}"


def _host_edges(
    operations: tuple[Event, ...] | list[Event], calls: range | list[int]
) -> list[Edge]:
    """Return what each call waits for: the one before it on its thread, or on any thread."""
    edges: list[Edge] = []
    latest: dict[tuple[str, str], int] = {}
    for place in calls:
        one = operations[place]
        done = [p for p in latest.values() if operations[p].stop <= one.start]
        own = latest.get(one.thread)
        if own is not None:
            edges.append(Edge(own, place, HOST, one.start - operations[own].stop))
        last = max(done, key=lambda p: operations[p].stop, default=None)
        if last is not None and last != own:
            edges.append(Edge(last, place, HANDOVER, one.start - operations[last].stop))
        latest[one.thread] = place
    return edges


def _launch_edges(
    trace: Recording,
    operations: tuple[Event, ...],
    number: dict[int, int],
    before_on_stream: dict[int, int],
) -> list[Edge]:
    """Return the edges from launches; the lag is that of operations whose stream was idle."""
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


def _wait_edges(
    trace: Recording, operations: tuple[Event, ...], streams: dict[str, Launched]
) -> list[Edge]:
    """Return the edges of events that streams were told to wait for, where they are recorded."""
    edges = []
    for wait in trace.events:
        if wait.category != "cuda_sync" or "wait_on_stream" not in wait.args:
            continue
        device = wait.args.get("device", "")
        recorded = int(wait.args.get("wait_on_cuda_event_record_corr_id", -1))
        told = wait.correlation if wait.correlation is not None else recorded
        waited = streams.get(f"{device}:{wait.args['wait_on_stream']}")
        waiting = streams.get(f"{device}:{wait.args.get('stream')}")
        before = waited.last_before(recorded) if waited else None
        after = waiting.first_after(told) if waiting else None
        if before is None or after is None:
            continue
        if operations[before].start <= operations[after].start:
            edges.append(Edge(before, after, WAIT))
    return edges


def _synchronise_edges(
    trace: Recording, operations: tuple[Event, ...], streams: dict[str, Launched]
) -> list[Edge]:
    """Return the edges from what a synchronising call waits for: the last launched of streams."""
    which = {
        event.correlation: f"{event.args.get('device', '')}:{event.args.get('stream')}"
        for event in trace.events
        if event.category == "cuda_sync"
    }
    edges = []
    for place, call in enumerate(operations):
        if call.name in ALL_STREAMS:
            waited = list(streams.values())
        elif call.name in ONE_STREAM and which.get(call.correlation) in streams:
            waited = [streams[which[call.correlation]]]
        else:
            continue
        for stream in waited:
            last = stream.last_before(call.correlation or 0)
            if last is not None and operations[last].stop <= call.stop:
                done = max(operations[last].stop, call.start)
                edges.append(Edge(last, place, SYNCHRONISE, call.stop - done))
    return edges
