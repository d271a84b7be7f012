"""Timelines that Horovod and BytePS recorded themselves, read as ours; they have messages only.

Horovod writes when worker 0 began to negotiate a tensor and what it then did with it. With
BYTEPS_TRACE_ON=1, BYTEPS_TRACE_START_STEP, BYTEPS_TRACE_END_STEP and BYTEPS_TRACE_DIR a worker of
BytePS writes ``DIR/LOCAL_RANK/comm.json`` (the folder must exist): for every tensor and step how
long it was under way ("total"), and how long each stage of each partition took. With MXNet it also
writes ``dag.gml``, what each tensor's communication waits for.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, require
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import US

if TYPE_CHECKING:
    import networkx as nx


def horovod_timeline(events: Iterable[dict[str, Any]], name: str, method: str) -> Timeline:
    """Return the all-reduces of these events as messages, each from negotiation to end.

    Iteration n holds the n-th message of every tensor. A message whose end a truncated file lacks
    is left out. Raises InputError if none is an all-reduce.
    """
    spans = tuple(_horovod_messages(events))
    require(bool(spans), f"{name!r} holds no all-reduce; name a file that Horovod wrote")
    return Timeline(method, "measured", spans)


def _horovod_messages(events: Iterable[dict[str, Any]]) -> Iterator[Span]:
    """Yield each all-reduce that has ended. In Horovod's trace a tensor is a process."""
    names: dict[int, str] = {}
    rounds: Counter[int] = Counter()
    opened: dict[int, list[tuple[str, float]]] = defaultdict(list)
    negotiated: dict[int, float] = {}
    for event in events:
        kind, process = event.get("ph"), event.get("pid", 0)
        if kind == "M" and event.get("name") == "process_name":
            names[process] = _horovod_tensor(event["args"].get("name", ""))
        elif kind == "B":
            opened[process].append((event["name"], event["ts"] / 1e6))
        elif kind == "E" and opened[process]:
            name, start = opened[process].pop()
            if name == "NEGOTIATE_ALLREDUCE":
                negotiated[process] = start
            elif name == "ALLREDUCE" and process in negotiated:
                tensor, start = names.get(process, str(process)), negotiated.pop(process)
                stop, iteration = event["ts"] / 1e6, rounds[process]
                yield Span(0, "message", tensor, start, stop, iteration, _bytes(event))
                rounds[process] += 1


def _horovod_tensor(name: str) -> str:
    """Return the name without what Horovod and our engine put before it."""
    return re.sub(r"^(allreduce\.)?(\d+ )?", "", name)


def _bytes(event: dict[str, Any]) -> int:
    import numpy as np

    shape = event.get("args", {}).get("shape", "[0]")
    elements = math.prod(int(number) for number in re.findall(r"\d+", shape))
    return elements * int(np.dtype(event.get("args", {}).get("dtype", "uint8")).itemsize)


TOTAL = "total"  # the thread of events that last as long as a tensor is under way


def byteps_timeline(
    events: Iterable[dict[str, Any]], name: str, method: str = "byteps"
) -> Timeline:
    """Return the messages of a comm.json, from when BytePS took a tensor to when it had the sum.

    Iteration n holds the n-th message of every tensor. Bytes are known where the engine names
    elements ("w[0:512]", of four bytes), and 0 elsewhere. Raises InputError if there is no message.
    """
    spans = tuple(_byteps_messages(events, name))
    require(bool(spans), f"{name!r} holds no message; name a comm.json that BytePS wrote")
    return Timeline(method, "measured", spans)


def read_byteps_graph(path: str | Path) -> nx.DiGraph:
    """Return the graph of a dag.gml: nodes are operations, edges lead to what waits for them.

    Raises InputError for a file that is no such graph, or one whose operations wait in a circle.
    """
    import networkx as nx

    try:
        graph = nx.DiGraph(nx.read_gml(path))
    except (OSError, UnicodeDecodeError, nx.NetworkXError) as error:
        raise InputError(f"graph {str(path)!r} cannot be read: {error}") from error
    if not nx.is_directed_acyclic_graph(graph):
        circle = " -> ".join(str(before) for before, _ in nx.find_cycle(graph)[:4])
        raise InputError(f"operations of {str(path)!r} wait for one another in a circle: {circle}")
    return graph


def _byteps_messages(events: Iterable[dict[str, Any]], name: str) -> Iterator[Span]:
    rounds: Counter[str] = Counter()
    whole = [event for event in events if event.get("tid") == TOTAL]
    for event in whole:
        times = (event.get("ts"), event.get("dur"))
        require(
            "pid" in event and all(isinstance(time, int | float) for time in times),
            f"{name!r} has a message without pid, ts or dur: {event}",
        )
    whole.sort(key=lambda event: float(event["ts"]))
    for event in whole:
        tensor = _byteps_tensor(str(event["pid"]))
        start = (event["ts"] - whole[0]["ts"]) * US
        stop = start + event["dur"] * US
        elements = sum(int(b) - int(a) for a, b in re.findall(r"\[(\d+):(\d+)\]", tensor))
        yield Span(0, "message", tensor, start, stop, rounds[tensor], 4 * elements)
        rounds[tensor] += 1


def _byteps_tensor(name: str) -> str:
    """Return the name without what BytePS and our engine put before it.

    >>> _byteps_tensor("Comm.byteps.27 conv1.bias[0:24]"), _byteps_tensor("Comm.byteps.gradient_0")
    ('conv1.bias[0:24]', 'gradient_0')
    """
    return re.sub(r"^Comm\.(byteps\.)?(byteps_push_pull\.)?(\d+ )?", "", name)
