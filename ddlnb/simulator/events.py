"""Plays a program event by event: the seconds of an iteration, and the spans of timelines.

Two things go on at once. Workers compute their tasks one after the other; the network carries
messages through their stages. They meet in three places: a task makes messages ready, a task waits
for messages, and each may slow the other down while both are busy. Workers that do the same at the
same time are one class, and one of them stands for all (`ddlnb.simulator.workers`); where all are
alike there is one class.

What a class, a node or the cluster has of a stage is an instance of it. An instance asks for its
resource when the message has come from all whom it is for. One that takes parts serves the part of
each as it comes; a part that comes while its message is served joins it, so that those that come
together are served as one. The plain players of `tests/simulator` do the same with objects, and
tests hold them equal. Compiled code is cached on disk, so that it is compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.compiling import compiled
from ddlnb.errors import require
from ddlnb.results.timeline import Span
from ddlnb.simulator.program import Program, delayed
from ddlnb.simulator.tasks import Indices, Numbers, Waits
from ddlnb.simulator.workers import Wiring, wiring_of

MOST_ITERATIONS, MOST_OF_SEVERAL = 12, 24  # played until alike, of one class and of several
AHEAD = 8  # iterations that a class may be ahead of the slowest
STEADY = 1e-12  # of the period
ROOM = 256  # events for which there is room at first
MOST_SERVICES = 2_000_000  # messages in instances, a stated budget: some 300 MB

END_STEP, ARRIVE, OWN_PART, UPSTREAM = range(4)  # events: of a class, an edge, a service, a service
STEP, WAIT, MESSAGE = range(3)  # rows of the log


@dataclass(frozen=True)
class Seconds:
    """Seconds of one steady iteration, those in which the computation waited, and steadiness.

    An iteration is over when its last worker is; exposed seconds are a mean over workers. Where
    iterations do not become alike, seconds are a mean over all but the first.
    """

    iteration_seconds: float
    exposed_seconds: float
    is_steady: bool


class Stages(NamedTuple):
    """The stages of a program: a row for each, and a column for every message where it matters."""

    resource: Indices
    delay: Numbers
    latency: Numbers
    work: Numbers
    share: Numbers
    latency_share: Numbers
    streams: NDArray[np.bool_]
    parts: NDArray[np.bool_]


Prepared = tuple[Any, ...]


def play(program: Program) -> Seconds:
    """Return the seconds of a program.

    Raises InputError if there are too many messages for so many classes of workers.
    """
    return play_prepared(*prepared(program))


def spans(program: Program, iterations: int) -> list[Span]:
    """Return what every class of workers did in the first iterations, and when."""
    program = delayed(program)
    rows = 2 * len(program.tasks.steps) + len(program.messages)
    log = np.zeros((len(program.workers.classes) * (iterations + AHEAD) * rows, 6))
    arguments = (*_arrays(program, iterations)[0], log)
    *_, count = _play(*arguments)
    by_class = np.argsort(log[:count, 1], kind="stable")
    return [span for row in log[by_class] for span in _spans_of(program, row)]


def prepared(program: Program, rows: int = 1) -> list[Prepared]:
    """Return the program as the arrays that are played until iterations are steady: for every row.

    Seconds and shares of a program have several rows where a cluster's effects are columns.
    """
    return _arrays(delayed(program), program.workers.iterations or 0, rows)


def _arrays(program: Program, iterations: int, rows: int = 1) -> list[Prepared]:
    workers, tasks, stages = program.workers, program.tasks, program.stages
    wiring = wiring_of(
        tuple([stage.shape for stage in stages]),
        program.released,
        workers.classes,
        workers.nodes,
    )
    classes, messages = len(workers.classes), len(program.messages)
    services = len(wiring.stage) * messages
    require(
        services <= MOST_SERVICES,
        f"{messages:,} messages of {classes:,} workers that differ make {services:,} services, and "
        f"at most {MOST_SERVICES:,} are simulated; choose larger messages, or fewer workers that "
        f"differ",
    )
    resource, streams, parts = (
        np.array([getattr(stage, name) for stage in stages])
        for name in ("resource", "streams", "parts")
    )
    by_stage, by_message = (rows, len(stages), 1), (rows, len(stages), messages)
    return [
        (
            tasks.waits,
            *seconds,
            workers.factor,
            workers.delay,
            workers.shares,
            Stages(
                resource, delay[:, 0], latency, work, share, latency_share[:, 0], streams, parts
            ),
            wiring,
            program.message_bytes.astype(np.float64),
            tasks.by_priority if program.by_priority else np.arange(messages),
            program.by_priority,
            program.credit_bytes,
            program.released,
            program.drains and classes == 1,
            compute_share[0, 0],
            len(program.resources),
            iterations,
        )
        for seconds, delay, latency, work, share, latency_share, compute_share in zip(
            _rows(program.step_seconds, (rows, 2, len(tasks.steps))),
            _rows([stage.delay for stage in stages], by_stage),
            _rows([stage.latency for stage in stages], by_message),
            _rows([stage.work for stage in stages], by_message),
            _rows([stage.share for stage in stages], by_message),
            _rows([stage.latency_share for stage in stages], by_stage),
            _rows([program.compute_share], (rows, 1, 1)),
            strict=True,
        )
    ]


def _rows(values: Sequence[Numbers | float], shape: tuple[int, int, int]) -> Numbers:
    """Return values, each a number, a row or a column of numbers, as arrays of this shape."""
    found = np.empty(shape)
    for number, value in enumerate(values):
        found[:, number] = value
    return found


NO_LOG = np.zeros((0, 6))


def play_prepared(program: Prepared) -> Seconds:
    """Return the seconds of a program that is given as `prepared`."""
    arguments = (*program, NO_LOG)
    iteration, exposed, is_steady, _ = _play(*arguments)
    return Seconds(iteration, exposed, is_steady)


def _spans_of(program: Program, row: Numbers) -> Iterator[Span]:
    """Yield the spans of a row of the log; contention is shared out among the tasks of a step."""
    kind, number, index, iteration = map(int, row[:4])
    start, stop = map(float, row[4:])
    rank = program.workers.classes[number].rank
    if kind == MESSAGE:
        name, size = program.messages[index], int(program.message_bytes[index])
        yield Span(rank, "message", name, start, stop, iteration, size)
        return
    step = program.tasks.steps[index]
    listed = program.tasks.listed
    if kind == WAIT:
        yield Span(rank, "wait", listed[step[0]].name, start, stop, iteration)
        return
    own_seconds = program.class_seconds(number, iteration)[step.start : step.stop].tolist()
    slowed = (stop - start) / total if (total := sum(own_seconds)) else 1.0
    for task, own in zip(step, own_seconds, strict=True):
        end = stop if task == step[-1] else min(stop, start + own * slowed)
        if own:
            yield Span(rank, listed[task].kind, listed[task].name, start, end, iteration)
        start = end


@compiled()
def _left(
    latency: float, work: float, elapsed: float, latency_rate: float, rate: float
) -> tuple[float, float]:
    """What is left of latency and work after some seconds at these rates."""
    on_latency = min(elapsed, latency / latency_rate)
    return (
        max(0.0, latency - on_latency * latency_rate),
        max(0.0, work - (elapsed - on_latency) * rate),
    )


@compiled()
def _twice(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values in an array with room for twice as many."""
    return np.concatenate((values, np.empty_like(values)))


