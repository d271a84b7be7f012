"""How late operations begin: launch delays that are typical, and pauses that are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.traces.jobs.barriers import LONG_SECONDS, Barriers
from ddlnb.traces.jobs.order import Order
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Indices, Seconds

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
    def of(cls, job: Job, order: Order, barriers: Barriers) -> Launches:
        """Return the launches of a job."""
        ready, binding = ready_and_binding(job, order)
        start = job.rows["start_ts"].to_numpy()
        names = job.rows["optype"].to_numpy()
        after = np.where(binding >= 0, names[binding], job.rows["worker"].astype(str))
        opens = ready.copy()
        for number, (members, group) in enumerate(barriers.layers()):
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


def ready_and_binding(job: Job, order: Order) -> tuple[Seconds, Indices]:
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
