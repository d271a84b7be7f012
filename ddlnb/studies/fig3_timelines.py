"""What overlapped with what: the facts that a reader looks for in a timeline, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ddlnb.errors import require
from ddlnb.paths import BUILD
from ddlnb.results.timeline import Timeline
from ddlnb.studies.fig3_overview import overview
from ddlnb.units import MB, MS

__all__ = [
    "EARLY",
    "LATE",
    "PLACES",
    "overlap",
    "overlap_table",
    "overview",
    "places_of_waits",
    "write_traces",
]

EARLY, LATE = "started in backward", "still sent in next forward"
PLACES = "places of waits"


def overlap_table(timelines: Mapping[str, Timeline], rank: int = 0) -> pd.DataFrame:
    """Return one row per method: times and messages of one rank, averaged over the iterations.

    The columns are those of `overlap`, before them the milliseconds of computing and waiting, and
    after them the number of places at which the worker waits: 1 if it waits for all layers at
    once. Raises InputError for a rank without spans.
    """
    rows = {}
    for name, whole in timelines.items():
        timeline = whole.on(rank)
        require(bool(timeline.spans), f"timeline of {name!r} has no spans of rank {rank}")
        iterations = sorted({span.iteration for span in timeline.spans})
        counts = pd.DataFrame([overlap(timeline, iteration) for iteration in iterations])
        rows[name] = {
            **{
                f"{kind} (ms)": timeline.seconds(kind) / MS / len(iterations)
                for kind in ("forward", "backward", "wait", "update")
            },
            **counts.mean(),
            "largest (MB)": counts["largest (MB)"].max(),
            PLACES: places_of_waits(timeline),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").round(3)


def overlap(timeline: Timeline, iteration: int) -> dict[str, float]:
    """Count the messages of one iteration, and those that overlap with computation.

    EARLY counts messages that started before the iteration's backward pass ended, and LATE those
    still under way when the next forward pass had started; it is NaN in the last iteration.
    """
    spans = [span for span in timeline.spans if span.iteration == iteration]
    sent = [span for span in spans if span.kind == "message"]
    end = max(span.stop_seconds for span in spans if span.kind == "backward")
    following = [
        span.start_seconds
        for span in timeline.spans
        if span.kind == "forward" and span.iteration == iteration + 1
    ]
    late = sum(span.stop_seconds > min(following) for span in sent) if following else float("nan")
    return {
        "messages": len(sent),
        "largest (MB)": max((span.bytes for span in sent), default=0) / MB,
        EARLY: sum(span.start_seconds < end for span in sent),
        LATE: late,
    }


def places_of_waits(timeline: Timeline) -> int:
    """Return at how many places of an iteration the worker waits."""
    return len({span.name for span in timeline.spans if span.kind == "wait"})


def write_traces(timelines: Mapping[str, Timeline], folder: str | Path | None = None) -> list[str]:
    """Write a Chrome trace per method to the folder, by default build/traces; return their names.

    chrome://tracing and Perfetto open them; `Timeline.write_chrome_trace` says what they hold.
    """
    folder = Path(folder) if folder is not None else BUILD / "traces"
    return [
        timeline.write_chrome_trace(folder / f"{name}.json").name
        for name, timeline in timelines.items()
    ]
