"""A program of unlike workers as arrays of records, on which its compiled player plays.

Lists of numbers are joined into one array, ``lists``; a record says from where to where its own
are. A passage is a message in a copy of a stage, in row message and column copy.

From the ends of iterations of unlike workers to the seconds of one.

Plays unlike workers as `player` of this package does, compiled: only seconds, and no spans.

The events and their order are those of the plain player, which explains them, and so are the names
of functions; this file only keeps them on a board of arrays. Compiled code is cached on disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ddlnb.simulator.fast_player import Seconds
from ddlnb.simulator.player import STEADY
from ddlnb.simulator.tasks import Indices, Numbers
from ddlnb.simulator.workers import MOST_ITERATIONS, UnlikeProgram

AHEAD = 8  # iterations that a lane may be ahead of the slowest

_WHOLE, _REAL, _TRUTH = np.int64, np.float64, np.bool_
Records = NDArray[np.void]


def _record(whole: str = "", real: str = "", truth: str = "") -> np.dtype[np.void]:
    kinds = ((whole, _WHOLE), (real, _REAL), (truth, _TRUTH))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()])


RULES = _record("released wanted most codes serial", "credit compute_share now", "by_priority")
STEP = _record("waits waits_end readies readies_end", "slowed fixed")
STAGE = _record("copies", "delay latency_share", "streams parts")
COPY = _record("stage lanes lanes_end into into_end out out_end computing", "", "streams_on")
EDGE = _record("to of of_end source", "weight")
LANE = _record(
    "sender copies copies_end step iteration event busy",
    "left since speed waiting_since exposed",
    "computing",
)
SENDER = _record("lanes following flying", "flying_bytes")
MESSAGE = _record("place at_place", "size")
PASSAGE = _record(
    "resource event upstream come parts_done behind through",
    "latency work share latency_left work_left since",
    "is_queued own_done",
)
RESOURCE = _record("serving head tail")


class Board(NamedTuple):
    """All that is known and all that changes.

    ``pace`` holds factor and delay by lane and iteration, ``ends`` when an iteration of a lane
    ended, and the seconds waited by then; ``is_done`` is by lane and message, ``ready`` by sender
    and message, ``joined`` by message and edge.
    """

    rules: Any
    lists: Any
    steps: Any
    stages: Any
    copies: Any
    edges: Any
    lanes: Any
    senders: Any
    messages: Any
    passages: Any
    resources: Any
    pace: Any
    ends: Any
    is_done: Any
    ready: Any
    joined: Any


class _Lists:
    """Lists of numbers joined into one."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def add(self, rows: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Join rows, and return where each starts and ends."""
        starts, ends = [], []
        for row in rows:
            starts.append(len(self._numbers))
            self._numbers += row
            ends.append(len(self._numbers))
        return starts, ends

    def joined(self) -> Indices:
        """Return all numbers."""
        return np.array(self._numbers, dtype=np.int64)


def board_of(program: UnlikeProgram) -> Board:
    """Return the board before the first event."""
    base, copies, team = program.program, program.copies, program.team
    lanes, messages, lists = len(team.lanes), len(base.messages), _Lists()
    wanted = team.iterations or 0
    many = messages * max(len(copies.stage), len(copies.to)) + lanes
    rules = _records(
        RULES,
        1,
        released=base.released,
        wanted=wanted,
        most=MOST_ITERATIONS,
        codes=many,
        credit=base.credit_bytes,
        compute_share=base.compute_share,
        by_priority=base.by_priority,
    )
    steps, edges = _steps(program, lists), _edges(program, lists)
    places = _places(program)
    return Board(
        rules=rules,
        steps=steps,
        stages=_stages(program),
        copies=_copies(program, lists),
        edges=edges,
        lanes=_lanes(program, lists),
        senders=_records(SENDER, len(copies.senders), lanes=list(map(len, copies.senders))),
        messages=_records(
            MESSAGE, messages, place=np.argsort(places), at_place=places, size=base.message_bytes
        ),
        passages=_passages(program),
        resources=_records(RESOURCE, copies.resources, serving=-1, head=-1, tail=-1),
        pace=np.stack([team.factor, team.delay], axis=2),
        ends=np.zeros((lanes, max(wanted, MOST_ITERATIONS) + AHEAD, 2)),
        is_done=np.ones((lanes, messages), dtype=_TRUTH),
        ready=np.zeros((len(copies.senders), messages), dtype=_WHOLE),
        joined=np.zeros((messages, len(copies.to)), dtype=_TRUTH),
        lists=lists.joined(),
    )


