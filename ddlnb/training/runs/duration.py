"""How long training in lockstep takes on this machine, told before it starts.

Short runs of every cell are timed: with few steps and with more, with few evaluations and with
more. It is meant for a question, not for a table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ddlnb.training.runs.parallel import START_SECONDS, default_jobs
from ddlnb.training.runs.train import run
from ddlnb.training.schedules import get_schedule
from ddlnb.training.settings import LOCKSTEP, TrainingSettings

FEW, MORE = 4, 16  # steps of the runs that are timed
TUNING_RUNS = 4.5  # of full length, for most methods (`ddlnb.training.runs.tuning`)
SOON = 20_000  # gradients that need no question: seconds, and they say so soon enough


def estimated_seconds(
    cells: Sequence[TrainingSettings], runs: int, *, tune: bool = False, jobs: int | None = None
) -> float | None:
    """Return the seconds of that many runs of every cell, after tuning if it is asked for.

    None on real processes, whose seconds are not those of this process.
    """
    if any(cell.executor != LOCKSTEP for cell in cells):
        return None
    each = runs + (TUNING_RUNS if tune else 0)
    if each * sum(cell.steps * cell.workers for cell in cells) <= SOON:
        return 0.0
    jobs = default_jobs() if jobs is None else jobs
    return START_SECONDS + each * sum(map(_run_seconds, cells)) / jobs


def _run_seconds(cell: TrainingSettings) -> float:
    """Return the seconds of one run of these settings."""
    _timed(cell, FEW, FEW)  # loads the data, compiles
    few, more, often = _timed(cell, FEW, FEW), _timed(cell, MORE, MORE), _timed(cell, FEW, 1)
    step = max(0.0, more - few) / (MORE - FEW)
    evaluation = max(0.0, often - few) / (FEW - 1)
    return cell.steps * step + cell.steps / cell.every * evaluation


def _timed(cell: TrainingSettings, steps: int, every: int) -> float:
    short = replace(cell, steps=steps, evaluate_every=every, schedule=get_schedule("constant"))
    begin = time.perf_counter()
    run(short)
    return time.perf_counter() - begin
