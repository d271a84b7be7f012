"""What workers did when, as a tidy table: computing, or waiting for messages and for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlnb.training.executors.lockstep import Note
from ddlnb.training.requests import Gradient

if TYPE_CHECKING:
    import pandas as pd

COMPUTE, WAIT = "compute", "wait"


def activity(notes: Sequence[Note], method: str) -> pd.DataFrame:
    """One row per gradient and per wait of a worker, of the notes of a lockstep execution.

    Columns: method, rank, ``kind`` (compute or wait), ``iteration`` of that worker from 0,
    start_seconds, stop_seconds. A wait is a request under way, its messages' own time included;
    one that takes no time has no row.
    """
    import pandas as pd

    taken: Counter[int] = Counter()
    rows = []
    for note in sorted(notes, key=lambda note: (note.start, note.end)):
        computes = note.kind == Gradient.__name__
        if computes or note.end > note.start:
            kind = COMPUTE if computes else WAIT
            iteration = taken[note.rank] - (not computes)
            rows.append((method, note.rank, kind, iteration, note.start, note.end))
        taken[note.rank] += computes
    columns = ["method", "rank", "kind", "iteration", "start_seconds", "stop_seconds"]
    return pd.DataFrame(rows, columns=columns)
