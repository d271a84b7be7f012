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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, require
from ddlnb.launch.rank import RankContext
from ddlnb.results.timeline import Span, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.ranks import Ranks

PHASES = {
    "QUEUE": "queue",
    "INIT_FUSION_BUFFER": "make fusion buffer",
    "MEMCPY_IN_FUSION_BUFFER": "copy into fusion buffer",
    "MEMCPY_OUT_FUSION_BUFFER": "copy out of fusion buffer",
    **{f"{library}_ALLREDUCE": "all-reduce" for library in ("GLOO", "MPI", "NCCL", "CCL")},
}
_COLUMNS = ["tensor", "iteration", "bytes", "phase", "start_seconds", "stop_seconds"]


@contextmanager
def recording(ranks: Ranks, path: str | Path) -> Iterator[Path]:
    """Runs on engine ``horovod`` within the block write Horovod's timeline to this path.

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
    """The all-reduces of a Horovod timeline as messages, each from negotiation to end.

    Iteration n holds the n-th time of every tensor. What a truncated file does not tell the end of
    is left out. Raises InputError for a file that is no Horovod timeline.
    """
    spans = (
        Span(0, "message", one.tensor, one.phases[0][1], one.stop, one.iteration, one.bytes)
        for one in _read(path)
    )
    return Timeline(method, "measured", tuple(spans))


def read_phases(path: str | Path) -> pd.DataFrame:
    """What every all-reduce of a Horovod timeline went through, one row per phase.

    Columns: tensor, iteration, bytes, phase, start_seconds, stop_seconds. The phases are
    "negotiation", then "queue" until Horovod got to it, then copies and the "all-reduce" itself.
    Seconds count from the start of the timeline.
    """
    import pandas as pd

    rows = [
        (one.tensor, one.iteration, one.bytes, *phase)
        for one in _read(path)
        for phase in one.phases
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    return frame.sort_values("start_seconds", kind="stable", ignore_index=True)


@dataclass(frozen=True)
class _Sum:
    """One all-reduce of one tensor; each phase has its name, start and stop."""

    tensor: str
    iteration: int
    bytes: int
    phases: tuple[tuple[str, float, float], ...]
    stop: float


def _read(path: str | Path) -> list[_Sum]:
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Horovod timeline {str(path)!r} cannot be read: {error}") from error
    found = list(_sums(_events(text, path)))
    require(bool(found), f"{str(path)!r} tells of no all-reduce; is it a Horovod timeline?")
    return found


def _events(text: str, path: Path) -> Iterator[dict[str, Any]]:
    """The events of a JSON array that may end anywhere."""
    require(text.lstrip().startswith("["), f"{str(path)!r} is no JSON array of events")
    decoder, separator = json.JSONDecoder(), re.compile(r"[\s,]*")
    at = text.index("[") + 1
    while True:
        at = separator.match(text, at).end()  # type: ignore[union-attr]
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:  # the closing bracket, or where the file was cut
            return
        require(isinstance(event, dict), f"{str(path)!r} is no JSON array of events")
        yield event


def _sums(events: Iterator[dict[str, Any]]) -> Iterator[_Sum]:
    """Each all-reduce that has ended. A tensor is a process of the trace."""
    names: dict[int, str] = {}
    times: Counter[int] = Counter()
    opened: dict[int, list[tuple[str, float]]] = defaultdict(list)
    phases: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    for event in events:
        kind, process = event.get("ph"), event.get("pid", 0)
        if kind == "M" and event.get("name") == "process_name":
            names[process] = _plain(event["args"].get("name", ""))
        elif kind == "B":
            opened[process].append((event["name"], event["ts"] / 1e6))
        elif kind == "E" and opened[process]:
            name, start = opened[process].pop()
            stop = event["ts"] / 1e6
            if name == "NEGOTIATE_ALLREDUCE":
                phases[process] = [("negotiation", start, stop)]
            elif name in PHASES:
                phases[process].append((PHASES[name], start, stop))
            elif name == "ALLREDUCE" and phases[process]:
                negotiated = phases[process][0][2]
                phases[process].insert(1, ("queue", negotiated, start))
                steps = tuple(phases.pop(process))
                name = names.get(process, str(process))
                yield _Sum(name, times[process], _bytes(event), steps, stop)
                times[process] += 1


def _plain(tensor: str) -> str:
    """The name without what Horovod and our engine put before it."""
    return re.sub(r"^(allreduce\.)?(\d+ )?", "", tensor)


def _bytes(event: dict[str, Any]) -> int:
    import numpy as np

    shape = event.get("args", {}).get("shape", "[0]")
    elements = math.prod(int(number) for number in re.findall(r"\d+", shape))
    return elements * np.dtype(event.get("args", {}).get("dtype", "uint8")).itemsize
