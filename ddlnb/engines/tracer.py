"""Records the spans of one rank while an iteration runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ddlnb.results.timeline import Span


class Tracer:
    """Collects spans; ``zero`` is a moment all ranks share, such as the end of a barrier.

    Appending to a list is atomic, so hooks, transports and the training loop may all record.
    """

    def __init__(self, rank: int, zero: float):
        self.rank, self.zero, self.iteration = rank, zero, 0
        self.spans: list[Span] = []

    def record(
        self,
        kind: str,
        name: str,
        start: float,
        stop: float,
        size: int = 0,
        iteration: int | None = None,
    ) -> None:
        """Note a span between two readings of time.perf_counter."""
        number = self.iteration if iteration is None else iteration
        begin, end = start - self.zero, stop - self.zero
        self.spans.append(Span(self.rank, kind, name, begin, end, number, size))


@contextmanager
def recorded(tracer: Tracer | None, kind: str, name: str) -> Iterator[None]:
    """Note the block as one span, if there is a tracer."""
    start = time.perf_counter()
    yield
    if tracer is not None:
        tracer.record(kind, name, start, time.perf_counter())
