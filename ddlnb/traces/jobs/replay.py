"""A job as a graph that can be played again, with other durations.

Every operation begins when all that it waits for has ended, after the launch delay that is typical
of such operations, and lasts as long as its own work; a message or a collective does its work from
when the last of its peers has begun (arXiv 2505.05713, section 3.2). Work and typical delays come
from the trace; the instants do not, so that the replayed iteration times can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ddlnb.errors import InputError
from ddlnb.traces.jobs.barriers import Barriers, find_barriers
from ddlnb.traces.jobs.launches import Launches, ready_and_binding
from ddlnb.traces.jobs.order import Order, find_order
from ddlnb.traces.jobs.peers import Peers, find_peers
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Cyclic, Dependencies, EarliestTimes, Seconds


@dataclass(frozen=True)
class Replay:
    """A job, what its operations wait for, and how to play it again.

    Nodes of ``graph`` are the starts of the operations in order of ``job.rows``, then their ends,
    then the instants when all peers of a group have begun, when a barrier opens, and when all that
    was posted together has its peers.
    """

    job: Job
    peers: Peers
    order: Order
    barriers: Barriers

    @classmethod
    def of(cls, job: Job) -> Replay:
        """Return the replay of a job. Raises InputError if its operations wait in a circle."""
        order = find_order(job)
        return cls(
            job, find_peers(job), order, find_barriers(job, ready_and_binding(job, order)[0])
        )

    @cached_property
    def graph(self) -> Dependencies:
        """The dependencies between starts and ends."""
        count, group, order, barriers = (
            len(self.job.rows),
            self.peers.group,
            self.order,
            self.barriers,
        )
        every = np.arange(count)
        joined, alone = every[group >= 0], every[group < 0]
        hub = 2 * count + group[joined]
        last_hub = 2 * count + int(group.max(initial=-1)) + 1
        batch = self.peers.batch
        posted = (batch >= 0) & (group >= 0)
        whole = last_hub + barriers.count + batch[posted]
        gate = np.full(count, -1, dtype=np.int64)
        edges = [
            (order.before + count, order.after),
            (order.during, order.during_after),
            (joined, hub),
            (hub, joined + count),
            (alone, alone + count),
            (2 * count + group[posted], whole),
            (whole, every[posted] + count),
        ]
        for members, number in barriers.layers():
            gate[:] = -1
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
