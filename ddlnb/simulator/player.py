"""Plays a program event by event: the plain, slow and obvious simulator.

Two things go on at once. The computation does its tasks one after the other; the network carries
messages through their stages. They meet in three places: a task makes messages ready, a task waits
for messages, and each may slow the other down while both are busy. `fast_player` does the same
with arrays; tests hold the two equal.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from ddlnb.results.timeline import Span
from ddlnb.simulator.program import Program
from ddlnb.simulator.tasks import Task

MOST_ITERATIONS = 12
STEADY = 1e-12  # of the period


@dataclass
class Played:
    """What came out: seconds from the end of one iteration to the end of the next, when steady.

    ``exposed_seconds`` is the part in which the computation waited. ``periods`` holds all
    iterations that were played; ``is_steady`` whether the last two agree.
    """

    iteration_seconds: float
    exposed_seconds: float
    periods: list[float]
    is_steady: bool
    spans: list[Span] = field(repr=False)


def play(program: Program, iterations: int | None = None) -> Played:
    """Return the program played until its period is steady, or for this many iterations."""
    return _Player(program).play(iterations)


@dataclass
class _Passage:
    """One message in one stage."""

    message: int
    stage: int
    latency_left: float
    work_left: float
    since: float = 0.0
    began: float = 0.0
    version: int = 0
    own_part_done: bool = False
    upstream_done: bool = True


class _Player:
    def __init__(self, program: Program):
        self.program = program
        self._tasks = program.tasks.listed
        self._steps = program.tasks.steps
        self._step_seconds = program.step_seconds.tolist()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        messages, stages = len(program.message_bytes), len(program.stages)
        self._is_done = [True] * messages
        self._is_ready = [False] * messages
        self._iteration_of = [0] * messages
        self._next = 0
        self._waiting: list[tuple[int, int]] = []
        self._flying_bytes = 0.0
        self._flying = 0
        self._queues: list[deque[_Passage]] = [deque() for _ in program.resources]
        self._serving: list[_Passage | None] = [None for _ in program.resources]
        self._passages: list[list[_Passage | None]] = [[None] * stages for _ in range(messages)]
        self._busy = 0  # stages at work
        # The computation: position in the steps, what is left of the step, and since when.
        self._step, self._iteration = 0, 0
        self._computing = False
        self._compute_left = self._compute_since = self._waiting_since = 0.0
        self._step_began = 0.0
        self._compute_version = 0
        self._step_speed = 1.0
        self._exposed = 0.0
        self._ends: list[tuple[float, float]] = []
        self._spans: list[Span] = []

    def play(self, iterations: int | None) -> Played:
        self._begin_step()
        while not self._is_over(iterations):
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._follow_network()
        ends, exposed = zip((0.0, 0.0), *self._ends, strict=True)
        periods = [end - start for start, end in pairwise(ends)]
        return Played(
            iteration_seconds=periods[-1],
            exposed_seconds=exposed[-1] - exposed[-2],
            periods=periods,
            is_steady=self._is_steady(),
            spans=self._spans,
        )

    def _is_over(self, iterations: int | None) -> bool:
        done = len(self._ends)
        if iterations is not None:
            return done >= iterations
        return done > 0 and (self._is_steady() or done >= MOST_ITERATIONS)

    def _is_steady(self) -> bool:
        if self.program.drains:
            return True
        if len(self._ends) < 3:
            return False
        first, second, third = (end for end, _ in self._ends[-3:])
        return abs((third - second) - (second - first)) <= STEADY * (third - second)

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, action))

    # Computation.

    def _begin_step(self) -> None:
        """Begin the next step, or wait for its messages."""
        if not self._can_go_on():
            self._waiting_since = self.now
            return
        self._step_began = self.now
        self._compute_left = self._step_seconds[self._step]
        self._set_computing(True)
        self._schedule_step()

    def _schedule_step(self) -> None:
        self._compute_version += 1
        version = self._compute_version
        self._compute_since = self.now
        self._step_speed = self._speed()
        ends = self.now + self._compute_left / self._step_speed
        self._at(ends, partial(self._end_step, version))

    def _speed(self) -> float:
        return self.program.compute_share if self._busy else 1.0

    def _end_step(self, version: int) -> None:
        if version != self._compute_version:
            return
        step = self._steps[self._step]
        self._record_step(step)
        for message in self._tasks[step[-1]].readies:
            self._is_done[message] = False
            self._iteration_of[message] = self._iteration
            if self.program.by_priority:
                priority = int(self.program.priority[message])
                heapq.heappush(self._waiting, (priority, message))
            else:
                self._is_ready[message] = True
        self._step += 1
        if self._step == len(self._steps):
            self._ends.append((self.now, self._exposed))
            self._step = 0
            self._iteration += 1
        self._start_what_may()
        if not self._can_go_on():
            self._set_computing(False)
        self._begin_step()

    def _can_go_on(self) -> bool:
        return all(self._is_done[message] for message in self._awaits().waits_for)

    def _awaits(self) -> Task:
        """Return the first task of the step, the only one that may wait."""
        return self._tasks[self._steps[self._step][0]]

    def _record_step(self, step: range) -> None:
        """Spans of the tasks of a step that ends now; contention is shared out among them."""
        seconds = [float(self.program.task_seconds[number]) for number in step]
        slowed = (self.now - self._step_began) / total if (total := sum(seconds)) else 1.0
        start = self._step_began
        for number, own in zip(step, seconds, strict=True):
            task = self._tasks[number]
            stop = self.now if number == step[-1] else min(self.now, start + own * slowed)
            if own:
                self._spans.append(Span(0, task.kind, task.name, start, stop, self._iteration))
            start = stop

    def _set_computing(self, computing: bool) -> None:
        """Say whether the computation is busy; the stages that it slows down change their rate."""
        if computing == self._computing:
            return
        for passage in self._serving:
            if passage is not None and not passage.own_part_done:
                self._catch_up(passage)
        self._computing = computing
        for passage in self._serving:
            if passage is not None and not passage.own_part_done:
                self._schedule(passage)

    # Messages.

    def _start_what_may(self) -> None:
        program = self.program
        while (message := self._startable()) is not None:
            if program.by_priority:
                heapq.heappop(self._waiting)
            else:
                self._is_ready[message] = False
                self._next = (self._next + 1) % len(program.message_bytes)
            self._flying_bytes += program.message_bytes[message]
            self._flying += 1
            self._ask(message, 0)

    def _startable(self) -> int | None:
        program = self.program
        if program.by_priority:
            message = self._waiting[0][1] if self._waiting else None
        else:
            message = self._next if self._is_ready[self._next] else None
        if message is None or not self._flying:
            return message
        fits = self._flying_bytes + program.message_bytes[message] <= program.credit_bytes
        return message if fits else None

    def _ask(self, message: int, number: int) -> None:
        """Ask for the resource of a stage, when its delay has passed."""
        stage = self.program.stages[number]
        passage = _Passage(
            message, number, float(stage.latency[message]), float(stage.work[message])
        )
        passage.upstream_done = not stage.streams
        self._passages[message][number] = passage
        if stage.delay or stage.streams:
            self._at(self.now + stage.delay, partial(self._arrive, passage))
        else:
            self._arrive(passage)

    def _arrive(self, passage: _Passage) -> None:
        resource = self.program.stages[passage.stage].resource[passage.message]
        if self._serving[resource] is None:
            self._serve(passage)
        else:
            self._queues[resource].append(passage)

    def _serve(self, passage: _Passage) -> None:
        stages, message = self.program.stages, passage.message
        self._serving[stages[passage.stage].resource[message]] = passage
        passage.began = passage.since = self.now
        self._busy += 1
        self._schedule(passage)
        following = passage.stage + 1
        if following < len(stages) and stages[following].streams:
            self._ask(message, following)

    def _schedule(self, passage: _Passage) -> None:
        passage.version += 1
        version = passage.version
        latency_rate, rate = self._rates(passage)
        left = passage.latency_left / latency_rate + passage.work_left / rate
        self._at(self.now + left, partial(self._own_part_ends, passage, version))

    def _rates(self, passage: _Passage) -> tuple[float, float]:
        """At which latency and work go on now."""
        stage = self.program.stages[passage.stage]
        if not self._computing:
            return 1.0, 1.0
        return stage.latency_share, float(stage.shares[passage.message])

    def _catch_up(self, passage: _Passage) -> None:
        """Take off what was done since the last change of rate."""
        latency_rate, rate = self._rates(passage)
        elapsed = self.now - passage.since
        passage.since = self.now
        on_latency = min(elapsed, passage.latency_left / latency_rate)
        passage.latency_left = max(0.0, passage.latency_left - on_latency * latency_rate)
        passage.work_left = max(0.0, passage.work_left - (elapsed - on_latency) * rate)

    def _own_part_ends(self, passage: _Passage, version: int) -> None:
        if version != passage.version:
            return
        passage.own_part_done = True
        self._busy -= 1
        if passage.upstream_done:
            self._leave(passage)

    def _upstream_ends(self, message: int, number: int) -> None:
        passage = self._passages[message][number]
        assert passage is not None
        passage.upstream_done = True
        if passage.own_part_done:
            self._leave(passage)

    def _leave(self, passage: _Passage) -> None:
        """Give the resource to the next in the queue, and go on to the next stage."""
        stages, message, number = self.program.stages, passage.message, passage.stage
        resource = stages[number].resource[message]
        self._serving[resource] = None
        if self._queues[resource]:
            self._serve(self._queues[resource].popleft())
        following = number + 1
        is_last = following == len(stages)
        streams = not is_last and stages[following].streams
        if is_last:
            self._arrived(message)
        elif not streams:
            self._ask(message, following)
        if number == self.program.released:
            self._flying_bytes -= self.program.message_bytes[message]
            self._flying -= 1
            self._start_what_may()
        if streams:
            delay = stages[following].delay
            self._at(self.now + delay, partial(self._upstream_ends, message, following))
        if is_last:
            self._end_waiting(message)

    def _arrived(self, message: int) -> None:
        first = self._passages[message][0]
        assert first is not None
        self._is_done[message] = True
        self._spans.append(
            Span(
                rank=0,
                kind="message",
                name=self.program.messages[message],
                start_seconds=first.began,
                stop_seconds=self.now,
                iteration=self._iteration_of[message],
                bytes=int(self.program.message_bytes[message]),
            )
        )

    def _end_waiting(self, message: int) -> None:
        task = self._awaits()
        if not self._computing and message in task.waits_for and self._can_go_on():
            since = self._waiting_since
            self._exposed += self.now - since
            self._spans.append(Span(0, "wait", task.name, since, self.now, self._iteration))
            self._begin_step()

    def _follow_network(self) -> None:
        """Give the task another end when the network has become busy or idle."""
        if self._computing and self._speed() != self._step_speed:
            done = (self.now - self._compute_since) * self._step_speed
            self._compute_left = max(0.0, self._compute_left - done)
            self._schedule_step()