@compiled()
def _push(times: Numbers, tags: Indices, count: Indices, when: float, code: int) -> int:
    """Add an event to a heap and return its serial number; of events at one time the first leads.

    ``count`` are the events in the heap, and all that were ever added.
    """
    place = count[0]
    while place > 0 and times[(place - 1) >> 1] > when:
        above = (place - 1) >> 1
        times[place], tags[place, 0], tags[place, 1] = times[above], tags[above, 0], tags[above, 1]
        place = above
    count[0] += 1
    count[1] += 1
    times[place], tags[place, 0], tags[place, 1] = when, count[1], code
    serial: int = count[1]
    return serial


@compiled()
def _pop(times: Numbers, tags: Indices, count: Indices) -> tuple[float, int, int]:
    """Take the first event off the heap, and return its time, serial number and code."""
    found = times[0], tags[0, 0], tags[0, 1]
    count[0] -= 1
    end = count[0]
    when, serial, code = times[end], tags[end, 0], tags[end, 1]
    place, below = 0, 1
    while below < end:
        right = below + 1
        if right < end and (
            times[right] < times[below]
            or (times[right] == times[below] and tags[right, 0] < tags[below, 0])
        ):
            below = right
        if when < times[below] or (when == times[below] and serial < tags[below, 0]):
            break
        times[place], tags[place, 0], tags[place, 1] = times[below], tags[below, 0], tags[below, 1]
        place, below = below, 2 * below + 1
    times[place], tags[place, 0], tags[place, 1] = when, serial, code
    return found


