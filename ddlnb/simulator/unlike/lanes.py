"""One worker of a team as the plain player plays it: where it is, and what it did."""

from __future__ import annotations

from ddlnb.results.timeline import Span
from ddlnb.simulator.computation import Task
from ddlnb.simulator.unlike.program import UnlikeProgram


class PlayedLane:
    """A worker's position in its steps, the messages that it has, and what it did."""

    def __init__(self, program: UnlikeProgram, number: int):
        self.program, self.number = program, number
        self.rank = program.team.lanes[number].rank
        self._tasks = program.program.tasks.listed
        self._steps = program.program.tasks.steps
        messages = len(program.program.messages)
        self.step = self.iteration = 0
        self.computing = False
        self.left = self.since = self.began = self.waiting_since = 0.0
        self.version = 0
        self.speed = 1.0
        self.exposed = 0.0
        self.ends: list[tuple[float, float]] = []
        self.spans: list[Span] = []
        self.is_done = [True] * messages
        self.iteration_of = [0] * messages
        self.taken_at = [0.0] * messages
        self._step_seconds = program.step_seconds(number, 0)

    @property
    def awaits(self) -> Task:
        """The first task of the next step, the only one that may wait."""
        return self._tasks[self._steps[self.step][0]]

    @property
    def can_go_on(self) -> bool:
        """Whether all messages have come that the next step waits for."""
        return all(self.is_done[message] for message in self.awaits.waits_for)

    def begin_step(self, now: float) -> None:
        """Begin the next step, which nothing keeps from beginning."""
        if self.step == 0:
            self._step_seconds = self.program.step_seconds(self.number, self.iteration)
        self.began = self.since = now
        self.left = float(self._step_seconds[self.step])

    def catch_up(self, now: float) -> None:
        """Take off what was computed since the last change of speed."""
        self.left = max(0.0, self.left - (now - self.since) * self.speed)
        self.since = now

    def end_step(self, now: float) -> tuple[int, ...]:
        """End a step, and return the messages that it made ready."""
        step = self._steps[self.step]
        self._record_step(step, now)
        readies = self._tasks[step[-1]].readies
        for message in readies:
            self.is_done[message] = False
            self.iteration_of[message] = self.iteration
        self.step += 1
        if self.step == len(self._steps):
            self.ends.append((now, self.exposed))
            self.step = 0
            self.iteration += 1
        return readies

    def end_waiting(self, now: float) -> None:
        """Record the seconds since the worker began to wait."""
        self.exposed += now - self.waiting_since
        name, since = self.awaits.name, self.waiting_since
        self.spans.append(Span(self.rank, "wait", name, since, now, self.iteration))

    def _record_step(self, step: range, now: float) -> None:
        """Spans of the tasks of a step that ends now; contention is shared out among them."""
        own_seconds = self.program.task_seconds(self.number, self.iteration)
        seconds = [float(own_seconds[task]) for task in step]
        slowed = (now - self.began) / total if (total := sum(seconds)) else 1.0
        start = self.began
        for number, own in zip(step, seconds, strict=True):
            task = self._tasks[number]
            stop = now if number == step[-1] else min(now, start + own * slowed)
            if own:
                span = Span(self.rank, task.kind, task.name, start, stop, self.iteration)
                self.spans.append(span)
            start = stop

    def arrived(self, message: int, now: float) -> None:
        """Record that the average of a message is here."""
        program = self.program.program
        self.is_done[message] = True
        self.spans.append(
            Span(
                rank=self.rank,
                kind="message",
                name=program.messages[message],
                start_seconds=self.taken_at[message],
                stop_seconds=now,
                iteration=self.iteration_of[message],
                bytes=int(program.message_bytes[message]),
            )
        )
