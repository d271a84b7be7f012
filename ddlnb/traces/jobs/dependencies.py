"""What the operations of a job wait for: peers, others of their worker, barriers.

Peers end together: messages between stages, and collectives of groups of workers.

A trace says when operations ran, not why then. Two kinds are *serial* if, on no worker, one of the
second begins while the one of the first that was launched before it still runs: the second waits
for the first. Sends that block the worker, as Megatron-LM's do without overlap, are found to be
serial with what follows; sends on a stream of their own are not. An operation that begins while
another one of its worker runs was launched during that one, and begins as long after its start.

Averaging the loss over data-parallel ranks, or a barrier before gradients are exchanged, leaves no
operation behind, only workers that do nothing. A group of workers is taken to pass a barrier before
a kind of operation if in every iteration none of them begins it before the last one could have, if
some are kept waiting for long, and if that explains most of their waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlnb.traces.jobs.table import (
    COLLECTIVE,
    DATA,
    JOB,
    KINDS,
    MESSAGES,
    PIPELINE,
    POINT_TO_POINT,
    TENSOR,
    JobTrace,
    family_of,
)
from ddlnb.traces.longest_path import Indices, Seconds

CLOCKS_AGREE_SECONDS = 1e-3  # how far the clocks of two machines may be apart
AGREES = 0.98  # of the operations of a kind, for a scope to hold
COLUMNS_OF = {
    DATA: ["stage", "lane", "mc"],
    TENSOR: ["dp_rank", "stage", "mc"],
    PIPELINE: ["dp_rank", "lane"],
    JOB: [],
}


@dataclass(frozen=True)
class Peers:
    """``group`` numbers the operations that end together, -1 for one that depends on no other.

    ``batch`` numbers the sends and receives that a worker posted together and that ended together,
    when the last one of them was done; -1 for one on its own. ``scope_of`` says which groups the
    collectives of each kind were found to synchronise. ``lonely`` counts sends and receives without
    the other half, ``early`` operations that ended before a peer had started: both are replayed as
    if nobody else took part.
    """

    group: Indices
    batch: Indices
    scope_of: dict[str, str]
    lonely: int
    early: int


def find_peers(job: JobTrace) -> Peers:
    """Return the groups of operations that end together."""
    rows = job.rows
    group = np.full(len(rows), -1, dtype=np.int64)
    scope_of: dict[str, str] = {}
    messages = message_numbers(rows, job.stages)
    early = _join(group, messages, rows)
    for name in rows["optype"].unique():
        if family_of(name) != COLLECTIVE:
            continue
        own = rows[rows["optype"] == name]
        for scope in KINDS[name].scopes:
            keys = own.groupby(["step", "number", *COLUMNS_OF[scope]], sort=False).ngroup()
            if scope == KINDS[name].scopes[-1] or _agreeing(keys, own).mean() >= AGREES:
                break
        scope_of[name] = scope
        early += _join(group, keys, rows)
    lonely = int((messages.map(messages.value_counts()) == 1).sum())
    return Peers(_without_singles(group), _batches(rows), scope_of, lonely, early)


def _batches(rows: pd.DataFrame) -> Indices:
    """Return a number for the sends and receives of a worker with the same start and end."""
    number = np.full(len(rows), -1, dtype=np.int64)
    own = rows[rows["optype"].map(family_of) == POINT_TO_POINT]
    number[own.index] = own.groupby(["step", "worker", "start_ts", "end_ts"], sort=False).ngroup()
    return _without_singles(number)


def message_numbers(rows: pd.DataFrame, stages: int) -> pd.Series[int]:
    """Return a number for every message, for its send and its receive alike."""
    found = []
    for send, receive, direction in MESSAGES:
        ends = rows[rows["optype"].isin((send, receive))]
        forward = np.where(ends["optype"] == send, direction, 0)
        arrives_at = (ends["stage"] + forward) % stages
        keys = [ends[column] for column in ("step", "dp_rank", "lane", "number")]
        found.append(ends.groupby([*keys, arrives_at], sort=False).ngroup())
        if len(found) > 1 and len(found[0]):
            found[-1] += int(found[0].max()) + 1
    return pd.concat(found)


def _agreeing(keys: pd.Series[int], rows: pd.DataFrame) -> pd.Series[bool]:
    """Return whether each operation ends when all of its group have started."""
    latest = rows["start_ts"].groupby(keys).transform("max")
    return latest <= rows["end_ts"] + CLOCKS_AGREE_SECONDS


def _join(group: Indices, keys: pd.Series[int], rows: pd.DataFrame) -> int:
    """Write these groups down, but for operations that do not wait; return how many those are."""
    own = rows.loc[keys.index]
    agree = _agreeing(keys, own)
    at = keys.index.to_numpy()[agree.to_numpy()]
    group[at] = keys[agree].to_numpy() + int(group.max()) + 1
    return int((~agree).sum())


def _without_singles(group: Indices) -> Indices:
    """Return the groups numbered from 0, and -1 for those of one operation."""
    _, number, count = np.unique(group, return_inverse=True, return_counts=True)
    single = (group < 0) | (count[number] < 2)
    result = np.full(len(group), -1, dtype=np.int64)
    _, result[~single] = np.unique(group[~single], return_inverse=True)
    return result


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


def find_order(job: JobTrace) -> Order:
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


LONG_SECONDS = 10e-3  # a gap that is no launch delay
HOLDS = 0.98  # of the iterations
EXPLAINS = 0.8  # of the seconds that are waited
SCOPES = (JOB, PIPELINE, DATA)


@dataclass(frozen=True)
class Barriers:
    """Operations begin when all of the same number in a layer could have begun.

    ``layers`` are operations with the numbers of their barriers, so that no operation is in two
    groups of a layer; no two layers share a number. ``found`` names them: the kind of operation,
    the group, and its coordinates.
    """

    layers: tuple[tuple[Indices, Indices], ...]
    found: tuple[str, ...]

    @property
    def count(self) -> int:
        """Return the number of groups, over all iterations."""
        return max((int(group.max()) + 1 for _, group in self.layers), default=0)


def find_barriers(job: JobTrace, ready: Seconds) -> Barriers:
    """Return the barriers of a job; ``ready`` is when each operation could have begun."""
    rows = job.rows[["step", "number", "optype", "dp_rank", "stage", "lane", "mc", "start_ts"]]
    rows = rows.assign(ready=ready, waits=rows["start_ts"] - ready)
    layers: list[tuple[Indices, Indices]] = []
    found: list[str] = []
    for kind in rows.loc[rows["waits"] > LONG_SECONDS, "optype"].unique():
        own = rows[rows["optype"] == kind]
        for scope in SCOPES:
            at = own[_held(own, COLUMNS_OF[scope])]
            if at.empty:
                continue
            joined = at.groupby(["step", "number", *COLUMNS_OF[scope]]).ngroup().to_numpy()
            first = Barriers(tuple(layers), ()).count
            layers.append((at.index.to_numpy(), joined + first))
            found += _names(str(kind), at[COLUMNS_OF[scope]])
            if scope == JOB:
                break
    return Barriers(tuple(layers), tuple(found))


def _held(own: pd.DataFrame, place: list[str]) -> pd.Series[bool]:
    """Return which of these operations a barrier of the workers of one place holds back."""
    latest = own.groupby(["step", "number", *place])["ready"].transform("max")
    passed = own["start_ts"] >= latest - ROUNDING_SECONDS
    seen = own[["waits"]].assign(passed=passed, kept=(latest - own["ready"]).clip(lower=0))
    # By group of workers, over all iterations; the whole job is one group.
    group = own.groupby(place).ngroup() if place else pd.Series(0, own.index)
    means = seen.groupby(group).mean()
    holds = (means["passed"] >= HOLDS) & (means["kept"] > LONG_SECONDS)
    holds &= means["kept"] >= EXPLAINS * means["waits"]
    return group.map(holds) & passed


def _names(kind: str, places: pd.DataFrame) -> list[str]:
    words = {"dp_rank": "data-parallel rank", "stage": "stage"}
    shown = [column for column in places if column in words]
    if not shown:
        return [f"before {kind}, all workers"]
    return [
        f"before {kind}, all of "
        + ", ".join(f"{words[column]} {value}" for column, value in row.items())
        for row in places[shown].drop_duplicates().to_dict("records")
    ]
