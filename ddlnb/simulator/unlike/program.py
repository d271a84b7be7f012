"""A program with the workers who play it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ddlnb.errors import require
from ddlnb.simulator.computation import Numbers, Task
from ddlnb.simulator.program import Program
from ddlnb.simulator.unlike.copies import Copies, copies_of
from ddlnb.simulator.unlike.team import Team

MOST_ITERATIONS = 24  # played until iterations are alike
MOST_PASSAGES = 2_000_000  # a stated budget: some 300 MB


@dataclass(frozen=True)
class UnlikeProgram:
    """A program for the workers of a team.

    Lane l takes ``factor * task_seconds + fixed_seconds`` for a task, and its delay besides for the
    first one of an iteration. Raises InputError if there are too many messages for so many kinds
    of workers.
    """

    program: Program
    team: Team
    fixed_seconds: Numbers
    copies: Copies

    def step_seconds(self, lane: int, iteration: int) -> Numbers:
        """Return the seconds of every step of a lane in an iteration."""
        return self._seconds(self.program.step_seconds, self.fixed_steps, lane, iteration)

    def task_seconds(self, lane: int, iteration: int) -> Numbers:
        """Return the seconds of every task of a lane in an iteration."""
        return self._seconds(self.program.task_seconds, self.fixed_seconds, lane, iteration)

    def _seconds(self, slowed: Numbers, fixed: Numbers, lane: int, iteration: int) -> Numbers:
        column = min(iteration, self.team.factor.shape[1] - 1)
        seconds: Numbers = slowed * self.team.factor[lane, column] + fixed
        seconds[0] += self.team.delay[lane, column]
        return seconds

    @cached_property
    def fixed_steps(self) -> Numbers:
        """Seconds of every step that no factor changes."""
        starts = [step.start for step in self.program.tasks.steps]
        return np.add.reduceat(self.fixed_seconds, starts)


def with_team(program: Program, team: Team, fixed_seconds: Numbers | None = None) -> UnlikeProgram:
    """Return the program for the workers of a team.

    ``fixed_seconds`` are seconds of tasks that no factor changes, by default none. Where there are
    delays an iteration begins with one.
    """
    fixed = np.zeros(len(program.task_seconds)) if fixed_seconds is None else fixed_seconds
    if team.delay.any():
        program, fixed = _delayed(program), np.concatenate([[0.0], fixed])
    copies = copies_of(program.stages, team)
    passages = len(copies.stage) * len(program.messages)
    require(
        passages <= MOST_PASSAGES,
        f"{len(program.messages):,} messages of {len(team.lanes):,} workers that differ make "
        f"{passages:,} passages, and at most {MOST_PASSAGES:,} are simulated; choose larger "
        f"messages, or fewer workers that differ",
    )
    return UnlikeProgram(program, team, fixed, copies)


def _delayed(program: Program) -> Program:
    """Return the program with a task before all others, which takes no time but the delay."""
    old = program.tasks

    def after_none(values: Numbers) -> Numbers:
        return np.concatenate([[0.0], values])

    tasks = replace(
        old,
        listed=(Task("delay", "at random"), *old.listed),
        own_seconds=after_none(old.own_seconds),
        readied=after_none(old.readied),
        updated_tensors=after_none(old.updated_tensors),
        updated_bytes=after_none(old.updated_bytes),
    )
    return replace(program, tasks=tasks, task_seconds=after_none(program.task_seconds))
