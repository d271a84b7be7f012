"""Iterations of workers of different speeds whose messages overlap the backward pass.

One worker of every kind is played (`ddlnb.simulator.unlike`): a message leaves when the last worker
has it, and a worker goes on when what it waits for has come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require_whole
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.program import Program
from ddlnb.simulator.unlike.fast_player import play_unlike_fast
from ddlnb.simulator.unlike.program import with_team
from ddlnb.simulator.unlike.team import Slowness, team_of


@dataclass(frozen=True)
class PlayedIteration:
    """Mean seconds of an iteration, and those in which a worker computes or compresses in it."""

    iteration_seconds: float
    busy_seconds: float


def play_uneven(
    program: Program,
    finished: Callable[[Program], Program],
    cluster: Cluster,
    slower: Slowness | None,
    steps: int,
) -> PlayedIteration:
    """Return the mean over ``steps`` iterations of workers of different speeds.

    They differ as the cluster says, and ``slower(rank, step, workers)`` multiplies the seconds that
    a worker computes. ``finished`` makes of a program the one that is played; no factor changes the
    seconds that it adds, such as those of compression.
    """
    require_whole(steps=steps)
    done = finished(program)
    if slower is None and cluster.is_alike:
        played = play_fast(done)
    else:
        idle = replace(program, task_seconds=0.0 * program.task_seconds)
        added = finished(idle).task_seconds
        slowed = replace(done, task_seconds=done.task_seconds - added)
        played = play_unlike_fast(with_team(slowed, team_of(cluster, slower, steps), added))
    return PlayedIteration(
        played.iteration_seconds, played.iteration_seconds - played.exposed_seconds
    )
