"""Horovod's own timelines: recorded on worker 0, read as ours.

Horovod writes when worker 0 began to negotiate a tensor and what it then did with it. It knows
nothing of forward and backward passes, so these timelines have messages only.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from ddlnb.errors import require
from ddlnb.results.timeline import Span, Timeline


def horovod_timeline(events: Iterable[dict[str, Any]], name: str, method: str) -> Timeline:
    """Return the all-reduces of these events as messages, each from negotiation to end.

    Iteration n holds the n-th message of every tensor. A message whose end a truncated file lacks
    is left out. Raises InputError if none is an all-reduce.
    """
    spans = tuple(_messages(events))
    require(bool(spans), f"{name!r} holds no all-reduce; name a file that Horovod wrote")
    return Timeline(method, "measured", spans)


def _messages(events: Iterable[dict[str, Any]]) -> Iterator[Span]:
    """Yield each all-reduce that has ended. In Horovod's trace a tensor is a process."""
    names: dict[int, str] = {}
    rounds: Counter[int] = Counter()
    opened: dict[int, list[tuple[str, float]]] = defaultdict(list)
    negotiated: dict[int, float] = {}
    for event in events:
        kind, process = event.get("ph"), event.get("pid", 0)
        if kind == "M" and event.get("name") == "process_name":
            names[process] = _tensor(event["args"].get("name", ""))
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


def _tensor(name: str) -> str:
    """Return the name without what Horovod and our engine put before it."""
    return re.sub(r"^(allreduce\.)?(\d+ )?", "", name)


def _bytes(event: dict[str, Any]) -> int:
    import numpy as np

    shape = event.get("args", {}).get("shape", "[0]")
    elements = math.prod(int(number) for number in re.findall(r"\d+", shape))
    return elements * int(np.dtype(event.get("args", {}).get("dtype", "uint8")).itemsize)
