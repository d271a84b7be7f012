"""Every operation of a trace with what it waits for: a graph without circles.

A GPU's operation waits for the one before it on its stream, for the call that launched it, and for
the events that its stream was told to wait for. A call on the host waits for the call before it,
and for what the host itself computes in between; a call that synchronises also waits for the
streams. Without a GPU, operations are those of the host that no other one contains.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.traces.kineto.dependencies import (
    STREAM,
    SYNCHRONISE,
    SYNCHRONISING,
    Edge,
    Launched,
    host_edges,
    launch_edges,
    stream_of,
    synchronise_edges,
    wait_edges,
)
from ddlnb.traces.kineto.events import GPU, Event, Recording
from ddlnb.traces.kineto.passes import outermost
from ddlnb.traces.longest_path import Dependencies, EarliestTimes, Seconds, critical_path

if TYPE_CHECKING:
    import networkx as nx


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
    def _played(self) -> tuple[Dependencies, Seconds, Seconds]:
        return self._play(1.0, 1.0)

    def _play(self, gpu: float, host: float) -> tuple[Dependencies, Seconds, Seconds]:
        count = len(self.operations)
        ends = np.array([(edge.before, edge.after) for edge in self.edges], dtype=np.int64)
        before, after = ends.reshape(-1, 2).T
        lags = host * np.array([edge.lag for edge in self.edges])
        graph = Dependencies(count, before, after, lags)
        first = np.isin(np.arange(count), after, invert=True)
        own = np.array([one.seconds for one in self.operations])
        for number in np.unique([e.after for e in self.edges if e.why == SYNCHRONISE]):
            own[int(number)] = 0.0  # it waits; what comes after the waiting is the edges' lag
        own = own * np.where([one.category in GPU for one in self.operations], gpu, host)
        begins = np.array([one.start - self.start for one in self.operations])
        own = own + np.where(first, host * begins, 0.0)
        return graph, own, EarliestTimes(graph)(own)

    @property
    def replayed_seconds(self) -> float:
        """Until the last operation ends, if dependencies alone decide when each one begins."""
        return float(self._played[2].max())

    def seconds_if(self, *, gpu: float = 1.0, host: float = 1.0) -> float:
        """Return the same if the GPU's operations, or all that the host does, took other seconds.

        ``gpu`` and ``host`` are factors of their seconds: ``seconds_if(gpu=0)`` is how long the
        host alone takes, ``seconds_if(host=0)`` the GPU alone. Raises InputError below 0.
        """
        require(
            gpu >= 0 and host >= 0, f"factors of seconds, here {gpu} and {host}, are at least 0"
        )
        return float(self._play(gpu, host)[2].max())

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
