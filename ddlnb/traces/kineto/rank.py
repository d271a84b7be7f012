"""What one rank of a job computed and sent, from its trace by torch.profiler, step by step.

A collective is *hidden* while the rank computes, and *exposed* while it does not. On a GPU,
computing is any kernel that does not communicate. On the host a thread also computes between
operations, in Python: it waits only from the end of its last operation to the end of a collective
that ended before its next one, or so little later that it was noted late.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.traces.kineto.events import COLLECTIVES, GPU, Event, Recording
from ddlnb.traces.kineto.libraries import (
    COMPUTATION,
    PERHAPS,
    bytes_of,
    collective_of,
    count_in,
    library_of,
    work_of,
)
from ddlnb.traces.longest_path import Seconds
from ddlnb.units import US

KINDS = (COMPUTATION, "copies", "communication", PERHAPS)  # of kernels
# What only sends, or what calls hooks, in which DDP and FSDP wait.
NOT_WORK = re.compile(
    r"c10d::|record_param_comms|(gloo|nccl|mpi|ucc):"
    r"|autograd::engine::evaluate_function|RegisterPostBackwardFunction"
)
LAG, LAG_SHARE = 6e-3, 0.2  # as a slice of a busy core, 3 to 5 ms, makes the end of a wait late


@dataclass(frozen=True)
class Step:
    """An iteration by its number, and its window on the device.

    On a GPU it lasts from the end of the work before (`_windows`) to the end of its own.
    """

    number: int
    start: float
    stop: float


@dataclass(frozen=True)
class RankTrace:
    """One rank; seconds are from ``began``, an instant of its host's clock.

    ``sent`` has a row per collective: step, collective, library, group, group_ranks, bytes, thread,
    start_ts, end_ts and ``exposed``, seconds in which this rank did not compute; an instant counts
    once, for the collective that began first. ``busy`` are the spans in which an operation ran that
    computes, ``waits`` those in which the rank did nothing until a collective ended, with that
    collective's row. ``seconds`` has a row per step: seconds, computation, communication, exposed,
    copies, idle. ``unknown`` are the seconds of kernels that no registry knows.
    """

    name: str
    rank: int
    ranks: int
    device: str
    began: float
    steps: tuple[Step, ...]
    sent: pd.DataFrame
    busy: Seconds
    waits: tuple[tuple[float, float, int], ...]
    seconds: pd.DataFrame
    unknown: dict[str, float]


def rank_trace(trace: Recording) -> RankTrace:
    """Return what the rank of a recording computed and sent. Raises InputError without steps."""
    on_host = not trace.gpu
    sends = _sends(trace)
    works = _host_work(trace) if on_host else list(trace.gpu)
    numbers, bounds = _steps(trace)
    launched = np.array([_launch(trace, one) for one in works])
    step_of = np.searchsorted([start for start, _ in bounds], launched, side="right") - 1
    spans = np.array([(one.start, one.stop) for one in works]).reshape(-1, 2)
    kinds = np.array([0 if on_host else KINDS.index(_kind(one)) for one in works], dtype=int)
    begins = kinds != KINDS.index("copies")
    steps = _windows(numbers, bounds, spans, step_of, begins, on_host)
    sent = _sent(trace, sends, bounds, numbers)
    busy, all_busy = merged(spans[kinds == 0]), merged(spans)
    waits = tuple(_waits(busy, _noted_in_time(busy, sent) if on_host else sent))
    working = _working(steps, waits) if on_host else busy
    sent["exposed"] = _exposed(sent, working)
    rows = []
    in_step = np.argsort(step_of, kind="stable")
    parts = np.searchsorted(step_of[in_step], np.arange(len(steps) + 1))
    for place, step in enumerate(steps):
        at = in_step[parts[place] : parts[place + 1]]
        computed, copies, *others = (merged(spans[at[kinds[at] == k]]) for k in range(len(KINDS)))
        comm = merged(sent.loc[sent["step"] == step.number, ["start_ts", "end_ts"]].to_numpy())
        # What runs on beyond the end of its step may be hidden behind the next one.
        around = (step.start, step.stop) if on_host or not len(comm) else (comm[0, 0], comm[-1, 1])
        beside = _inside(working, *around)
        every = merged(np.concatenate([computed, copies, *others, comm]))
        occupied = length(every if on_host else _inside(all_busy, step.start, step.stop))
        rows.append(
            {
                "step": step.number,
                "seconds": step.stop - step.start,
                "computation": length(computed),
                "communication": length(comm),
                "exposed": length(merged(np.concatenate([comm, beside]))) - length(beside),
                "copies": length(copies),
                "idle": round(max(0.0, step.stop - step.start - occupied), 9),
            }
        )
    unknown: dict[str, float] = defaultdict(float)
    for one in () if on_host else works:
        is_other = one.category == "kernel" and not one.is_communication
        if is_other and work_of(one.name) != COMPUTATION:
            unknown[one.name] += one.seconds
    device = trace.device if trace.gpu else "CPU"
    about = (trace.name, trace.rank, trace.ranks, device, trace.began)
    return RankTrace(*about, steps, sent, busy, waits, pd.DataFrame(rows), dict(unknown))


def _sends(trace: Recording) -> list[Event]:
    """Return the collectives: kernels, and what libraries on the host did themselves."""
    own = [one for one in COLLECTIVES if one != "nccl:"]
    return [
        one
        for one in trace.events
        if one.is_communication and (one.category in GPU or one.name.startswith(tuple(own)))
    ]


def _host_work(trace: Recording) -> list[Event]:
    """Return the operations of the host that compute, the outermost of each thread.

    Those within a collective of their thread, as gloo's copies, are part of it.
    """
    found, until = [], dict[tuple[str, str], float]()
    for one in trace.events:
        is_work = one.category == "cpu_op" and not NOT_WORK.match(one.name)
        is_sent = one.is_communication and one.category == "user_annotation"
        if (is_work or is_sent) and one.start >= until.get(one.thread, -np.inf):
            until[one.thread] = one.stop
            found += [one] if is_work else []
    return found


def _kind(one: Event) -> str:
    if one.is_communication:
        return "communication"
    if one.category != "kernel":
        return "copies"
    return PERHAPS if work_of(one.name) == PERHAPS else COMPUTATION


def _launch(trace: Recording, one: Event) -> float:
    call = trace.launch(one) if one.category in GPU else None
    return call.start if call else one.start


def _steps(trace: Recording) -> tuple[list[int], list[tuple[float, float]]]:
    """Return the numbers of the steps, which ranks have in common, and their bounds on the host."""
    bounds = sorted(trace.iterations)
    marks = sorted(
        (one.start, int(number))
        for one in trace.events
        if one.category == "user_annotation"
        and (number := one.name.partition("ProfilerStep#")[2]).isdigit()
    )
    numbers = [number for _, number in marks] or list(range(len(bounds)))
    kept = [(n, b) for n, b in dict(zip(numbers, bounds, strict=True)).items()]
    require(bool(kept), f"{trace.name!r} has no step; record at least one whole iteration")
    return [n for n, _ in kept], [b for _, b in kept]


def _windows(
    numbers: Sequence[int],
    bounds: Sequence[tuple[float, float]],
    spans: Seconds,
    step_of: Any,
    begins: Any,
    on_host: bool,
) -> tuple[Step, ...]:
    """Return the steps: on a GPU each lasts from the end of the work before to that of its own.

    So a GPU that waits for its host before its first kernel waits in that step. Where work of two
    steps overlaps, the second begins with its first kernel; ``begins`` are those that are no
    copies, which a host makes ahead.
    """
    end = float(spans[:, 1].max()) if len(spans) else 0.0
    if on_host:
        ends = [stop if np.isfinite(stop) else end for _, stop in bounds]
        return tuple(
            Step(n, start, max(start, stop))
            for n, (start, _), stop in zip(numbers, bounds, ends, strict=True)
        )
    count = len(bounds)
    firsts, lasts = np.full(count, np.inf), np.full(count + 1, -np.inf)
    kernels = (step_of >= 0) & begins
    np.minimum.at(firsts, step_of[kernels], spans[kernels, 0])
    np.maximum.at(lasts, step_of + 1, spans[:, 1])  # first what was launched before any step
    ended = np.maximum.accumulate(lasts)
    firsts = np.where(np.isfinite(firsts), firsts, np.maximum(ended[:-1], bounds[0][0]))
    starts = np.minimum(firsts, ended[:-1])
    # What ran before the first step, or before one whose predecessor is missing, was not recorded:
    # assume the usual wait before its first kernel.
    follows = np.r_[False, np.diff(numbers) == 1] & np.isfinite(ended[:-1])
    usual = float(np.median((firsts - starts)[follows])) if follows.any() else 0.0
    begun = np.minimum([start for start, _ in bounds], firsts)
    apart = np.maximum.reduce([firsts - usual, np.minimum(ended[:-1], firsts), begun])
    starts = np.where(follows, starts, apart)
    stops = np.r_[np.minimum(starts[1:], ended[1:-1]), ended[-1]]
    return tuple(
        Step(n, float(start), max(float(start), float(stop)))
        for n, start, stop in zip(numbers, starts, stops, strict=True)
    )


def _sent(
    trace: Recording,
    sends: Sequence[Event],
    bounds: Sequence[tuple[float, float]],
    numbers: Sequence[int],
) -> pd.DataFrame:
    notes: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for one in trace.events:
        if one.category == "user_annotation" and one.name.startswith("nccl:"):
            notes[one.thread].append(one)
    starts = [start for start, _ in bounds]
    rows = []
    for one in sends:
        args = dict(one.args)
        call = trace.launch(one) if one.category in GPU else None
        note = _around(notes[call.thread], call.start) if call else None
        named = str(args.get("Collective name") or (note.name if note else one.name))
        if "In msg nelems" not in args and note is not None:
            args |= note.args
        place = bisect_right(starts, call.start if call else one.start) - 1
        group = str(args.get("Process Group Name", ""))
        ranks = _ranks_of(trace, args, group)
        collective = collective_of(named)
        if collective == "sendrecv":  # of two ranks; without both it has no peer
            ends = [count_in(args, key) for key in ("Src Rank", "Dst Rank") if key in args]
            ranks = tuple(ends) if len(ends) == 2 else (trace.rank,)
        is_part = collective == "all_gather" and "In msg nelems" not in args
        size = count_in(args, "Group size") or len(ranks) or trace.ranks
        rows.append(
            {
                "step": numbers[place] if place >= 0 else -1,
                "collective": collective,
                "library": library_of(one.name) or one.name.partition(":")[0],
                "group": group,
                "group_ranks": ranks,
                "size": size,
                "bytes": bytes_of(args) * (size if is_part else 1),
                "thread": "/".join(one.thread),
                "start_ts": one.start,
                "end_ts": one.stop,
            }
        )
    columns = ("step", "collective", "library", "group", "group_ranks", "size", "bytes", "thread")
    return pd.DataFrame(rows, columns=[*columns, "start_ts", "end_ts"])


def _ranks_of(trace: Recording, args: dict[str, Any], group: str) -> tuple[int, ...]:
    """Return the ranks of a group: as the header has them, else as NCCL's arguments do."""
    if group in trace.groups:
        return trace.groups[group]
    listed = str(args.get("Process Group Ranks", ""))
    return () if "..." in listed else tuple(int(n) for n in re.findall(r"\d+", listed))