def _records(kind: np.dtype[np.void], count: int, **values: Any) -> Records:
    records = np.zeros(count, dtype=kind)
    for name, value in values.items():
        records[name] = value
    return records


def _steps(program: UnlikeProgram, lists: _Lists) -> Records:
    tasks = program.program.tasks
    waits, waits_end = lists.add(tasks.listed[step[0]].waits_for for step in tasks.steps)
    readies, readies_end = lists.add(tasks.listed[step[-1]].readies for step in tasks.steps)
    return _records(
        STEP,
        len(tasks.steps),
        waits=waits,
        waits_end=waits_end,
        readies=readies,
        readies_end=readies_end,
        slowed=program.program.step_seconds,
        fixed=program.fixed_steps,
    )


def _stages(program: UnlikeProgram) -> Records:
    stages = program.program.stages
    names = ("delay", "latency_share", "streams", "parts")
    values = {name: [getattr(stage, name) for stage in stages] for name in names}
    return _records(STAGE, len(stages), copies=np.diff(program.copies.first), **values)


def _copies(program: UnlikeProgram, lists: _Lists) -> Records:
    copies, stages = program.copies, program.program.stages
    streams = [*(stage.streams for stage in stages[1:]), False]
    found: dict[str, Any] = {}
    for name in ("lanes", "into", "out"):
        found[name], found[f"{name}_end"] = lists.add(getattr(copies, name))
    streams_on = [streams[stage] for stage in copies.stage]
    return _records(COPY, len(copies.stage), stage=copies.stage, streams_on=streams_on, **found)


def _edges(program: UnlikeProgram, lists: _Lists) -> Records:
    copies = program.copies
    source = np.full(len(copies.to), -1)
    for copy, edges in enumerate(copies.out):
        source[list(edges)] = copy
    senders = [sorted({_sender(program, lane) for lane in lanes}) for lanes in copies.of]
    of, of_end = lists.add(senders)
    return _records(
        EDGE, len(source), to=copies.to, weight=copies.weight, source=source, of=of, of_end=of_end
    )


def _lanes(program: UnlikeProgram, lists: _Lists) -> Records:
    count = len(program.team.lanes)
    through = [
        [copy for copy, members in enumerate(program.copies.lanes) if lane in members]
        for lane in range(count)
    ]
    copies, copies_end = lists.add(through)
    senders = [_sender(program, lane) for lane in range(count)]
    return _records(LANE, count, sender=senders, copies=copies, copies_end=copies_end, speed=1.0)


def _sender(program: UnlikeProgram, lane: int) -> int:
    return next(n for n, lanes in enumerate(program.copies.senders) if lane in lanes)


def _places(program: UnlikeProgram) -> Indices:
    """Return the messages in the order in which those that are ready start."""
    base = program.program
    if not base.by_priority:
        return np.arange(len(base.messages))
    return np.argsort(base.priority, kind="stable")


def _passages(program: UnlikeProgram) -> Records:
    copies = program.copies
    records = np.zeros(copies.work.T.shape, dtype=PASSAGE)
    stages = program.program.stages
    share = np.stack([stages[stage].shares for stage in copies.stage])
    values: dict[str, Numbers | Indices] = {
        "latency": copies.latency, "work": copies.work, "resource": copies.resource, "share": share
    }  # fmt: skip
    for name, value in values.items():
        records[name] = value.T
    return records


