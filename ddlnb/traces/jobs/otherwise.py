"""A step of a profiled job, replayed with one thing otherwise.

The bandwidth is that of the part of a collective's seconds that grows with its bytes: a line
through its sizes, where it has two, else all of it. Without stragglers every rank computes as long
as the median one of the step, of two ranks the quicker. Gradients are all-reduces and reduce-
scatters: in one message they go when the last one is ready (BSP-A2A). A trace does not say when a
gradient within a message was ready: messages half as large take them to arrive evenly over the
computation before the message, of the first one at the pace of the others. Decoupled (DeAR, arXiv
2302.12445), half of every all-reduce is an all-gather at the start of the next step, before whose
end no gradient is sent; in a step that goes on for ever, that is its own start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.traces.jobs.dependencies import Barriers, Order, Peers
from ddlnb.traces.jobs.replay import Replay
from ddlnb.traces.jobs.table import COLLECTIVE, JobTrace
from ddlnb.traces.longest_path import Indices, Seconds

COMPUTE = "compute"  # what a rank does without waiting for a collective
TURN = ["step", "rank", "optype", "mc"]  # messages that follow one another


def what_ifs(replay: Replay) -> pd.DataFrame:
    """Return the mean seconds of a step in every case: what, seconds, and the share it saves."""
    rows, work = replay.job.rows, replay.work
    sends = (replay.job.family == COLLECTIVE).to_numpy()
    reduces = (rows["optype"] == "all_reduce").to_numpy()
    gradients = reduces | (rows["optype"] == "reduce_scatter").to_numpy()
    fixed = np.where(sends, np.minimum(work, _latencies(replay)), work)
    halved = np.where(gradients, (fixed + work) / 2, work)
    delays = replay.launches.traced

    def played(works: Seconds) -> float:
        return float(replay.iteration_seconds(works, delays).mean())

    seconds = {
        "as traced": played(work),
        "twice the bandwidth": played(np.where(sends, fixed + (work - fixed) / 2, work)),
        "ten times the bandwidth": played(np.where(sends, fixed + (work - fixed) / 10, work)),
        "no stragglers": played(work * np.where(sends, 1.0, _fair(rows))),
        "gradients in half the bytes": played(halved),
        "messages half as large": _in_halves(replay, gradients, halved),
        "messages twice as large": played(_gathered(rows, gradients, work, fixed, 2)),
        "all gradients in one message": played(_gathered(rows, gradients, work, fixed, len(work))),
        "all-reduces decoupled": _decoupled(replay, reduces, halved),
        "no communication": played(np.where(sends, 0.0, work)),
    }
    frame = pd.DataFrame({"what": list(seconds), "seconds": list(seconds.values())})
    return frame.assign(saves=1 - frame["seconds"] / float(replay.traced_seconds.mean()))


def _gathered(
    rows: pd.DataFrame, gradients: Any, work: Seconds, fixed: Seconds, count: int
) -> Seconds:
    """Return the work where so many messages of gradients in turn go with their last one."""
    own = rows[gradients]
    keys = [*(own[name] for name in TURN), own.groupby(TURN).cumcount() // count]
    sums = pd.DataFrame({"fixed": fixed, "rest": work - fixed})[gradients].groupby(keys)
    whole = sums["fixed"].transform("max") + sums["rest"].transform("sum")
    found = work.copy()
    found[own.index] = whole.where(sums.cumcount(ascending=False) == 0, 0.0)
    return found


def _in_halves(replay: Replay, gradients: Any, halved: Seconds) -> float:
    """Return the seconds where the first half of every bucket goes as soon as it is there."""
    rows, order, work = replay.job.rows, replay.order, replay.work
    leads = (rows["optype"] == COMPUTE).to_numpy()[order.before] & gradients[order.after]
    pieces, messages = order.before[leads], order.after[leads]
    sent = rows.iloc[messages].assign(pace=work[pieces] / rows["bytes"].to_numpy()[messages])
    later = sent[sent.groupby(["step", "rank"]).cumcount() > 0]
    pace = later.loc[later["bytes"] > 0, "pace"].median()
    arrives = np.minimum(work[pieces], np.nan_to_num(pace * sent["bytes"].to_numpy()))
    parts = np.unique(np.concatenate([pieces, messages]))
    early = np.arange(len(rows))
    early[parts] = len(rows) + np.arange(len(parts))  # the first parts come first
    first, second = work.copy(), work.copy()
    first[messages] = second[messages] = halved[messages]
    first[pieces], second[pieces] = work[pieces] - arrives / 2, arrives / 2
    edges = [
        (order.before[~leads], early[order.after[~leads]]),
        (early[pieces], early[messages]),
        (pieces, messages),
        (early[parts], parts),
    ]
    delays = replay.launches.traced
    rest = np.where(early < len(rows), delays, 0.0)
    return _with(replay, parts, np.r_[second, first[parts]], np.r_[rest, delays[parts]], edges)


def _decoupled(replay: Replay, reduces: Any, halved: Seconds) -> float:
    """Return the seconds where half of every all-reduce is an all-gather before the first one."""
    rows, order = replay.job.rows, replay.order
    turns = rows[reduces].groupby(TURN)
    firsts = np.flatnonzero(reduces)[turns.cumcount().to_numpy() == 0]
    sums = pd.Series(halved, rows.index)[reduces].groupby([rows[reduces][k] for k in TURN])
    gathers = sums.transform("sum")[firsts].to_numpy()
    of = np.full(len(rows), -1)
    of[firsts] = len(rows) + np.arange(len(firsts))
    leads = (rows["optype"] == COMPUTE).to_numpy()[order.before] & (of[order.after] >= 0)
    of[order.before[leads]] = of[order.after[leads]]  # what follows the forward pass waits, too
    waits = of[order.before] >= 0
    edges = [
        (order.before, order.after),
        (of[order.before[waits]], order.after[waits]),
        (of[firsts], firsts),
    ]
    work = np.r_[np.where(reduces, halved, replay.work), gathers]
    delays = np.r_[replay.launches.traced, np.zeros(len(firsts))]
    return _with(replay, firsts, work, delays, edges)


def _with(
    replay: Replay,
    more: Indices,
    work: Seconds,
    delays: Seconds,
    edges: Sequence[tuple[Indices, Indices]],
) -> float:
    """Return the mean seconds of a step with further operations, each with the peers of one."""
    rows, group = replay.job.rows, replay.peers.group
    of = np.concatenate([np.arange(len(rows)), more])
    apart = np.where(group[more] >= 0, group[more] + group.max(initial=-1) + 1, -1)
    by_step = np.argsort(rows["step"].to_numpy()[of], kind="stable")
    place = np.argsort(by_step)
    before, after = (place[np.concatenate(ends)] for ends in zip(*edges, strict=True))
    none = np.zeros(0, dtype=np.int64)
    played = Replay(
        JobTrace(replay.job.name, rows.iloc[of[by_step]].reset_index(drop=True)),
        Peers(np.r_[group, apart][by_step], np.full(len(of), -1), {}, 0, 0),
        Order(before, after, none, none, np.zeros(0)),
        Barriers((), ()),
    )
    return float(played.iteration_seconds(work[by_step], delays[by_step]).mean())


def _latencies(replay: Replay) -> Seconds:
    """Return the part of every collective's wire seconds that does not grow with its bytes."""
    rows = replay.job.rows.assign(work=replay.work)
    found = np.zeros(len(rows))
    for _, own in rows[replay.job.family == COLLECTIVE].groupby(["optype", "mc"]):
        typical = own.groupby("bytes")["work"].median()
        if len(typical) > 1:
            sizes, seconds = typical.index.to_numpy(float), typical.to_numpy()
            slope = np.polyfit(sizes, seconds, 1)[0]
            found[own.index] = max(0.0, float(np.min(seconds - max(0.0, slope) * sizes)))
    return found


def _fair(rows: pd.DataFrame) -> Seconds:
    own = rows[rows["optype"] == COMPUTE]
    totals = own.groupby(["step", "rank"])["duration"].sum()
    by_step = totals.groupby("step")
    fair = by_step.transform(lambda one: one.quantile(interpolation="lower")) / totals
    keys = pd.MultiIndex.from_frame(rows[["step", "rank"]])
    return np.asarray(np.minimum(1.0, fair.reindex(keys).fillna(1.0)))
