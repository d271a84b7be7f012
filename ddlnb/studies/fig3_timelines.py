"""What overlapped with what: the facts that a reader looks for in a timeline, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ddlnb.errors import require
from ddlnb.paths import BUILD
from ddlnb.results.timeline import Span, Timeline
from ddlnb.units import MS


def overlap_table(timelines: Mapping[str, Timeline], rank: int = 0) -> pd.DataFrame:
    """One row per method, of one rank. Milliseconds and messages are means per iteration.

    Raises InputError for a rank without spans.

    early_messages: messages that started before the backward pass of their iteration ended.
    late_messages: messages that were still under way when the next forward pass had started.
    layers_waited_for: places at which the worker waits, 1 when it waits for all layers at once.
    """
    for name, timeline in timelines.items():
        require(bool(timeline.on(rank).spans), f"timeline of {name!r} has no spans of rank {rank}")
    rows = {name: _facts(timeline.on(rank)) for name, timeline in timelines.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def _facts(timeline: Timeline) -> dict[str, float]:
    iterations = sorted({span.iteration for span in timeline.spans})
    messages = _of(timeline, "message")
    kinds = ("forward", "backward", "wait", "update")
    count = len(iterations)
    return {
        **{f"{kind}_ms": timeline.seconds(kind) / MS / count for kind in kinds},
        "messages": len(messages) / count,
        "largest_bytes": max((span.bytes for span in messages), default=0),
        "early_messages": _early(timeline, iterations) / count,
        "late_messages": _late(timeline, iterations) / max(1, count - 1),
        "layers_waited_for": len({span.name for span in _of(timeline, "wait")}),
    }


def _of(timeline: Timeline, kind: str, iteration: int | None = None) -> list[Span]:
    return [
        span
        for span in timeline.spans
        if span.kind == kind and (iteration is None or span.iteration == iteration)
    ]


def _early(timeline: Timeline, iterations: list[int]) -> int:
    found = 0
    for iteration in iterations:
        end = max(span.stop_seconds for span in _of(timeline, "backward", iteration))
        found += sum(s.start_seconds < end for s in _of(timeline, "message", iteration))
    return found


def _late(timeline: Timeline, iterations: list[int]) -> int:
    found = 0
    for iteration in iterations[:-1]:
        start = min(span.start_seconds for span in _of(timeline, "forward", iteration + 1))
        found += sum(s.stop_seconds > start for s in _of(timeline, "message", iteration))
    return found


def write_traces(timelines: Mapping[str, Timeline], folder: str | Path | None = None) -> list[str]:
    """Names of the Chrome traces written to the folder, by default ``build/traces``.

    chrome://tracing and Perfetto open them; write_chrome_trace says what is in them.
    """
    folder = Path(folder) if folder is not None else BUILD / "traces"
    paths = [
        timeline.write_chrome_trace(folder / f"{name}.json") for name, timeline in timelines.items()
    ]
    return [path.name for path in paths]