def seconds_of(
    ends: Sequence[Sequence[tuple[float, float]]], counts: Numbers, is_steady: bool
) -> Seconds:
    """Return the seconds of the last iteration if iterations are steady, else a mean.

    ``ends`` are those of every lane: when an iteration ended, and the seconds waited by then;
    ``counts`` is how many workers each lane stands for. An iteration is over when its last worker
    is; exposed seconds are a mean over workers. The mean leaves the first iteration out.
    """
    done = min(map(len, ends))
    times = np.array([[(0.0, 0.0), *one[:done]] for one in ends])  # lane, iteration, kind
    last = times[:, :, 0].max(axis=0)
    waited = np.average(times[:, :, 1], axis=0, weights=counts)
    since = done - 1 if is_steady else min(1, done - 1)
    count = done - since
    return Seconds(
        float(last[-1] - last[since]) / count,
        float(waited[-1] - waited[since]) / count,
        is_steady,
    )


def are_steady(ends: Sequence[Sequence[float]]) -> bool:
    """Whether the last two iterations of all lanes took the same time."""
    if min(map(len, ends)) < 3:
        return False
    periods = np.diff(np.array([one[-3:] for one in ends]), axis=1)
    return bool(np.ptp(periods) <= STEADY * periods.max())


# Kinds of events: of a lane, of an edge and a message, of a passage, of an edge and a message.
END_STEP, ARRIVE, OWN_PART, UPSTREAM = range(4)
Events = Any


def play_unlike_fast(program: UnlikeProgram) -> Seconds:
    """Return the seconds of a program, as `play_unlike` finds them."""
    board = board_of(program)
    steady = bool(_play(board))
    done = int(board.lanes["iteration"].min())
    return seconds_of(board.ends[:, :done].tolist(), program.team.counts, steady)


@njit(cache=True, nogil=True)
def _play(b: Board) -> bool:
    """Play until the iterations wanted are over, or until they are steady; say if they are."""
    events = [(0.0, 0, 0)]
    events.pop()
    rules, known = b.rules[0], 0
    for lane in range(len(b.lanes)):
        _begin_step(b, events, lane)
    while True:
        now, stamp, code = heapq.heappop(events)
        rules.now = now
        kind, number = code // rules.codes, code % rules.codes
        message, other = number // len(b.edges), number % len(b.edges)
        if kind == END_STEP:
            if stamp == b.lanes[number].event:
                _end_step(b, events, number)
        elif kind == ARRIVE:
            _arrive(b, events, other, message)
        elif kind == OWN_PART:
            message, other = number // len(b.copies), number % len(b.copies)
            if stamp == b.passages[message, other].event:
                _own_part_ends(b, events, message, other)
        else:
            _upstream_ends(b, events, other, message)
        if rules.compute_share < 1.0:
            _follow_network(b, events)
        if kind != END_STEP:
            continue
        done = b.lanes[0].iteration
        for lane in b.lanes:
            done = min(done, lane.iteration)
        if done > known:
            known = done
            if rules.wanted > 0:
                if done >= rules.wanted:
                    return False
            elif _is_steady(b, done):
                return True
            elif done >= rules.most:
                return False


@njit(cache=True, nogil=True)
def _is_steady(b: Board, done: int) -> bool:
    if done < 3:
        return False
    least, most = np.inf, 0.0
    for lane in range(len(b.lanes)):
        for number in (done - 2, done - 1):
            period = b.ends[lane, number, 0] - b.ends[lane, number - 1, 0]
            least, most = min(least, period), max(most, period)
    return most - least <= STEADY * most


@njit(cache=True, nogil=True)
def _at(b: Board, events: Events, when: float, kind: int, number: int) -> int:
    b.rules[0].serial += 1
    heapq.heappush(events, (when, b.rules[0].serial, kind * b.rules[0].codes + number))
    serial: int = b.rules[0].serial
    return serial


# Computation.


@njit(cache=True, nogil=True)
def _can_go_on(b: Board, lane: int) -> bool:
    step = b.steps[b.lanes[lane].step]
    for i in range(step.waits, step.waits_end):  # noqa: SIM110 (generators are not compiled)
        if not b.is_done[lane, b.lists[i]]:
            return False
    return True


