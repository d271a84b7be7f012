"""Horovod's own timelines: recorded on worker 0, read as ours.

Horovod writes when worker 0 began to negotiate a tensor and what it then did with it. It knows
nothing of forward and backward passes, so these timelines have messages only.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, require
from ddlnb.launch.rank import RankContext
from ddlnb.results.timeline import Span, Timeline

if TYPE_CHECKING:
    from ddlnb.launch.ranks import Ranks


@contextmanager
def recording(ranks: Ranks, path: str | Path) -> Iterator[Path]:
    """Make runs on engine ``horovod`` within the block write Horovod's timeline to this path.

    The file is on the machine of rank 0 and holds the last run. Writing it keeps a core busy.
    """
    path = Path(path).resolve()
    ranks.run(_set_timeline, str(path))
    try:
        yield path
    finally:
        ranks.run(_set_timeline, None)


def _set_timeline(context: RankContext, path: str | None) -> None:
    if path is None:
        os.environ.pop("HOROVOD_TIMELINE", None)
    else:
        os.environ["HOROVOD_TIMELINE"] = path


def read_horovod_timeline(path: str | Path, method: str = "horovod") -> Timeline:
    """Return the all-reduces of a Horovod timeline as messages, each from negotiation to end.

    Iteration n holds the n-th message of every tensor. A message whose end a truncated file lacks
    is left out. Raises InputError for a file that is not a Horovod timeline.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Horovod timeline {str(path)!r} cannot be read: {error}") from error
    spans = tuple(_messages(_events(text, path)))
    require(bool(spans), f"{str(path)!r} holds no all-reduce; name a file that Horovod wrote")
    return Timeline(method, "measured", spans)


def _events(text: str, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a JSON array that may end anywhere."""
    require(text.lstrip().startswith("["), f"{str(path)!r} is not a JSON array of events")
    decoder, separator = json.JSONDecoder(), re.compile(r"[\s,]*")
    at = text.index("[") + 1
    while True:
        at = separator.match(text, at).end()  # type: ignore[union-attr]
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:  # the closing bracket, or where the file was cut
            return
        require(isinstance(event, dict), f"{str(path)!r} is not a JSON array of events")
        yield event


def _messages(events: Iterator[dict[str, Any]]) -> Iterator[Span]:
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
    return elements * np.dtype(event.get("args", {}).get("dtype", "uint8")).itemsize
