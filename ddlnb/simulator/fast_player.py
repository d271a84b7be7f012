"""Plays a program as `player` does, compiled: no spans, only seconds, some hundred times faster.

The events and their order are those of the plain player, which explains them; this file only
keeps them in arrays. Compiled code is cached on disk, so that it is compiled once.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ddlnb.simulator.player import MOST_ITERATIONS, STEADY
from ddlnb.simulator.program import Program
from ddlnb.simulator.tasks import Identity, Indices, Numbers, Tasks

# Kinds of events.
END_STEP, ARRIVE, OWN_PART, UPSTREAM = range(4)


@dataclass(frozen=True)
class Seconds:
    """Seconds of one steady iteration, those in which the computation waited, and steadiness."""

    iteration_seconds: float
    exposed_seconds: float
    is_steady: bool


def play_fast(program: Program) -> Seconds:
    """Return the seconds of a program, as `player.play` finds them."""
    return play_arrays(arrays(program))


Arrays = tuple[Any, ...]


def arrays(program: Program) -> Arrays:
    """Return the program as the arrays that the compiled player takes."""
    layout = _layout(Identity((program.tasks,)))
    stages = program.stages
    return (
        program.step_seconds,
        layout.wait_start,
        layout.wait_message,
        layout.ready_start,
        layout.ready_message,
        np.stack([stage.resource for stage in stages]),
        np.array([stage.delay for stage in stages]),
        np.stack([stage.latency for stage in stages]),
        np.stack([stage.work for stage in stages]),
        np.stack([stage.shares for stage in stages]),
        np.array([stage.latency_share for stage in stages]),
        np.array([stage.streams for stage in stages]),
        program.message_bytes.astype(np.float64),
        program.priority,
        program.by_priority,
        program.credit_bytes,
        program.released,
        program.drains,
        program.compute_share,
        len(program.resources),
        MOST_ITERATIONS,
    )


@dataclass(frozen=True)
class _Layout:
    """The messages that steps wait for and make ready, each kind in one row."""

    wait_start: Indices
    wait_message: Indices
    ready_start: Indices
    ready_message: Indices


@lru_cache(maxsize=512)
def _layout(of: Identity) -> _Layout:
    tasks: Tasks = of.parts[0]
    waits = [tasks.listed[step[0]].waits_for for step in tasks.steps]
    readies = [tasks.listed[step[-1]].readies for step in tasks.steps]
    return _Layout(*_ragged(waits), *_ragged(readies))


def _ragged(rows: list[tuple[int, ...]]) -> tuple[Indices, Indices]:
    """Where each row starts in the joined rows, and the joined rows."""
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    starts[1:] = np.cumsum([len(row) for row in rows])
    return starts, np.array([value for row in rows for value in row], dtype=np.int64)


def play_arrays(program: Arrays) -> Seconds:
    """Return the seconds of a program that is given as `arrays`."""
    iteration, exposed, is_steady = _play(*program)
    return Seconds(float(iteration), float(exposed), bool(is_steady))


@njit(cache=True, nogil=True)
def _play(
    step_seconds: Numbers,
    wait_start: Indices,
    wait_message: Indices,
    ready_start: Indices,
    ready_message: Indices,
    resource_of: Indices,
    delay: Numbers,
    latency: Numbers,
    work: Numbers,
    share: Numbers,
    latency_share: Numbers,
    streams: NDArray[np.bool_],
    size: Numbers,
    priority: Indices,
    by_priority: bool,
    credit: float,
    released: int,
    drains: bool,
    compute_share: float,
    resources: int,
    most_iterations: int,
) -> tuple[float, float, bool]:
    messages, stages, steps = len(size), len(delay), len(step_seconds)
    passages = messages * stages  # a passage is message * stages + stage
    now, serial = 0.0, 0
    # (time, serial, kind * passages + passage); one that was superseded has an old serial.
    events = [(0.0, 0, 0)]
    events.pop()
    step_event = 0
    own_event = np.zeros(passages, np.int64)
    is_done = np.ones(messages, np.bool_)
    is_ready = np.zeros(messages, np.bool_)
    is_awaited = np.zeros(messages, np.bool_)
    awaited = following = flying = busy = step = iterations = 0
    flying_bytes = 0.0
    waiting = [(0, 0)]
    waiting.pop()
    head = np.full(resources, -1, np.int64)
    tail = np.full(resources, -1, np.int64)
    behind = np.full(passages, -1, np.int64)
    serving = np.full(resources, -1, np.int64)
    latency_left = np.zeros(passages)
    work_left = np.zeros(passages)
    since = np.zeros(passages)
    own_done = np.zeros(passages, np.bool_)
    upstream_done = np.zeros(passages, np.bool_)
    arriving = np.zeros(messages + 1, np.int64)
    computing, is_steady = False, False
    compute_left, compute_since, waiting_since, exposed = 0.0, 0.0, 0.0, 0.0
    end1, end2, end3, exposed1, exposed2 = 0.0, 0.0, 0.0, 0.0, 0.0
    begin_step, start_messages = True, False
    while True:
        if begin_step:
            begin_step = False
            awaited = 0
            for i in range(wait_start[step], wait_start[step + 1]):
                if not is_done[wait_message[i]]:
                    is_awaited[wait_message[i]] = True
                    awaited += 1
            go_on = awaited == 0
            if go_on:
                compute_left = step_seconds[step]
            else:
                waiting_since = now
            if go_on != computing:
                for r in range(resources):
                    p = serving[r]
                    if p >= 0 and not own_done[p]:
                        s = p % stages
                        elapsed = now - since[p]
                        since[p] = now
                        first = latency_share[s] if computing else 1.0
                        rate = share[s, p // stages] if computing else 1.0
                        part = min(elapsed, latency_left[p] / first)
                        latency_left[p] = max(0.0, latency_left[p] - part * first)
                        work_left[p] = max(0.0, work_left[p] - (elapsed - part) * rate)
                        first = latency_share[s] if go_on else 1.0
                        rate = share[s, p // stages] if go_on else 1.0
                        serial += 1
                        own_event[p] = serial
                        left = latency_left[p] / first + work_left[p] / rate
                        heapq.heappush(events, (now + left, serial, OWN_PART * passages + p))
                computing = go_on
            if go_on:
                compute_since = now
                serial += 1
                step_event = serial
                speed = compute_share if busy else 1.0
                heapq.heappush(events, (now + compute_left / speed, serial, END_STEP * passages))

        now, stamp, code = heapq.heappop(events)
        kind, p = code // passages, code % passages
        m, s = p // stages, p % stages
        leaving, arrivals = -1, 0
        busy_before = busy
        if kind == END_STEP:
            if stamp != step_event:
                continue
            for i in range(ready_start[step], ready_start[step + 1]):
                is_done[ready_message[i]] = False
                if by_priority:
                    heapq.heappush(waiting, (priority[ready_message[i]], ready_message[i]))
                else:
                    is_ready[ready_message[i]] = True
            step += 1
            if step == steps:
                step = 0
                iterations += 1
                end1, end2, end3 = end2, end3, now
                exposed1, exposed2 = exposed2, exposed
                if drains:
                    is_steady = True
                elif iterations >= 3:
                    is_steady = abs((end3 - end2) - (end2 - end1)) <= STEADY * (end3 - end2)
                if is_steady or iterations == most_iterations:
                    return end3 - end2, exposed2 - exposed1, is_steady
            begin_step = True
            start_messages = True
        elif kind == ARRIVE:
            arriving[0] = p
            arrivals = 1
        elif kind == OWN_PART:
            if stamp != own_event[p]:
                continue
            own_done[p] = True
            busy -= 1
            if upstream_done[p]:
                leaving = p
        else:
            upstream_done[p] = True
            if own_done[p]:
                leaving = p

        serve_next = -1
        if leaving >= 0:
            r = resource_of[s, m]
            serving[r] = -1
            if head[r] >= 0:
                serve_next = head[r]
                head[r] = behind[serve_next]
            if s + 1 == stages:
                is_done[m] = True
                if is_awaited[m]:
                    is_awaited[m] = False
                    awaited -= 1
                    if awaited == 0 and not computing:
                        exposed += now - waiting_since
                        begin_step = True
            elif not streams[s + 1]:
                arriving[0] = p + 1
                arrivals = 1
            if s == released:
                flying -= 1
                flying_bytes -= size[m]
                start_messages = True
        if start_messages:
            start_messages = False
            while True:
                if by_priority:
                    candidate = waiting[0][1] if len(waiting) > 0 else -1
                else:
                    candidate = following if is_ready[following] else -1
                if candidate < 0:
                    break
                if flying > 0 and flying_bytes + size[candidate] > credit:
                    break
                if by_priority:
                    heapq.heappop(waiting)
                else:
                    is_ready[following] = False
                    following = (following + 1) % messages
                flying += 1
                flying_bytes += size[candidate]
                arriving[arrivals] = candidate * stages
                arrivals += 1
        # First the next one in the queue that was left, then those that arrive.
        for i in range(-1, arrivals):
            if i < 0:
                q = serve_next
                if q < 0:
                    continue
            else:
                q = arriving[i]
                qm, qs = q // stages, q % stages
                if kind != ARRIVE:
                    latency_left[q] = latency[qs, qm]
                    work_left[q] = work[qs, qm]
                    own_done[q] = False
                    upstream_done[q] = not streams[qs]
                    if delay[qs] > 0.0:
                        serial += 1
                        heapq.heappush(events, (now + delay[qs], serial, ARRIVE * passages + q))
                        continue
                r = resource_of[qs, qm]
                if serving[r] >= 0:
                    behind[q] = -1
                    if head[r] < 0:
                        head[r] = q
                    else:
                        behind[tail[r]] = q
                    tail[r] = q
                    continue
            qm, qs = q // stages, q % stages
            serving[resource_of[qs, qm]] = q
            since[q] = now
            busy += 1
            serial += 1
            own_event[q] = serial
            first = latency_share[qs] if computing else 1.0
            rate = share[qs, qm] if computing else 1.0
            left = latency_left[q] / first + work_left[q] / rate
            heapq.heappush(events, (now + left, serial, OWN_PART * passages + q))
            if qs + 1 < stages and streams[qs + 1]:
                latency_left[q + 1] = latency[qs + 1, qm]
                work_left[q + 1] = work[qs + 1, qm]
                own_done[q + 1] = False
                upstream_done[q + 1] = False
                serial += 1
                when = now + delay[qs + 1]
                heapq.heappush(events, (when, serial, ARRIVE * passages + q + 1))
        if leaving >= 0 and s + 1 < stages and streams[s + 1]:
            serial += 1
            heapq.heappush(events, (now + delay[s + 1], serial, UPSTREAM * passages + p + 1))
        if compute_share < 1.0 and computing and not begin_step and (busy > 0) != (busy_before > 0):
            speed = compute_share if busy_before else 1.0
            compute_left = max(0.0, compute_left - (now - compute_since) * speed)
            compute_since = now
            serial += 1
            step_event = serial
            speed = compute_share if busy else 1.0
            heapq.heappush(events, (now + compute_left / speed, serial, END_STEP * passages))