@njit(cache=True, nogil=True)
def _begin_step(b: Board, events: Events, number: int) -> None:
    lane = b.lanes[number]
    if not _can_go_on(b, number):
        lane.waiting_since = b.rules[0].now
        return
    step, column = b.steps[lane.step], min(lane.iteration, b.pace.shape[1] - 1)
    lane.since = b.rules[0].now
    lane.left = step.slowed * b.pace[number, column, 0] + step.fixed
    if lane.step == 0:
        lane.left += b.pace[number, column, 1]
    _set_computing(b, events, number, True)
    _schedule_step(b, events, number)


@njit(cache=True, nogil=True)
def _schedule_step(b: Board, events: Events, number: int) -> None:
    lane = b.lanes[number]
    lane.speed = b.rules[0].compute_share if lane.busy else 1.0
    lane.event = _at(b, events, b.rules[0].now + lane.left / lane.speed, END_STEP, number)


@njit(cache=True, nogil=True)
def _end_step(b: Board, events: Events, number: int) -> None:
    lane = b.lanes[number]
    step, sender = b.steps[lane.step], b.senders[lane.sender]
    for i in range(step.readies, step.readies_end):
        message = b.lists[i]
        b.is_done[number, message] = False
        b.ready[lane.sender, message] += 1
        if b.rules[0].by_priority and b.ready[lane.sender, message] == sender.lanes:
            sender.following = min(sender.following, b.messages[message].place)
    lane.step += 1
    if lane.step == len(b.steps):
        kept = min(lane.iteration, b.ends.shape[1] - 1)
        b.ends[number, kept, 0] = b.rules[0].now
        b.ends[number, kept, 1] = lane.exposed
        lane.step = 0
        lane.iteration += 1
    _start_what_may(b, events, lane.sender)
    if not _can_go_on(b, number):
        _set_computing(b, events, number, False)
    _begin_step(b, events, number)


@njit(cache=True, nogil=True)
def _set_computing(b: Board, events: Events, number: int, computing: bool) -> None:
    lane = b.lanes[number]
    if computing == lane.computing:
        return
    lane.computing = computing
    change, alone = (1, 0) if computing else (-1, 1)
    for again in range(2):
        for resource in b.resources:
            message, copy = resource.serving // len(b.copies), resource.serving % len(b.copies)
            if resource.serving < 0 or b.passages[message, copy].own_done:
                continue
            before = b.copies[copy].computing - again * change
            if before != alone or not _has_lane(b, copy, number):
                continue
            if again:
                _schedule(b, events, message, copy)
            else:
                _catch_up(b, message, copy)
        if not again:
            for i in range(lane.copies, lane.copies_end):
                b.copies[b.lists[i]].computing += change


@njit(cache=True, nogil=True)
def _has_lane(b: Board, copy: int, lane: int) -> bool:
    for i in range(b.copies[copy].lanes, b.copies[copy].lanes_end):  # noqa: SIM110
        if b.lists[i] == lane:
            return True
    return False


@njit(cache=True, nogil=True)
def _follow_network(b: Board, events: Events) -> None:
    for number in range(len(b.lanes)):
        lane = b.lanes[number]
        speed = b.rules[0].compute_share if lane.busy else 1.0
        if lane.computing and speed != lane.speed:
            lane.left = max(0.0, lane.left - (b.rules[0].now - lane.since) * lane.speed)
            lane.since = b.rules[0].now
            _schedule_step(b, events, number)


# Messages.


@njit(cache=True, nogil=True)
def _start_what_may(b: Board, events: Events, number: int) -> None:
    sender, messages = b.senders[number], len(b.messages)
    while True:
        place = sender.following
        if b.rules[0].by_priority:
            while place < messages:
                if b.ready[number, b.messages[place].at_place] == sender.lanes:
                    break
                place += 1
            sender.following = place
            if place == messages:
                return
        message = b.messages[place].at_place
        size = b.messages[message].size
        if b.ready[number, message] < sender.lanes:
            return
        if sender.flying and sender.flying_bytes + size > b.rules[0].credit:
            return
        b.ready[number, message] = 0
        if not b.rules[0].by_priority:
            sender.following = (place + 1) % messages
        sender.flying_bytes += size
        sender.flying += 1
        _come(b, events, number, message)


