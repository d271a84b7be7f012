"""What the workers of a lockstep run did when: compute, or wait for messages and for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlnb.training.loop import NextGradient

if TYPE_CHECKING:
    import pandas as pd

COMPUTE, WAIT = "compute", "wait"


@dataclass(frozen=True)
class Activity:
    """One request of one worker, from when it was made to when it was answered.

    ``request`` is the name of its type.
    """

    rank: int
    request: str
    start: float
    end: float

    @property
    def computes(self) -> bool:
        """Whether the worker computed a gradient; otherwise it waited."""
        return self.request == NextGradient.__name__


def activity_table(activities: Sequence[Activity], method: str) -> pd.DataFrame:
    """Return one row per gradient and per wait of a worker.

    Columns: method, rank, ``kind`` (compute or wait), ``iteration`` of that worker from 0,
    start_seconds, stop_seconds. A wait is a request under way, its messages' own time included;
    one that takes no time has no row.
    """
    import pandas as pd

    computed: Counter[int] = Counter()
    rows = []
    for one in sorted(activities, key=lambda one: (one.start, one.end)):
        if one.computes or one.end > one.start:
            kind = COMPUTE if one.computes else WAIT
            iteration = computed[one.rank] - (not one.computes)
            rows.append((method, one.rank, kind, iteration, one.start, one.end))
        computed[one.rank] += one.computes
    columns = ["method", "rank", "kind", "iteration", "start_seconds", "stop_seconds"]
    return pd.DataFrame(rows, columns=columns)
