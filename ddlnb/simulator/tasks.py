"""What one worker computes in an iteration, task by task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.effects import Effects
from ddlnb.plans.plan import Gate, Launch, Plan
from ddlnb.workloads.workload import Workload


class Identity:
    """A tuple of objects that hashes and compares by which objects they are.

    It is a key for caches of what was made of large frozen values, whose own hashes take too long.

    >>> first, second = [1], [1]
    >>> Identity((first,)) == Identity((first,)), Identity((first,)) == Identity((second,))
    (True, False)
    """

    def __init__(self, parts: tuple[Any, ...]):
        self.parts = parts
        self._key = tuple(map(id, parts))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key == other._key


Numbers = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


class Task(NamedTuple):
    """A piece of the computation: it waits for messages, takes time, and makes messages ready."""

    kind: str
    name: str
    waits_for: tuple[int, ...] = ()
    readies: tuple[int, ...] = ()


class Waits(NamedTuple):
    """The messages that steps wait for and make ready, each kind in one row.

    Step i waits for ``messages[starts[i] : starts[i + 1]]``, and so for those that it makes ready.
    """

    starts: Indices
    messages: Indices
    ready_starts: Indices
    ready_messages: Indices


@dataclass(frozen=True)
class Tasks:
    """The tasks of one iteration, with everything about them that no cluster changes.

    Arrays hold a number for every task: its own seconds, the messages it makes ready, the tensors
    and bytes that it updates. Arrays of messages hold one for every leg of the plan: every message,
    or every half of one.
    """

    listed: tuple[Task, ...]
    own_seconds: Numbers
    readied: Numbers
    updated_tensors: Numbers
    updated_bytes: Numbers
    message_bytes: Indices
    message_pieces: Indices
    priority: Indices

    @cached_property
    def steps(self) -> tuple[range, ...]:
        """The tasks in runs of which only the first may wait and only the last readies messages."""
        first = [
            number
            for number, task in enumerate(self.listed)
            if number == 0 or task.waits_for or self.listed[number - 1].readies
        ]
        return tuple(map(range, first, [*first[1:], len(self.listed)]))

    @cached_property
    def step_starts(self) -> Indices:
        """The number of the first task of every step."""
        return np.array([step.start for step in self.steps], dtype=np.int64)

    @cached_property
    def waits(self) -> Waits:
        """The messages that every step waits for and makes ready."""
        waits = [self.listed[step[0]].waits_for for step in self.steps]
        readies = [self.listed[step[-1]].readies for step in self.steps]
        return Waits(*_in_one_row(waits), *_in_one_row(readies))

    @cached_property
    def by_priority(self) -> Indices:
        """The messages, the most urgent one first."""
        return np.argsort(self.priority, kind="stable")

    def seconds(self, effects: Effects, workers: int) -> Numbers:
        """Return the seconds of every task on a cluster with these effects and workers in use."""
        seconds: Numbers = self.own_seconds * math.prod(effects.terms("task factor", workers))
        return sum(effects.terms("task seconds", self), seconds)


def alone(workload: Workload) -> Tasks:
    """Return all that a worker without others computes in an iteration, as one task."""
    none = np.zeros(0, dtype=np.int64)
    return Tasks(
        listed=(Task("update", "all layers"),),
        own_seconds=np.array([workload.compute_seconds]),
        readied=np.zeros(1),
        updated_tensors=np.array([float(len(workload.gradients))]),
        updated_bytes=np.array([float(workload.gradient_bytes)]),
        message_bytes=none,
        message_pieces=none,
        priority=none,
    )


def _in_one_row(rows: list[tuple[int, ...]]) -> tuple[Indices, Indices]:
    """Return where each row starts in the joined rows, and the joined rows."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return starts, np.array([value for row in rows for value in row], dtype=np.int64)


@lru_cache(maxsize=512)
def tasks_of(pair: Identity) -> Tasks:
    """Return the tasks of a workload and its plan, which come as one key of the cache.

    Forward passes go by layer, backward passes by gradient, updates where the plan's gate puts
    them.
    """
    workload: Workload
    plan: Plan
    workload, plan = pair.parts
    positions_of: dict[str, list[int]] = {}
    for position, gradient in enumerate(plan.gradients):
        positions_of.setdefault(gradient.layer, []).append(position)
    sizes = [gradient.bytes for gradient in plan.gradients]
    own = plan.gate is Gate.OWN_LAYER
    # The leg with which a message has arrived: its last one.
    arrives = {leg.message: number for number, leg in enumerate(plan.legs)}
    # Task, own seconds, tensors and bytes that it updates.
    rows: list[tuple[Task, float, int, int]] = []
    for layer in workload.layers:
        if own and layer.name in positions_of:
            waits_for = tuple([arrives[message] for message in plan.messages_of_layer[layer.name]])
            updated = positions_of[layer.name]
            task = Task("update", layer.name, waits_for)
            rows.append((task, 0.0, len(updated), sum([sizes[i] for i in updated])))
        rows.append((Task("forward", layer.name), layer.forward_seconds, 0, 0))
    last = len(workload.gradients) - 1
    ready: list[list[int]] = [[] for _ in workload.gradients]
    for number, leg in enumerate(plan.legs):
        at_end = plan.launch is Launch.AFTER_BACKWARD or leg.is_gather
        ready[last if at_end else plan.last_gradients[leg.message]].append(number)
    for gradient, messages in zip(workload.gradients, ready, strict=True):
        task = Task("backward", gradient.name, readies=tuple(messages))
        rows.append((task, gradient.backward_seconds, 0, 0))
    if not own:
        everything = tuple(sorted(arrives.values()))
        rows.append((Task("update", "all layers", everything), 0.0, len(sizes), sum(sizes)))
    listed, seconds, tensors, updated_bytes = zip(*rows, strict=True)
    sent = [leg.message for leg in plan.legs]
    carried = [plan.messages[message] for message in sent]
    return Tasks(
        listed=listed,
        own_seconds=np.array(seconds),
        readied=np.array([len(task.readies) for task in listed], dtype=float),
        updated_tensors=np.array(tensors, dtype=float),
        updated_bytes=np.array(updated_bytes, dtype=float),
        message_bytes=np.array(plan.message_bytes, dtype=np.int64)[sent],
        message_pieces=np.array([len(message.pieces) for message in carried]),
        priority=np.array([message.priority for message in carried], dtype=np.int64),
    )
