"""Timelines: which rank did what from when to when, simulated, emulated or measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import require
from ddlnb.units import counted, show_seconds

if TYPE_CHECKING:
    import pandas as pd

KINDS = (
    *("forward", "backward", "compute", "wait", "delay", "update", "compress", "decompress"),
    "message",
)
LANE_OF = {"message": "network"}


@dataclass(frozen=True)
class Span:
    """Something that took time. ``kind`` is one of KINDS; a message also has ``bytes``.

    ``forward``, ``backward``, ``compute`` (both passes in one), ``update``, ``compress`` and
    ``decompress`` are computation; ``wait`` is a worker that computes nothing because a message has
    not arrived, ``delay`` one that begins its iteration late; ``message`` lasts from its start to
    its end.
    """

    rank: int
    kind: str
    name: str
    start_seconds: float
    stop_seconds: float
    iteration: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"span kind {self.kind!r} must be one of {KINDS}")
        require(
            self.stop_seconds >= self.start_seconds,
            f"span {self.name!r} stops at {self.stop_seconds} s, before {self.start_seconds} s",
        )

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.stop_seconds - self.start_seconds

    @property
    def lane(self) -> str:
        """Return ``compute`` or ``network``."""
        return LANE_OF.get(self.kind, "compute")


@dataclass(frozen=True)
class Timeline:
    """Spans of all ranks over some iterations, with one clock."""

    method: str
    source: str
    spans: tuple[Span, ...]

    def __repr__(self) -> str:
        ranks = len({span.rank for span in self.spans})
        if not self.spans:
            return f"Timeline({self.method!r}, {self.source}, no spans)"
        return (
            f"Timeline({self.method!r}, {self.source}, {counted(len(self.spans), 'span')} of "
            f"{counted(ranks, 'rank')} in {counted(self.iterations, 'iteration')} of "
            f"{show_seconds(self.iteration_seconds)})"
        )

    def on(self, rank: int) -> Timeline:
        """Return the spans of one rank."""
        return self._only(span for span in self.spans if span.rank == rank)

    def window(self, first: int, last: int) -> Timeline:
        """Return iterations first to last, inclusive, with time zero where the first one starts."""
        kept = [span for span in self.spans if first <= span.iteration <= last]
        require(bool(kept), f"no spans in iterations {first} to {last} of {self.method!r}")
        computed = [span for span in kept if span.kind != "message"]
        zero = min(span.start_seconds for span in computed or kept)
        return self._only(
            Span(
                **{
                    **asdict(span),
                    "start_seconds": span.start_seconds - zero,
                    "stop_seconds": span.stop_seconds - zero,
                }
            )
            for span in kept
        )

    def _only(self, spans: Iterable[Span]) -> Timeline:
        return Timeline(self.method, self.source, tuple(spans))

    def seconds(self, kind: str) -> float:
        """Return the total seconds of one kind of span."""
        return sum(span.seconds for span in self.spans if span.kind == kind)

    @property
    def iterations(self) -> int:
        """Return the number of iterations covered."""
        return len({span.iteration for span in self.spans})

    @property
    def iteration_seconds(self) -> float:
        """Return the seconds from one iteration to the next, averaged over iterations and ranks.

        Measured between the ends of backward passes; a single iteration counts from its start.
        """
        each = [(stop - start) / count for _, start, stop, count in self._steady()]
        return sum(each) / len(each)

    @property
    def exposed_communication_seconds(self) -> float:
        """Return the seconds a worker waits for messages, in what `iteration_seconds` counts."""
        each = [
            sum(
                max(0.0, min(stop, one.stop_seconds) - max(start, one.start_seconds)) / count
                for one in spans
                if one.kind == "wait"
            )
            for spans, start, stop, count in self._steady()
        ]
        return sum(each) / max(1, len(each))

    def _steady(self) -> Iterator[tuple[list[Span], float, float, int]]:
        """Yield the spans of every rank, and from when until when so many iterations of it last."""
        for rank in {span.rank for span in self.spans}:
            spans = [span for span in self.spans if span.rank == rank]
            ends = {one.iteration: one.stop_seconds for one in spans if one.kind == "backward"}
            first, last = min(ends, default=0), max(ends, default=0)
            if first < last:
                yield spans, ends[first], ends[last], last - first
            else:
                computed = [0.0, *(s.stop_seconds for s in self.spans if s.lane == "compute")]
                yield spans, 0.0, max(computed), 1

    def to_frame(self) -> pd.DataFrame:
        """Return one row per span, with its lane, method and source."""
        import pandas as pd

        rows = [{**asdict(span), "lane": span.lane} for span in self.spans]
        return pd.DataFrame(rows).assign(method=self.method, source=self.source)

    def to_chrome_trace(self) -> dict[str, Any]:
        """Return the trace that Chrome and Perfetto open: one process per rank, times in us."""
        lanes = {"compute": 0, "network": 1}
        events: list[dict[str, Any]] = []
        for rank in sorted({span.rank for span in self.spans}):
            named = {"ph": "M", "pid": rank, "name": "process_name"}
            events.append({**named, "args": {"name": f"{self.method} rank {rank} ({self.source})"}})
            for lane, thread in lanes.items():
                named = {"ph": "M", "pid": rank, "tid": thread, "name": "thread_name"}
                events.append({**named, "args": {"name": lane}})
        for number, span in enumerate(self.spans):
            common = {"pid": span.rank, "tid": lanes[span.lane], "cat": span.kind}
            common |= {"name": f"{span.kind} {span.name}", "ts": span.start_seconds * 1e6}
            if span.kind != "message":
                events.append({**common, "ph": "X", "dur": span.seconds * 1e6})
                continue
            # Messages overlap one another; begin/end pairs with an id may, slices may not.
            begin = {**common, "ph": "b", "id": number, "args": {"bytes": span.bytes}}
            end = {**common, "ph": "e", "id": number, "ts": span.stop_seconds * 1e6}
            events += [begin, end]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def write_chrome_trace(self, path: str | Path) -> Path:
        """Write the Chrome trace, whole or not at all, and return its path."""
        from ddlnb.files import write_atomically

        return write_atomically(path, json.dumps(self.to_chrome_trace()))
