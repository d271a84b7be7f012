"""A program of unlike workers as arrays of records, on which its compiled player plays.

Lists of numbers are joined into one array, ``lists``; a record says from where to where its own
are. A passage is a message in a copy of a stage, in row message and column copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.simulator.computation import Indices, Numbers
from ddlnb.simulator.unlike.program import MOST_ITERATIONS, UnlikeProgram

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