def _around(notes: Sequence[Event], at: float) -> Event | None:
    place = bisect_right(notes, at, key=lambda one: one.start) - 1
    return notes[place] if place >= 0 and at <= notes[place].stop else None


def _waits(busy: Seconds, sent: pd.DataFrame) -> Iterator[tuple[float, float, int]]:
    """Yield the gaps between operations in which collectives ended, up to the last such end."""
    starts, ends = (sent[name].to_numpy(float) for name in ("start_ts", "end_ts"))
    place = np.searchsorted(busy[:, 0], ends - US, side="right") - 1  # times are rounded to US
    within = (place >= 0) & (ends > busy[np.maximum(place, 0), 1]) if len(busy) else ends < 0
    for gap in np.unique(place[within]):
        own = np.flatnonzero(within & (place == gap))
        last = own[np.argmax(ends[own])]
        until = float(min(ends[last], busy[gap + 1, 0] if gap + 1 < len(busy) else np.inf))
        yield min(until, max(busy[gap, 1], starts[own].min())), until, int(last)


def _noted_in_time(busy: Seconds, sent: pd.DataFrame) -> pd.DataFrame:
    """Return what a host sent, with ends that were noted late as whoever waited for them went on.

    A thread that notes the end of its collective may have to wait for a core. Up to `LAG` seconds,
    and `LAG_SHARE` of the gap before, an end within an operation is the end of that gap.
    """
    if not len(busy):
        return sent
    starts, ends = (sent[name].to_numpy(float) for name in ("start_ts", "end_ts"))
    gaps = busy[1:, 0] - busy[:-1, 1]
    found = ends.copy()
    first = np.searchsorted(busy[1:, 0], ends - LAG, side="right")
    last = np.searchsorted(busy[1:, 0], ends, side="left")
    place = np.searchsorted(busy[:, 0], ends, side="left") - 1
    within = (place >= 0) & (ends <= busy[np.maximum(place, 0), 1])  # an operation
    for number in np.flatnonzero((last > first) & within):
        gap = first[number] + int(np.argmax(gaps[first[number] : last[number]]))
        went_on = busy[gap + 1, 0]
        if starts[number] < went_on and ends[number] - went_on < LAG_SHARE * gaps[gap]:
            found[number] = went_on
    return sent.assign(end_ts=found)