@compiled()
def _note(
    log: Numbers, row: int, kind: int, c: int, index: int, iteration: int, start: float, stop: float
) -> int:
    """Write a row of the log if there is one left, and return the number of the next."""
    if row == len(log):
        return row
    log[row, 0], log[row, 1], log[row, 2], log[row, 3] = kind, c, index, iteration
    log[row, 4], log[row, 5] = start, stop
    return row + 1


@compiled()
def _are_alike(ends: Numbers, done: int) -> bool:
    """Whether the last two iterations of all classes took the same time."""
    least, most = np.inf, 0.0
    for c in range(len(ends)):
        for last in (done - 1, done):
            period = ends[c, last, 0] - ends[c, last - 1, 0]
            least, most = min(least, period), max(most, period)
    return most - least <= STEADY * most


@compiled()
def _mean(ends: Numbers, weights: Numbers, since: int, done: int) -> tuple[float, float]:
    """Seconds of an iteration, and those exposed, from the end of one to the end of another."""
    first, last, exposed = 0.0, 0.0, 0.0
    for c in range(len(ends)):
        first, last = max(first, ends[c, since, 0]), max(last, ends[c, done, 0])
        exposed += (ends[c, done, 1] - ends[c, since, 1]) * weights[c]
    return (last - first) / (done - since), exposed / (done - since)


