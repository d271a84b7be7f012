"""The run that `ddlnb.training.runs.train` makes in lockstep, as a job that also runs on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ddlnb.errors import require, require_whole
from ddlnb.training.job import Observe, TrainingJob, no_delay
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.optimizers import Optimizer, get_optimizer
from ddlnb.training.schedules import get_schedule
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.splits import Split, get_split
from ddlnb.training.tasks.task import LearningTask


def learning_job(
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
    delay: Callable[[int, int], float] = no_delay,
    observe: Observe | None = None,
) -> TrainingJob:
    """A job with the settings of ``train``, and with the delays and the observer of a job.

    Data are loaded where the job runs. Raises UnknownName and InputError.
    """
    task, split = get_learning_task(task), get_split(split)
    local_batch = task.local_batch if local_batch is None else local_batch
    require_whole(local_batch=local_batch, workers=workers, steps=steps)
    require_whole(0, seed=seed)
    method, chosen = training_method(method), get_optimizer(optimizer)
    method.check_optimizer(chosen)
    lr = chosen.first_rate(task) if lr is None else lr
    require(
        0 < lr <= torch.finfo(torch.float32).max,
        f"learning rate {lr} must be positive and a number of 32 bits",
    )
    return TrainingJob(
        method,
        partial(task.build, seed),
        task.loss,
        partial(task.batches, split, workers, local_batch, seed),
        partial(chosen.make, lr=lr),
        workers,
        steps,
        seed,
        schedule=partial(get_schedule(schedule).factor, steps=steps),
        delay=delay,
        observe=observe,
    )