def _working(steps: Sequence[Step], waits: Sequence[tuple[float, float, int]]) -> Seconds:
    """Return the spans in which a host does not wait, over all of its steps."""
    cuts = sorted((start, stop) for start, stop, _ in waits)
    at = min((step.start for step in steps), default=0.0)
    spans = []
    for start, stop in cuts:
        spans.append((at, start))
        at = max(at, stop)
    spans.append((at, max([at, *(step.stop for step in steps)])))
    return merged(np.array([(a, b) for a, b in spans if b > a]).reshape(-1, 2))


def _exposed(sent: pd.DataFrame, working: Seconds) -> Seconds:
    starts, ends = sent["start_ts"].to_numpy(float), sent["end_ts"].to_numpy(float)
    reached = np.maximum.accumulate(np.r_[-np.inf, ends[:-1]]) if len(ends) else starts
    first = np.minimum(np.maximum(starts, reached), ends)
    hidden = covered(working, ends) - covered(working, first)
    return np.asarray(np.maximum(0.0, ends - first - hidden))


def _inside(spans: Seconds, start: float, stop: float) -> Seconds:
    cut = np.clip(spans, start, stop)
    return cut[cut[:, 1] > cut[:, 0]]


def merged(spans: Seconds) -> Seconds:
    """Return the union of spans, (n, 2), in order and apart.

    >>> merged(np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 2.5]])).tolist()
    [[0.0, 2.5], [3.0, 4.0]]
    """
    if not len(spans):
        return np.zeros((0, 2))
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reached = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.r_[True, spans[1:, 0] > reached[:-1]])
    return np.stack([spans[first, 0], np.maximum.reduceat(reached, first)], axis=1)


def length(spans: Seconds) -> float:
    """Return the seconds of spans that are apart."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def covered(spans: Seconds, at: Seconds) -> Seconds:
    """Return the seconds of spans that are apart and in order, up to each instant."""
    if not len(spans):
        return np.zeros_like(at)
    before = np.r_[0.0, np.cumsum(spans[:, 1] - spans[:, 0])]
    place = np.searchsorted(spans[:, 0], at, side="right")
    last = spans[np.maximum(place - 1, 0), 1]
    return np.asarray(before[place] - np.where(place > 0, np.maximum(0.0, last - at), 0.0))
