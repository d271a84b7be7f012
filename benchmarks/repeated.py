"""Seconds of what is run again and again, candidates in turns."""

import time
from collections.abc import Callable, Mapping

import pandas as pd


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long a call takes by this clock."""
    start = clock()
    work()
    return clock() - start


def in_turns(candidates: Mapping[str, Callable[[], object]], repetitions: int) -> pd.DataFrame:
    """Return the seconds of each candidate, a row per repetition, in which all take their turn.

    A first repetition warms up and does not count.
    """
    rows = [
        {name: seconds_of(run) for name, run in candidates.items()} for _ in range(repetitions + 1)
    ]
    return pd.DataFrame(rows[1:])