@njit(cache=True, nogil=True)
def _come(b: Board, events: Events, edge: int, message: int) -> None:
    if not _asks(b, edge, message):
        return
    stage = b.stages[b.copies[b.edges[edge].to].stage]
    if stage.delay > 0.0 or stage.streams:
        when = b.rules[0].now + stage.delay
        _at(b, events, when, ARRIVE, message * len(b.edges) + edge)
    else:
        _arrive(b, events, edge, message)


@njit(cache=True, nogil=True)
def _asks(b: Board, edge: int, message: int) -> bool:
    """Count a message that comes over an edge, and say whether it is a part or the last one."""
    copy = b.copies[b.edges[edge].to]
    stage, passage = b.stages[copy.stage], b.passages[message, b.edges[edge].to]
    if stage.parts:
        return True
    expected = copy.into_end - copy.into
    if stage.streams and passage.come == 0:
        passage.upstream = expected
    passage.come += 1
    b.joined[message, edge] = True
    is_last: bool = passage.come == expected
    return is_last


@njit(cache=True, nogil=True)
def _arrive(b: Board, events: Events, edge: int, message: int) -> None:
    copy = b.edges[edge].to
    stage, passage = b.stages[b.copies[copy].stage], b.passages[message, copy]
    resource, number = b.resources[passage.resource], message * len(b.copies) + copy
    work = passage.work
    if stage.parts:
        passage.come += 1
        b.joined[message, edge] = True
        passage.upstream += 1 if stage.streams else 0
        work *= b.edges[edge].weight
        if passage.is_queued:
            passage.work_left += work
            return
        if resource.serving == number:
            _join(b, events, message, copy, work)
            return
    passage.latency_left, passage.work_left = passage.latency, work
    passage.own_done = False
    if resource.serving < 0:
        _serve(b, events, message, copy)
        return
    passage.is_queued = True
    passage.behind = -1
    if resource.head < 0:
        resource.head = number
    else:
        tail = resource.tail
        b.passages[tail // len(b.copies), tail % len(b.copies)].behind = number
    resource.tail = number


@njit(cache=True, nogil=True)
def _join(b: Board, events: Events, message: int, copy: int, work: float) -> None:
    passage = b.passages[message, copy]
    if passage.own_done:
        passage.own_done = False
        passage.since = b.rules[0].now
        _count_busy(b, copy, 1)
    else:
        _catch_up(b, message, copy)
    passage.work_left += work
    _schedule(b, events, message, copy)


@njit(cache=True, nogil=True)
def _serve(b: Board, events: Events, message: int, copy: int) -> None:
    passage, one = b.passages[message, copy], b.copies[copy]
    b.resources[passage.resource].serving = message * len(b.copies) + copy
    passage.is_queued = False
    passage.since = b.rules[0].now
    _count_busy(b, copy, 1)
    _schedule(b, events, message, copy)
    if not one.streams_on:
        return
    when = b.rules[0].now + b.stages[one.stage + 1].delay
    for i in range(one.out, one.out_end):
        if _asks(b, b.lists[i], message):
            _at(b, events, when, ARRIVE, message * len(b.edges) + b.lists[i])


@njit(cache=True, nogil=True)
def _count_busy(b: Board, copy: int, change: int) -> None:
    for i in range(b.copies[copy].lanes, b.copies[copy].lanes_end):
        b.lanes[b.lists[i]].busy += change


@njit(cache=True, nogil=True)
def _schedule(b: Board, events: Events, message: int, copy: int) -> None:
    passage, (latency_rate, rate) = b.passages[message, copy], _rates(b, message, copy)
    when = b.rules[0].now + (passage.latency_left / latency_rate + passage.work_left / rate)
    passage.event = _at(b, events, when, OWN_PART, message * len(b.copies) + copy)


@njit(cache=True, nogil=True)
def _rates(b: Board, message: int, copy: int) -> tuple[float, float]:
    stage = b.stages[b.copies[copy].stage]
    if b.copies[copy].computing > 0:
        return stage.latency_share, b.passages[message, copy].share
    return 1.0, 1.0


@njit(cache=True, nogil=True)
def _catch_up(b: Board, message: int, copy: int) -> None:
    passage, (latency_rate, rate) = b.passages[message, copy], _rates(b, message, copy)
    elapsed = b.rules[0].now - passage.since
    passage.since = b.rules[0].now
    part = min(elapsed, passage.latency_left / latency_rate)
    passage.latency_left = max(0.0, passage.latency_left - part * latency_rate)
    passage.work_left = max(0.0, passage.work_left - (elapsed - part) * rate)


@njit(cache=True, nogil=True)
def _own_part_ends(b: Board, events: Events, message: int, copy: int) -> None:
    passage = b.passages[message, copy]
    passage.own_done = True
    passage.latency_left = passage.work_left = 0.0
    _count_busy(b, copy, -1)
    if passage.upstream == 0:
        _leave(b, events, message, copy)


@njit(cache=True, nogil=True)
def _upstream_ends(b: Board, events: Events, edge: int, message: int) -> None:
    copy = b.edges[edge].to
    passage = b.passages[message, copy]
    passage.upstream -= 1
    served = b.resources[passage.resource].serving == message * len(b.copies) + copy
    if served and passage.own_done and passage.upstream == 0:
        _leave(b, events, message, copy)


@njit(cache=True, nogil=True)
def _leave(b: Board, events: Events, message: int, copy: int) -> None:
    passage, one = b.passages[message, copy], b.copies[copy]
    resource = b.resources[passage.resource]
    resource.serving = -1
    waiting = resource.head
    if waiting >= 0:
        next_message, next_copy = waiting // len(b.copies), waiting % len(b.copies)
        resource.head = b.passages[next_message, next_copy].behind
        _serve(b, events, next_message, next_copy)
    passage.parts_done += passage.come
    passage.come = 0
    if passage.parts_done == one.into_end - one.into:
        passage.parts_done = 0
        if one.out == one.out_end:
            for i in range(one.lanes, one.lanes_end):
                b.is_done[b.lists[i], message] = True
        elif not one.streams_on:
            for i in range(one.out, one.out_end):
                _come(b, events, b.lists[i], message)
    if one.stage == b.rules[0].released:
        _release(b, events, message, copy)
    for i in range(one.into, one.into_end):
        b.joined[message, b.lists[i]] = False
    if one.streams_on:
        when = b.rules[0].now + b.stages[one.stage + 1].delay
        for i in range(one.out, one.out_end):
            _at(b, events, when, UPSTREAM, message * len(b.edges) + b.lists[i])
    if one.out == one.out_end:
        _end_waiting(b, events, message, copy)


@njit(cache=True, nogil=True)
def _release(b: Board, events: Events, message: int, copy: int) -> None:
    """First give back the credit of all senders that are through, then let them start what may."""
    one = b.copies[copy]
    stage = b.stages[one.stage]
    everywhere = stage.copies if stage.parts else 1
    for again in range(2):
        for i in range(one.into, one.into_end):
            edge = b.edges[b.lists[i]]
            if not b.joined[message, b.lists[i]]:
                continue
            through = 1
            if stage.parts:
                source = b.passages[message, edge.source]
                source.through += 1 - again
                through = source.through
            if through < everywhere:
                continue
            for j in range(edge.of, edge.of_end):
                if again:
                    _start_what_may(b, events, b.lists[j])
                else:
                    b.senders[b.lists[j]].flying_bytes -= b.messages[message].size
                    b.senders[b.lists[j]].flying -= 1
            if again and stage.parts:
                b.passages[message, edge.source].through = 0


@njit(cache=True, nogil=True)
def _end_waiting(b: Board, events: Events, message: int, copy: int) -> None:
    for i in range(b.copies[copy].lanes, b.copies[copy].lanes_end):
        lane = b.lanes[b.lists[i]]
        if lane.computing or not _can_go_on(b, b.lists[i]):
            continue
        step = b.steps[lane.step]
        for j in range(step.waits, step.waits_end):
            if b.lists[j] == message:
                lane.exposed += b.rules[0].now - lane.waiting_since
                _begin_step(b, events, b.lists[i])
                break
