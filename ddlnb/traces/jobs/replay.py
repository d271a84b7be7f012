"""A job as a graph that can be played again, with other durations.

Every operation begins when all that it waits for has ended, after the launch delay that is typical
of such operations, and lasts as long as its own work; a message or a collective does its work from
when the last of its peers has begun (arXiv 2505.05713, section 3.2). Work and typical delays come
from the trace; the instants do not, so that the replayed iteration times can be checked.

Clocks of workers that do not agree are set first, by what ends at the same instant on several of
them: a send and its receive, a collective on all that take part. From the median differences of
ends, the offset of every worker's clock follows in each iteration by least squares. Sends that end
early because they are buffered cancel out, as they go both ways between two stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ddlnb.errors import InputError
from ddlnb.traces.jobs.dependencies import (
    COLUMNS_OF,
    LONG_SECONDS,
    Barriers,
    Order,
    Peers,
    find_barriers,
    find_order,
    find_peers,
    message_numbers,
)
from ddlnb.traces.jobs.table import COLLECTIVE, DATA, KINDS, JobTrace, family_of, from_zero
from ddlnb.traces.longest_path import Cyclic, Dependencies, EarliestTimes, Indices, Seconds

AGREE_SECONDS = 2e-3  # ends of a collective may be as far apart as this without any clock


def with_agreeing_clocks(job: JobTrace, agree_seconds: float = AGREE_SECONDS) -> JobTrace:
    """Return the job on one clock; the same job if its clocks agree within these seconds."""
    pairs = _pairs(job)
    if pairs.empty:
        return job
    offsets = pd.Series(0.0, job.rows.index)
    for step, own in pairs.groupby("step"):
        is_step = job.rows["step"] == step
        by_worker = _offsets(own, job.workers)
        offsets[is_step] = by_worker[job.rows.loc[is_step, "worker"].to_numpy()]
    largest = float(offsets.abs().max())
    if largest <= agree_seconds:
        return job
    rows = job.rows.assign(
        start_ts=job.rows["start_ts"] - offsets, end_ts=job.rows["end_ts"] - offsets
    )
    return replace(job, rows=from_zero(rows), clocks_set_seconds=largest)


def _pairs(job: JobTrace) -> pd.DataFrame:
    """Return pairs of workers with the differences of ends of what should end at once."""
    rows = job.rows
    messages = message_numbers(rows, job.stages)
    found = [_of_groups(rows, messages)]
    for name in rows["optype"].unique():
        if family_of(name) == COLLECTIVE and DATA in KINDS[name].scopes[:1]:
            own = rows[rows["optype"] == name]
            keys = own.groupby(["step", "number", *COLUMNS_OF[DATA]], sort=False).ngroup()
            found.append(_of_groups(own, keys))
    return pd.concat(found)


def _of_groups(rows: pd.DataFrame, keys: pd.Series[int]) -> pd.DataFrame:
    """Return for every group the differences of the others' ends from that of the first."""
    own = rows.loc[keys.index, ["step", "worker", "end_ts", "optype"]].assign(key=keys)
    own = own.sort_values(["key", "optype"], kind="stable")
    first = own.groupby("key")[["worker", "end_ts"]].transform("first")
    pairs = pd.DataFrame(
        {
            "step": own["step"],
            "one": first["worker"],
            "other": own["worker"],
            "kind": own["optype"],
            "difference": own["end_ts"] - first["end_ts"],
        }
    )
    return pairs[pairs["one"] != pairs["other"]]


def _offsets(pairs: pd.DataFrame, workers: int) -> Seconds:
    """Return the offset of each worker's clock in one iteration; their mean is 0."""
    medians = pairs.groupby(["one", "other", "kind"], as_index=False)["difference"].median()
    matrix = np.zeros((len(medians) + 1, workers))
    every = np.arange(len(medians))
    matrix[every, medians["other"]] = 1.0
    matrix[every, medians["one"]] = -1.0
    matrix[-1] = 1.0
    differences = np.r_[medians["difference"], 0.0]
    return np.asarray(np.linalg.lstsq(matrix, differences, rcond=None)[0])


FEW = 5  # samples that make no median: a kind follows another one because something is missing


@dataclass(frozen=True)
class Launches:
    """Seconds from when each operation could have begun to when it did.

    ``typical`` are medians over the job, by kind and by the kind that was waited for, or by kind
    alone where that is rare; the first operation of a worker waits for nothing, its delay is
    typical of the worker. ``pauses`` are what
    traced delays have beyond the typical ones where that is long, and 0 elsewhere: a worker did
    nothing, and nothing that is recorded kept it (garbage collection, loading data, a hiccup).
    """

    traced: Seconds
    typical: Seconds
    pauses: Seconds

    @classmethod
    def of(cls, job: JobTrace, order: Order, barriers: Barriers) -> Launches:
        """Return the launches of a job."""
        ready, binding = ready_and_binding(job, order)
        start = job.rows["start_ts"].to_numpy()
        names = job.rows["optype"].to_numpy()
        after = np.where(binding >= 0, names[binding], job.rows["worker"].astype(str))
        opens = ready.copy()
        for number, (members, group) in enumerate(barriers.layers):
            open_at = pd.Series(ready[members]).groupby(group).transform("max").to_numpy()
            kept = open_at > np.maximum(opens[members], ready[members] + LONG_SECONDS)
            after[members[kept]] = f"barrier {number}"
            opens[members] = np.maximum(opens[members], open_at)
        traced = start - opens
        keys = pd.DataFrame({"kind": names, "after": after, "delay": traced})
        pairs = keys.groupby(["kind", "after"])["delay"]
        of_kind = keys.groupby("kind")["delay"].transform("median")
        is_rare = pairs.transform("size") < FEW
        typical = pairs.transform("median").where(~is_rare, of_kind).to_numpy()
        beyond = traced - typical
        return cls(traced, typical, np.where(beyond > LONG_SECONDS, beyond, 0.0))

    @property
    def replayed(self) -> Seconds:
        """The delays of a replay: the typical ones, and the pauses."""
        return self.typical + self.pauses


