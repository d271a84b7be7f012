"""Which operations end together: messages between stages, and collectives of groups of workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.traces.jobs.kinds import (
    COLLECTIVE,
    DATA,
    JOB,
    KINDS,
    MESSAGES,
    PIPELINE,
    POINT_TO_POINT,
    TENSOR,
    family_of,
)
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Indices

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


def find_peers(job: Job) -> Peers:
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
