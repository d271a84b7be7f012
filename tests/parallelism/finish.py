"""When a job with a given amount of work is done, if it fails at moments that are known before."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddlnb.errors import InputError, require, require_positive
from ddlnb.parallelism.goodput.simulate import Job, TimeSpent, play

MOST_FAILURES = 300  # of one job, a stated budget: each life plays all before it again
HALVINGS = 40


@dataclass(frozen=True)
class Finish:
    """When all work is done, how often it was interrupted, and shares of the time until then."""

    seconds: float
    failures: int
    spent: TimeSpent


def lives(per_second: float, seed: int) -> Iterator[float]:
    """Yield the seconds from each start to the next failure, as `play` draws them.

    >>> first = lives(0.1, seed=3)
    >>> next(first) == np.random.default_rng(3).exponential(10.0)
    True
    """
    require_positive(per_second=per_second)
    generator = np.random.default_rng(seed)
    while True:
        yield float(generator.exponential(1 / per_second))
        generator.random()  # whether a node is out: play draws it after every failure


def finish(job: Job, work_seconds: float, per_second: float, seed: int) -> Finish:
    """Return when a job that starts cold has done so many seconds of work.

    `play` says how much is done at the end of each life; in the first life that does enough, the
    moment is found by halving. Raises InputError for jobs that wait for repairs or would not end.

    >>> job = Job(1, replica_gpus=1, restart_seconds=8.0, repair_seconds=0.0,
    ...           checkpoint_seconds=0.0, interval_seconds=4.0)
    >>> round(finish(job, 40.0, per_second=1e-9, seed=0).seconds, 2)
    48.0
    """
    require_positive(work_seconds=work_seconds)
    require(
        job.repair_seconds == 0,
        f"repair_seconds {job.repair_seconds:g} must be 0: here no job waits for nodes",
    )
    ended = 0.0
    for failures, life in enumerate(lives(per_second, seed)):
        started, ended = ended, ended + life
        if _played(job, per_second, ended, seed).useful * ended >= work_seconds:
            return _within(job, work_seconds, per_second, seed, started, ended, failures)
        if failures == MOST_FAILURES:
            break
    raise InputError(
        f"after {MOST_FAILURES:,} failures {work_seconds:g} s of work are not done; "
        f"write checkpoints more often than every {job.interval_seconds:g} s"
    )


def _played(job: Job, per_second: float, seconds: float, seed: int) -> TimeSpent:
    spent, _ = play(job, per_second, seconds, 1.0, np.random.default_rng(seed), cold=True)
    return spent


def _within(
    job: Job,
    work: float,
    per_second: float,
    seed: int,
    low: float,
    high: float,
    failures: int,
) -> Finish:
    """Return the first moment between two at which the work is done; it only grows there."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        done = _played(job, per_second, middle, seed).useful * middle >= work
        low, high = (low, middle) if done else (middle, high)
    return Finish(high, failures, _played(job, per_second, high, seed))