def ready_and_binding(job: JobTrace, order: Order) -> tuple[Seconds, Indices]:
    """Return when each operation could have begun, and which one it waited for last, -1 for none.

    Only operations of its own worker count.
    """
    start, end = job.rows["start_ts"].to_numpy(), job.rows["end_ts"].to_numpy()
    before = np.r_[order.before, order.during]
    after = np.r_[order.after, order.during_after]
    freed = np.r_[end[order.before], start[order.during] + order.during_lag]
    by_time = np.argsort(freed, kind="stable")
    binding = np.full(len(start), -1, dtype=np.int64)
    binding[after[by_time]] = before[by_time]
    ready = np.zeros(len(start))
    ready[after[by_time]] = freed[by_time]
    return ready, binding


@dataclass(frozen=True)
class Replay:
    """A job, what its operations wait for, and how to play it again.

    Nodes of ``graph`` are the starts of the operations in order of ``job.rows``, then their ends,
    then the instants when all peers of a group have begun, when a barrier opens, and when all that
    was posted together has its peers.
    """

    job: JobTrace
    peers: Peers
    order: Order
    barriers: Barriers

    @classmethod
    def of(cls, job: JobTrace) -> Replay:
        """Return the replay of a job. Raises InputError if its operations wait in a circle."""
        order = find_order(job)
        return cls(
            job, find_peers(job), order, find_barriers(job, ready_and_binding(job, order)[0])
        )

    @cached_property
    def graph(self) -> Dependencies:
        """The dependencies between starts and ends."""
        count, order, barriers = len(self.job.rows), self.order, self.barriers
        group, batch = self.peers.group, self.peers.batch
        every = np.arange(count)
        joined, alone = every[group >= 0], every[group < 0]
        hub = 2 * count + group[joined]
        last_hub = 2 * count + int(group.max(initial=-1)) + 1
        posted = (batch >= 0) & (group >= 0)
        whole = last_hub + barriers.count + batch[posted]
        edges = [
            (order.before + count, order.after),
            (order.during, order.during_after),
            (joined, hub),
            (hub, joined + count),
            (alone, alone + count),
            (2 * count + group[posted], whole),
            (whole, every[posted] + count),
        ]
        for members, number in barriers.layers:
            gate = np.full(count, -1, dtype=np.int64)
            gate[members] = last_hub + number
            held = gate[order.after] >= 0
            edges += [
                (order.before[held] + count, gate[order.after[held]]),
                (gate[members], members),
            ]
        before, after = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        lag = np.zeros(len(before))
        lag[len(order.before) : len(order.before) + len(order.during)] = order.during_lag
        nodes = last_hub + barriers.count + int(batch.max(initial=-1)) + 1
        return Dependencies(nodes, before, after, lag)

    @cached_property
    def player(self) -> EarliestTimes:
        """What computes instants from work and delays."""
        try:
            return EarliestTimes(self.graph)
        except Cyclic as error:
            row = self.job.rows.iloc[int(error.nodes[0]) % len(self.job.rows)]
            raise InputError(
                f"operations of job {self.job.name!r} wait for one another in a circle, such as "
                f"{row['optype']} of rank {row['rank']} in step {row['step']}; its numbering "
                f"(seq_id) contradicts its times"
            ) from error

    @cached_property
    def work(self) -> Seconds:
        """Seconds that each operation works once all of its peers have begun."""
        rows = self.job.rows
        group = pd.Series(self.peers.group, index=rows.index)
        batch = pd.Series(self.peers.batch, index=rows.index).where(group >= 0, -1)
        start = rows["start_ts"]
        latest = start.groupby(group).transform("max").where(group >= 0, start)
        latest = latest.groupby(batch).transform("max").where(batch >= 0, latest)
        seconds: Seconds = np.maximum(0.0, (rows["end_ts"] - latest).to_numpy())
        return seconds

    @cached_property
    def launches(self) -> Launches:
        """The delays of launching operations: traced, typical, and pauses beyond."""
        return Launches.of(self.job, self.order, self.barriers)

    def instants(self, work: Seconds, delays: Seconds) -> tuple[Seconds, Seconds]:
        """Return starts and ends of all operations, which work and are delayed so many seconds.

        Both are per operation, or scenarios by operations.
        """
        count = len(self.job.rows)
        groups = self.graph.nodes - 2 * count
        work, delays = np.broadcast_arrays(work, delays)
        weights = np.concatenate([delays, work, np.zeros((*work.shape[:-1], groups))], axis=-1)
        at = self.player(weights)
        return at[..., :count], at[..., count : 2 * count]

    def iteration_seconds(self, work: Seconds, delays: Seconds | None = None) -> Seconds:
        """Return the seconds of every iteration, per step or scenarios by steps.

        Delays are the typical ones and the pauses, unless others are given.
        """
        starts, ends = self.instants(work, self.launches.replayed if delays is None else delays)
        edges = np.flatnonzero(np.r_[True, np.diff(self.job.rows["step"]) != 0])
        first = np.minimum.reduceat(starts, edges, axis=-1)
        last: Seconds = np.maximum.reduceat(ends, edges, axis=-1)
        return last - first

    @cached_property
    def traced_seconds(self) -> Seconds:
        """Seconds of every iteration as traced."""
        by_step = self.job.rows.groupby("step", sort=False)
        seconds: Seconds = (by_step["end_ts"].max() - by_step["start_ts"].min()).to_numpy()
        return seconds
