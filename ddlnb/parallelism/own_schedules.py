"""Schedules of one's own: each is tried before its name works wherever one is named."""

from __future__ import annotations

import re
from itertools import product

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.parallelism.schedules import (
    SCHEDULES,
    SHIPPED,
    Pass,
    PipelineSchedule,
    in_order,
    schedule,
)
from ddlnb.registry import called, register_entry

TRIED_STAGES, TRIED_BATCHES = 4, 8
# Words that mean something else in layouts.
RESERVED = r"(dp|tp|pp|cp|ep|vpp|zero|shard|lora|mb|acc)\d+|sp|keep|selective|full|ring|all-to-all"


def register_schedule(entry: PipelineSchedule) -> None:
    """Add a schedule to SCHEDULES, so that its name works wherever one is named.

    In layouts, memory, plays of iterations, forecasts and tables of runs, and on real ranks.
    Registering one anew, as a notebook does whose cell runs again, replaces it; ``del
    SCHEDULES[name]`` removes it. Raises InputError for the name of a shipped one, for one that does
    not say how far stages run ahead, of numbers and of arrays, and for one that never ends.

    >>> from ddlnb.parallelism.schedules import in_flight
    >>> register_schedule(PipelineSchedule("eager", lambda stage, stages, *_: 2 * (stages - stage)))
    >>> [in_flight("eager", 4, 8, 1, stage) for stage in range(4)]
    [8, 6, 4, 2]
    >>> del SCHEDULES["eager"]
    """
    require(
        re.fullmatch(RESERVED, entry.name) is None,
        f"schedule {entry.name!r} has the name of another word in layouts; choose another name",
    )
    try:
        re.compile(entry.words)
    except re.error as error:
        raise InputError(
            f"schedule {entry.name!r}: {entry.words!r} is no pattern: {error}"
        ) from error
    _require_ahead(entry)
    former = SCHEDULES.get(entry.name)
    if entry.name not in SHIPPED:
        SCHEDULES.pop(entry.name, None)
    register_entry("schedule", entry, SCHEDULES)
    try:
        _require_carried_out(entry)
    except BaseException:
        del SCHEDULES[entry.name]
        if former is not None:
            SCHEDULES[entry.name] = former
        raise


def _tried(entry: PipelineSchedule) -> tuple[int, int, int]:
    """Return the stages, micro batches and chunks with which a schedule is tried."""
    return TRIED_STAGES, TRIED_BATCHES, 2 if entry.chunked else entry.chunks


def _require_ahead(entry: PipelineSchedule) -> None:
    """Raise InputError unless ``ahead`` gives whole numbers, and the same ones of arrays."""
    numbers = _tried(entry)
    try:
        each = [entry.ahead(stage, *numbers) for stage in range(TRIED_STAGES)]
        every = entry.ahead(np.arange(TRIED_STAGES), *(np.full(1, float(n)) for n in numbers))
        are_whole = all(isinstance(one, int | np.integer) and one > 0 for one in each)
        is_sound = are_whole and bool((np.broadcast_to(every, TRIED_STAGES) == each).all())
        why = f"of {TRIED_STAGES} stages it says {each}, and of arrays {every}"
    except Exception as error:  # whatever somebody's own function does
        is_sound, why = False, str(error)
    require(
        is_sound,
        f"schedule {entry.name!r} cannot say how far stages run ahead ({why}); give a function of "
        f"(stage, stages, batches, chunks) that returns whole numbers above 0, and works on arrays",
    )


def _require_carried_out(entry: PipelineSchedule) -> None:
    """Raise InputError for a schedule that never ends, or does not say what lies behind."""
    stages, batches, chunks = _tried(entry)
    if entry.weights_behind is not None:
        what = f"schedule {entry.name!r}, asked what lies behind,"
        behind = [called(what, entry.weights_behind, stage) for stage in range(stages)]
        require(
            all(isinstance(one, int | np.integer) and one >= 0 for one in behind),
            f"schedule {entry.name!r} says that weights lie {behind} passes behind; give whole "
            f"numbers from 0 on",
        )
    passes = called(f"schedule {entry.name!r}, put in order,", schedule, entry.name, stages,
                    batches, chunks)  # fmt: skip
    kinds = "FBW" if entry.splits else "FB"
    every = sorted(Pass(*one) for one in product(kinds, range(batches), range(chunks)))
    require(
        all(sorted(stage) == every for stage in passes),
        f"schedule {entry.name!r} does not have every pass of {batches} micro batches once on "
        f"every stage; say {', '.join(kinds)} of each chunk as often as there are micro batches",
    )
    for _ in in_order(passes, chunks, entry.name):
        pass
