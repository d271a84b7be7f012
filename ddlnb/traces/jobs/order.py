"""What an operation waits for on its own worker, read off the trace.

A trace says when operations ran, not why then. Two kinds are *serial* if, on no worker, one of the
second begins while the one of the first that was launched before it still runs: the second waits
for the first. Sends that block the worker, as Megatron-LM's do without overlap, are found to be
serial with what follows; sends on a stream of their own are not. An operation that begins while
another one of its worker runs was launched during that one, and begins as long after its start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Indices, Seconds

# Ends and starts of one worker that stand 0.25 ms in the wrong order are rounding.
ROUNDING_SECONDS = 2.5e-4
STRAY = 0.02  # of the pairs of two serial kinds that may overlap all the same


@dataclass(frozen=True)
class Order:
    """Operation ``after[i]`` begins when ``before[i]`` has ended.

    Operation ``during_after[i]`` begins ``during_lag[i]`` seconds after ``during[i]`` has begun.
    """

    before: Indices
    after: Indices
    during: Indices
    during_after: Indices
    during_lag: Seconds


def find_order(job: Job) -> Order:
    """Return what every operation waits for on its worker."""
    rows = job.rows
    start, end = rows["start_ts"].to_numpy(), rows["end_ts"].to_numpy()
    kind, names = rows["optype"].factorize()
    run = (rows["step"].to_numpy() != np.roll(rows["step"], 1)) | (
        rows["worker"].to_numpy() != np.roll(rows["worker"], 1)
    )
    run[0] = True
    first = np.maximum.accumulate(np.where(run, np.arange(len(rows)), 0))
    launched = _before_ties(start, run)
    pairs: dict[int, Indices] = {}
    waits: dict[int, NDArray[np.bool_]] = {}
    for one in range(len(names)):
        latest = np.maximum.accumulate(np.where(kind == one, np.arange(len(rows)), -1))
        previous = np.where(launched >= first, latest[launched], -1)
        previous[previous < first] = -1
        serial = _serial(previous, kind, len(names), start, end)
        in_order = end[previous] <= start + ROUNDING_SECONDS
        pairs[one] = previous
        waits[one] = (previous >= 0) & serial[kind] & in_order
    before, after = _needed(pairs, waits, launched, first)
    during, during_after = _launched_during(pairs, start, end)
    lag = start[during_after] - start[during]
    return Order(before, after, during, during_after, lag)


def _before_ties(start: Seconds, run: NDArray[np.bool_]) -> Indices:
    """Return for every operation the last one of its worker that was launched strictly before."""
    new = run | (start != np.roll(start, 1))
    return np.maximum.accumulate(np.where(new, np.arange(len(start)), 0)) - 1


def _serial(
    previous: Indices, kind: Indices, kinds: int, start: Seconds, end: Seconds
) -> NDArray[np.bool_]:
    """Return for every kind whether it is serial with that of ``previous``."""
    has = previous >= 0
    overlaps = has & (end[previous] > start + ROUNDING_SECONDS)
    pairs = np.bincount(kind[has], minlength=kinds)
    serial: NDArray[np.bool_] = np.bincount(kind[overlaps], minlength=kinds) <= STRAY * pairs
    return serial


def _needed(
    pairs: dict[int, Indices],
    waits: dict[int, NDArray[np.bool_]],
    launched: Indices,
    first: Indices,
) -> tuple[Indices, Indices]:
    """Return the pairs that wait, but for those that the operation launched before implies."""
    follows = np.zeros(len(launched), dtype=bool)
    for one in pairs:
        follows |= waits[one] & (pairs[one] == launched)
    before, after = [], []
    for one, previous in pairs.items():
        chained = follows & (previous[launched] == previous) & waits[one][launched]
        chained &= launched >= first
        at = np.flatnonzero(waits[one] & ~chained)
        before.append(previous[at])
        after.append(at)
    return np.concatenate(before), np.concatenate(after)


def _launched_during(
    pairs: dict[int, Indices], start: Seconds, end: Seconds
) -> tuple[Indices, Indices]:
    """Return the operation that was running when each one began, and that one."""
    running = np.full(len(start), -1, dtype=np.int64)
    for previous in pairs.values():
        runs = (previous >= 0) & (end[previous] > start + ROUNDING_SECONDS)
        running = np.where(runs, np.maximum(running, previous), running)
    at = np.flatnonzero(running >= 0)
    return running[at], at