@compiled()
def _play(
    waits: Waits,
    slowed_seconds: Numbers,
    fixed_seconds: Numbers,
    factor: Numbers,
    late: Numbers,
    weights: Numbers,
    stages: Stages,
    wiring: Wiring,
    size: Numbers,
    in_order: Indices,
    by_priority: bool,
    credit: float,
    released: int,
    drains: bool,
    compute_share: float,
    resources: int,
    wanted: int,
    log: Numbers,
) -> tuple[float, float, bool, int]:
    """Seconds of an iteration, those exposed, whether it is steady, and the rows of the log.

    A service is a message in an instance: message * instances + instance.
    """
    classes, messages, last_step = len(factor), len(size), len(slowed_seconds) - 1
    instances, edges, last_stage = len(wiring.stage), len(wiring.to), len(stages.delay) - 1
    services, units, senders = messages * instances, wiring.units, len(wiring.needed)
    codes = messages * max(instances, edges) + classes
    now, logged, known = 0.0, 0, 0
    # Events: a time, and (serial, kind * codes + number); a superseded one has an old serial.
    at_once = resources * units + 2 * classes  # events when computations begin or end
    times, tags = np.empty(ROOM + at_once), np.empty((ROOM + at_once, 2), np.int64)
    count = np.zeros(2, np.int64)
    # Classes: where they are in their steps, and what they wait for.
    step = np.zeros(classes, np.int64)
    iteration = np.zeros(classes, np.int64)
    step_event = np.zeros(classes, np.int64)
    computing = np.zeros(classes, np.bool_)
    left = np.zeros(classes)
    since = np.zeros(classes)
    speed = np.ones(classes)
    began = np.zeros(classes)
    waits_since = np.zeros(classes)
    exposed = np.zeros(classes)
    busy = np.zeros(classes, np.int64)  # instances at work
    awaited = np.zeros(classes, np.int64)
    is_awaited = np.zeros((classes, messages), np.bool_)
    is_done = np.ones((classes, messages), np.bool_)
    taken_at = np.zeros((classes, messages))
    made_in = np.zeros((classes, messages), np.int64)
    ends = np.zeros((classes, max(wanted, MOST_OF_SEVERAL) + AHEAD + 1, 2))
    # Senders: the messages that their classes have ready, and those under way.
    ready = np.zeros((senders, messages), np.int64)
    through = np.zeros((senders, messages), np.int64)
    following = np.zeros(senders, np.int64)
    flying = np.zeros(senders, np.int64)
    flying_bytes = np.zeros(senders)
    place_of = np.zeros(messages, np.int64)
    for place in range(messages):
        place_of[in_order[place]] = place
    # Services and resources.
    own_event = np.zeros(services, np.int64)
    latency_left = np.zeros(services)
    work_left = np.zeros(services)
    served_since = np.zeros(services)
    own_done = np.zeros(services, np.bool_)
    upstream = np.zeros(services, np.int64)  # edges whose stage before has not ended
    come = np.zeros(services, np.int64)
    parts_done = np.zeros(services, np.int64)
    is_queued = np.zeros(services, np.bool_)
    behind = np.full(services, -1, np.int64)
    serving = np.full(resources * units, -1, np.int64)
    head = np.full(resources * units, -1, np.int64)
    tail = np.full(resources * units, -1, np.int64)
    has_come = np.zeros((messages, edges), np.bool_)  # over an edge to the stage that releases
    computing_in = np.zeros(instances, np.int64)  # classes
    # What an event brings about: who begins a step, who may start messages, what comes where.
    beginning, beginners = np.arange(classes), classes
    starting, starters = np.zeros(edges + 1, np.int64), 0
    coming = np.zeros(edges + messages * senders + 1, np.int64)  # message * edges + edge

    while True:
        for k in range(beginners):
            c = beginning[k]
            awaited[c] = 0
            for i in range(waits.starts[step[c]], waits.starts[step[c] + 1]):
                m = waits.messages[i]
                if not is_done[c, m]:
                    is_awaited[c, m] = True
                    awaited[c] += 1
            goes_on = awaited[c] == 0
            if goes_on:
                began[c] = now
                column = min(iteration[c], factor.shape[1] - 1)
                left[c] = slowed_seconds[step[c]] * factor[c, column] + fixed_seconds[step[c]]
                if step[c] == 0:
                    left[c] += late[c, column]
            else:
                waits_since[c] = now
            if goes_on != computing[c]:  # what it slows down goes on at another rate
                for r in range(len(serving)):
                    q = serving[r]
                    if q < 0 or own_done[q]:
                        continue
                    m, i = q // instances, q % instances
                    if not wiring.low[i] <= c < wiring.high[i]:
                        continue
                    if computing_in[i] != (0 if goes_on else 1):
                        continue
                    s = wiring.stage[i]
                    slow = stages.latency_share[s], stages.share[s, m]
                    before, after = ((1.0, 1.0), slow) if goes_on else (slow, (1.0, 1.0))
                    latency_left[q], work_left[q] = _left(
                        latency_left[q], work_left[q], now - served_since[q], before[0], before[1]
                    )
                    served_since[q] = now
                    when = now + (latency_left[q] / after[0] + work_left[q] / after[1])
                    own_event[q] = _push(times, tags, count, when, OWN_PART * codes + q)
                for s in range(last_stage + 1):
                    computing_in[wiring.instance[s, c]] += 1 if goes_on else -1
                computing[c] = goes_on
            if goes_on:
                since[c] = now
                speed[c] = compute_share if busy[c] else 1.0
                when = now + left[c] / speed[c]
                step_event[c] = _push(times, tags, count, when, END_STEP * codes + c)
        if compute_share < 1.0:
            for c in range(classes):
                pace = compute_share if busy[c] else 1.0
                if computing[c] and pace != speed[c]:
                    left[c] = max(0.0, left[c] - (now - since[c]) * speed[c])
                    since[c] = now
                    speed[c] = pace
                    when = now + left[c] / pace
                    step_event[c] = _push(times, tags, count, when, END_STEP * codes + c)

        now, stamp, code = _pop(times, tags, count)
        kind, number = code // codes, code % codes
        beginners, starters, arrivals, leaving, serve_next = 0, 0, 0, -1, -1
        if kind == END_STEP:
            c, sender = number, wiring.instance[0, number]
            if stamp != step_event[c]:
                continue
            logged = _note(log, logged, STEP, c, step[c], iteration[c], began[c], now)
            for i in range(waits.ready_starts[step[c]], waits.ready_starts[step[c] + 1]):
                m = waits.ready_messages[i]
                is_done[c, m] = False
                made_in[c, m] = iteration[c]
                ready[sender, m] += 1
                if by_priority and ready[sender, m] == wiring.high[sender] - wiring.low[sender]:
                    following[sender] = min(following[sender], place_of[m])
            if step[c] < last_step:
                step[c] += 1
            else:
                step[c] = 0
                iteration[c] += 1
                kept = min(iteration[c], ends.shape[1] - 1)
                ends[c, kept, 0], ends[c, kept, 1] = now, exposed[c]
                done = iteration.min()
                if done > known:
                    known = done
                    is_steady = wanted == 0 and (drains or (done >= 3 and _are_alike(ends, done)))
                    most = MOST_ITERATIONS if classes == 1 else MOST_OF_SEVERAL
                    if is_steady or done == (wanted if wanted else most):
                        is_last = is_steady or (wanted == 0 and classes == 1)
                        mean = _mean(ends, weights, done - 1 if is_last else min(1, done - 1), done)
                        return mean[0], mean[1], is_steady, logged
            beginning[0], beginners = c, 1
            starting[0], starters = sender, 1
        elif kind == ARRIVE:
            coming[0], arrivals = number, 1
        elif kind == OWN_PART:
            if stamp != own_event[number]:
                continue
            own_done[number] = True
            i = number % instances
            for c in range(wiring.low[i], wiring.high[i]):
                busy[c] -= 1
            if upstream[number] == 0:
                leaving = number
        else:
            m, i = number // instances, number % instances
            upstream[number] -= 1
            r = stages.resource[wiring.stage[i], m] * units + wiring.unit[i]
            if serving[r] == number and own_done[number] and upstream[number] == 0:
                leaving = number

        if leaving >= 0:  # it gives the resource to the next in the queue, and goes on
            m, i = leaving // instances, leaving % instances
            s = wiring.stage[i]
            r = stages.resource[s, m] * units + wiring.unit[i]
            serving[r] = -1
            if head[r] >= 0:
                serve_next = head[r]
                head[r] = behind[serve_next]
            parts_done[leaving] += come[leaving]
            come[leaving] = 0
            is_through = parts_done[leaving] == wiring.into[i + 1] - wiring.into[i]
            if is_through:
                parts_done[leaving] = 0
                if s == last_stage:
                    for c in range(wiring.low[i], wiring.high[i]):
                        is_done[c, m] = True
                        began_at = taken_at[c, m]
                        logged = _note(log, logged, MESSAGE, c, m, made_in[c, m], began_at, now)
                        if is_awaited[c, m]:
                            is_awaited[c, m] = False
                            awaited[c] -= 1
                            if awaited[c] == 0:
                                exposed[c] += now - waits_since[c]
                                began_at = waits_since[c]
                                logged = _note(
                                    log, logged, WAIT, c, step[c], iteration[c], began_at, now
                                )
                                beginning[beginners] = c
                                beginners += 1
                elif not stages.streams[s + 1]:
                    for edge in range(wiring.out[i], wiring.out[i + 1]):
                        coming[arrivals] = m * edges + edge
                        arrivals += 1
            if s == released:  # senders whose messages are through everywhere get credit back
                for k in range(wiring.into[i], wiring.into[i + 1]):
                    edge = wiring.into_edge[k]
                    if not has_come[m, edge]:
                        continue
                    has_come[m, edge] = False
                    for sender in range(wiring.sender_low[edge], wiring.sender_high[edge]):
                        through[sender, m] += 1
                        if through[sender, m] == wiring.needed[sender]:
                            through[sender, m] = 0
                            flying[sender] -= 1
                            flying_bytes[sender] -= size[m]
                            starting[starters] = sender
                            starters += 1
        for k in range(starters):
            sender = starting[k]
            members = wiring.high[sender] - wiring.low[sender]
            while True:
                place = following[sender]
                if by_priority:
                    while place < messages and ready[sender, in_order[place]] < members:
                        place += 1
                    following[sender] = place
                    if place == messages:
                        break
                m = in_order[place]
                if ready[sender, m] < members:
                    break
                if flying[sender] > 0 and flying_bytes[sender] + size[m] > credit:
                    break
                ready[sender, m] = 0
                if not by_priority:
                    following[sender] = (place + 1) % messages
                flying[sender] += 1
                flying_bytes[sender] += size[m]
                coming[arrivals] = m * edges + sender
                arrivals += 1
        while len(times) < count[0] + (arrivals + 2) * (units + 1) + at_once:
            times, tags = _twice(times), _twice(tags)
        # First the next one in the queue that was left, then those that come.
        for k in range(-1, arrivals):
            if k < 0:
                q = serve_next
                if q < 0:
                    continue
            else:
                m, edge = coming[k] // edges, coming[k] % edges
                i = wiring.to[edge]
                q, s = m * instances + i, wiring.stage[i]
                r = stages.resource[s, m] * units + wiring.unit[i]
                work = stages.work[s, m] * wiring.link[i]
                if stages.parts[s] or not stages.streams[s]:
                    come[q] += 1
                    has_come[m, edge] = s == released
                if stages.parts[s]:
                    upstream[q] += 1
                    work *= wiring.weight[edge]
                    if is_queued[q]:
                        work_left[q] += work
                        continue
                    if serving[r] == q:
                        slowed = computing_in[i] > 0
                        latency_rate = stages.latency_share[s] if slowed else 1.0
                        rate = stages.share[s, m] if slowed else 1.0
                        if own_done[q]:
                            own_done[q] = False
                            latency_left[q], work_left[q] = 0.0, 0.0
                            for c in range(wiring.low[i], wiring.high[i]):
                                busy[c] += 1
                        else:
                            elapsed = now - served_since[q]
                            latency_left[q], work_left[q] = _left(
                                latency_left[q], work_left[q], elapsed, latency_rate, rate
                            )
                        served_since[q] = now
                        work_left[q] += work
                        when = now + (latency_left[q] / latency_rate + work_left[q] / rate)
                        own_event[q] = _push(times, tags, count, when, OWN_PART * codes + q)
                        continue
                elif not stages.streams[s] and come[q] < wiring.into[i + 1] - wiring.into[i]:
                    continue
                latency_left[q], work_left[q] = stages.latency[s, m], work
                own_done[q] = False
                if serving[r] >= 0:
                    is_queued[q] = True
                    behind[q] = -1
                    if head[r] < 0:
                        head[r] = q
                    else:
                        behind[tail[r]] = q
                    tail[r] = q
                    continue
            m, i = q // instances, q % instances
            s = wiring.stage[i]
            serving[stages.resource[s, m] * units + wiring.unit[i]] = q
            is_queued[q] = False
            served_since[q] = now
            for c in range(wiring.low[i], wiring.high[i]):
                busy[c] += 1
                if s == 0:
                    taken_at[c, m] = now
            slowed = computing_in[i] > 0
            latency_rate = stages.latency_share[s] if slowed else 1.0
            rate = stages.share[s, m] if slowed else 1.0
            when = now + (latency_left[q] / latency_rate + work_left[q] / rate)
            own_event[q] = _push(times, tags, count, when, OWN_PART * codes + q)
            if s < last_stage and stages.streams[s + 1]:
                for edge in range(wiring.out[i], wiring.out[i + 1]):
                    if not stages.parts[s + 1]:  # it asks when the last one has begun
                        j = wiring.to[edge]
                        following_q, expected = (
                            m * instances + j,
                            wiring.into[j + 1] - wiring.into[j],
                        )
                        if come[following_q] == 0:
                            upstream[following_q] = expected
                        come[following_q] += 1
                        has_come[m, edge] = s + 1 == released
                        if come[following_q] < expected:
                            continue
                    when = now + stages.delay[s + 1]
                    _push(times, tags, count, when, ARRIVE * codes + m * edges + edge)
        if leaving >= 0:
            m, i = leaving // instances, leaving % instances
            s = wiring.stage[i]
            if s < last_stage and stages.streams[s + 1]:
                when = now + stages.delay[s + 1]
                for edge in range(wiring.out[i], wiring.out[i + 1]):
                    q = m * instances + wiring.to[edge]
                    _push(times, tags, count, when, UPSTREAM * codes + q)
