"""Iterations of workers of different speeds whose messages overlap the backward pass.

Messages are averages over all workers: each leaves when the slowest has it, and all workers go on
together when the last one has come back. So an iteration lasts as long as if all workers were as
slow as the slowest of that iteration, and those that are quicker wait. This is exact while they
begin each iteration together; where workers wait layer by layer (ByteScheduler), or the slowest
changes and updates take long, a worker may be ahead, and this is a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from ddlnb.errors import require_whole
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.program import Program

Slowness = Callable[[int, int, int], float]  # a factor by rank, step and number of workers


@dataclass(frozen=True)
class PlayedIteration:
    """Mean seconds of an iteration, and those in which a worker computes or compresses in it."""

    iteration_seconds: float
    busy_seconds: float


def play_uneven(
    program: Program,
    finished: Callable[[Program], Program],
    workers: int,
    slower: Slowness | None,
    steps: int,
) -> PlayedIteration:
    """Return the mean over ``steps`` iterations of workers that are slowed down.

    ``slower(rank, step, workers)`` multiplies the seconds that a worker computes; ``finished``
    makes of a program with these seconds the one that is played.
    """
    require_whole(steps=steps)
    if slower is None:
        return _played(finished(program))
    slowest: Counter[float] = Counter()  # how often each factor is the largest
    total = 0.0
    for step in range(steps):
        factors = [slower(rank, step, workers) for rank in range(workers)]
        slowest[max(factors)] += 1
        total += sum(factors) / workers
    mean, seconds = total / steps, 0.0
    for factor, count in slowest.items():
        slowed = replace(program, task_seconds=program.task_seconds * factor)
        seconds += count / steps * _played(finished(slowed)).iteration_seconds
    even = _played(finished(program))
    return PlayedIteration(seconds, even.busy_seconds + (mean - 1) * program.compute_seconds)


def _played(program: Program) -> PlayedIteration:
    played = play_fast(program)
    return PlayedIteration(
        played.iteration_seconds, played.iteration_seconds - played.exposed_seconds
    )
