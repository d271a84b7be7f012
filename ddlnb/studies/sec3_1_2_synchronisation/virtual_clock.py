"""Run the loop of a synchronisation on a virtual clock, without values.

The workers run the loops and the server rules of the methods themselves. A gradient takes the
seconds that the law of a straggler gives; a push with its answer, or a collective, takes a
constant. Source: survey, section 3.1.2 and Fig. 3 (1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ddlnb.errors import require, require_whole
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import Rule
from ddlnb.training.executors.activity import Activity
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.dry_run import dry_workers
from ddlnb.training.executors.links import Link
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.executors.stragglers import Straggler, get_straggler
from ddlnb.training.method import TrainingMethod, training_method

MESSAGE_SECONDS = 0.1  # of a push with its answer


def virtual_clock(
    straggler: str | Straggler, message_seconds: float = MESSAGE_SECONDS, seed: int = 0
) -> Clock:
    """Return a clock on which gradients follow this law and messages take a constant.

    The seed decides what a random law draws. ``message_seconds`` are those of a push and its
    answer together, of one collective, or of each of several messages that a worker sends in turn.
    """
    require(message_seconds >= 0, f"message_seconds {message_seconds!r} must not be negative")
    law = get_straggler(straggler).drawn_from(seed)
    return Clock(law, partial(_message, message_seconds), partial(_link, message_seconds))


def _message(seconds: float, kind: type, bytes_: int, workers: int) -> float:
    return seconds / 2 if kind is PushPull else seconds  # asked once each for push and answer


def _link(seconds: float, sender: int, receiver: int) -> Link:
    return Link(sender, latency=seconds)


@dataclass(frozen=True)
class Timed:
    """What workers without values did: activities, the staleness of pushes, and the ends of steps.

    ``done`` holds (seconds, rank, iterations that the rank has done) in order of time;
    ``staleness`` is empty where no server applies pushes one by one.
    """

    method: str
    workers: int
    steps: int
    activities: tuple[Activity, ...]
    staleness: tuple[int, ...]
    done: tuple[tuple[float, int, int], ...]

    @property
    def waiting_seconds(self) -> float:
        """Return the seconds per gradient in which a worker does not compute, with its messages."""
        waits = sum(one.end - one.start for one in self.activities if not one.computes)
        return waits / (self.workers * self.steps)

    @property
    def lead(self) -> int:
        """Return the most iterations by which the fastest worker was ahead of the slowest."""
        counts, most = dict.fromkeys(range(self.workers), 0), 0
        for number, (now, rank, done) in enumerate(self.done):
            counts[rank] = done
            last = number + 1 == len(self.done)
            if last or self.done[number + 1][0] > now:  # all that happens at an instant together
                most = max(most, max(counts.values()) - min(counts.values()))
        return most

    @property
    def mean_staleness(self) -> float:
        """Return the mean over all pushes, NaN if there are none."""
        return sum(self.staleness) / len(self.staleness) if self.staleness else math.nan

    @property
    def iteration_seconds(self) -> float:
        """Return the seconds that one step of every worker takes, while all of them have work."""
        until = min(now for now, _, done in self.done if done == self.steps)
        return until * self.workers / sum(now <= until for now, _, _ in self.done)


def timed(method: str | TrainingMethod, clock: Clock, workers: int = 4, steps: int = 24) -> Timed:
    """Run the given number of steps of every worker of this method on this clock."""
    method = training_method(method)
    require_whole(workers=workers, steps=steps)
    team = dry_workers(method, [(16,)], workers, "cpu")
    rule: Rule | None = method.rule(workers, team[0].pieces)
    done: list[tuple[float, int, int]] = []

    def on_step(rank: int, count: int, now: float) -> None:
        done.append((now, rank, count))

    run = Lockstep(
        team,
        method.synchronisation.loop,
        steps,
        rule=rule,
        clock=clock,
        on_step=on_step,
        recording=True,
    )
    run.run()
    staleness = tuple(getattr(rule, "staleness", ()))
    return Timed(str(method), workers, steps, tuple(run.activities), staleness, tuple(done))
