"""One run of one method on one task: a tidy curve of what was learnt, sent and waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ddlnb.errors import UnknownName, require, require_whole
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.job import TrainingJob, learning_job
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.optimizers import Optimizer, get_optimizer
from ddlnb.training.runs.averaging import Averaging
from ddlnb.training.runs.code_digest import made_by
from ddlnb.training.runs.curve import LockstepCurve, Observing, StoppingLoss, curve_of_ranks
from ddlnb.training.schedules import get_schedule
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.splits import Split, get_split
from ddlnb.training.tasks.task import LearningTask

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.ranks import Ranks
    from ddlnb.training.runs.curve import Row

LOCKSTEP = "lockstep"
EXECUTORS = (LOCKSTEP, "distributed", "byteps")
EVALUATIONS = 20  # of a run, if not told otherwise


def train(
    task: str | LearningTask,
    method: str | TrainingMethod,
    *,
    workers: int = 8,
    steps: int = 300,
    local_batch: int | None = None,
    lr: float | None = None,
    optimizer: str | Optimizer = "sgd",
    schedule: str = "constant",
    seed: int = 0,
    split: str | Split = "iid",
    clock: Clock | None = None,
    evaluate_every: int | None = None,
    executor: str = LOCKSTEP,
    ranks: Ranks | None = None,
) -> pd.DataFrame:
    """The curve of a run: one row per evaluation, the first before training.

    A step is one gradient of every worker; where workers do not wait for one another, a row is
    written when they have computed as many in the mean. The model that is evaluated is the mean of
    the workers'. Columns beside the settings, among them the code that it was ``made_by``:
    ``train_loss``, the mean over all batches since the row before (NaN in the first); ``test_loss``
    and ``test_accuracy``; ``consensus_distance``, the mean squared distance of the workers'
    parameters from their mean; ``bytes_sent`` and ``bytes_received`` so far by a worker in the
    mean, counted; ``seconds`` of the virtual clock, NaN without one; ``averaging_bytes_sent``,
    ``averaging_bytes_received`` and ``averaging_seconds``, what it would take beside to form that
    mean model, 0 where all workers have it (`ddlnb.training.runs.averaging`); ``diverged``, true in the
    last row of a run that ended early because its loss or what it had to send was huge or no
    number.
    In lockstep the same arguments give the same bits.

    With executor "distributed" the workers are processes, of ``ranks`` or new ones, and seconds are
    real; a row holds the workers as they were at that step of their own, and bytes are known in
    the last row only (NaN before). A run that diverges ends in lockstep; there it goes on and what
    follows is left out. "byteps" is the same with BytePS's parameter servers, for
    methods on PS that wait for everybody or for nobody (`ddlnb.training.executors.byteps`).

    Raises UnknownName, InputError and MissingPart, and RankError if a rank fails.
    """
    import pandas as pd

    task, method, split = get_learning_task(task), training_method(method), get_split(split)
    optimizer = get_optimizer(optimizer)
    lr = optimizer.first_rate(task) if lr is None else lr
    local_batch = task.local_batch if local_batch is None else local_batch
    job = learning_job(
        task,
        method,
        workers=workers,
        steps=steps,
        local_batch=local_batch,
        lr=lr,
        optimizer=optimizer,
        schedule=schedule,
        seed=seed,
        split=split,
    )
    evaluate_every = max(1, steps // EVALUATIONS) if evaluate_every is None else evaluate_every
    require_whole(evaluate_every=evaluate_every)
    require_executor(executor, method, clock)
    if executor == LOCKSTEP:
        require(ranks is None, "lockstep has no ranks; leave them out or take distributed")
        rows = _in_lockstep(task, job, evaluate_every, clock)
    else:
        rows = _on_ranks(task, job, evaluate_every, executor, ranks)
    settings = {
        "task": task.name,
        "method": str(method),
        "synchronisation": str(method.synchronisation),
        "compression": str(method.compressor or "none"),
        "feedback": method.feedback,
        "architecture": method.architecture,
        "workers": workers,
        "local_batch": local_batch,
        "split": str(split),
        "optimizer": str(optimizer),
        "schedule": str(get_schedule(schedule)),
        "learning_rate": lr,
        "seed": seed,
        "executor": executor,
        "made_by": made_by(),
    }
    return pd.DataFrame([settings | row for row in rows])


def require_executor(executor: str, method: TrainingMethod, clock: Clock | None) -> None:
    """Raise InputError if the executor cannot run this method by this clock.

    Raises UnknownName, and MissingPart if this machine lacks what it needs.
    """
    if executor not in EXECUTORS:
        raise UnknownName("executor", executor, EXECUTORS)
    if executor != LOCKSTEP:
        from ddlnb.training.executors.servers import require_trains

        require(clock is None, "a clock is for lockstep; real processes take real time")
        require_trains(executor, method)


def _in_lockstep(
    task: LearningTask, job: TrainingJob, every: int, clock: Clock | None
) -> list[Row]:
    with _one_thread():
        batches = job.batches()
        ours = replace(job, loss=StoppingLoss.of(task, job), batches=lambda: batches)
        crew = [ours.worker(rank) for rank in range(job.workers)]
        size = crew[0].parameters.numel()
        averaging = Averaging.of(job.method, job.workers, size, clock)
        curve = LockstepCurve(task, ours, crew, every, clock is not None, averaging)
        run = Lockstep(
            crew,
            job.method.synchronisation.loop,
            job.steps,
            rule=ours.rule(),
            clock=clock,
            on_step=curve.on_step,
        )
        return curve.of(run)


def _on_ranks(
    task: LearningTask, job: TrainingJob, every: int, executor: str, ranks: Ranks | None
) -> list[Row]:
    from ddlnb.launch.ranks import Ranks
    from ddlnb.training.executors.distributed import train_on_ranks

    observed = replace(job, observe=Observing(job.steps, every), goes_on=True)
    with Ranks(job.ranks) if ranks is None else nullcontext(ranks) as placed:
        run = train_on_ranks(placed, observed, executor=executor)
    with _one_thread():
        return curve_of_ranks(task, job, run)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch with one thread: small tensors are faster so, and sums always have the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
