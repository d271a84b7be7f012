"""One run of one method on one task: a tidy curve of what was learnt, sent and waited for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ddlnb.errors import UnknownName, require, require_whole
from ddlnb.models import Batch
from ddlnb.training.clock import Clock
from ddlnb.training.learning_task import LearningTask
from ddlnb.training.lockstep import Lockstep
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.optimizers import default_rate, get_optimizer
from ddlnb.training.schedules import get_schedule
from ddlnb.training.splits import Split, get_split
from ddlnb.training.tasks import get_learning_task
from ddlnb.training.worker import Worker

if TYPE_CHECKING:
    import pandas as pd

EXECUTORS = ("lockstep",)
EVALUATIONS = 20  # of a run, if not told otherwise
HUGE = 1e3  # times the loss before training, or times one if that is more: the run has diverged


class _Diverged(Exception):
    """A loss that is huge or no number."""


def train(
    task: str | LearningTask,
    method: str | TrainingMethod,
    *,
    workers: int = 8,
    steps: int = 300,
    local_batch: int | None = None,
    lr: float | None = None,
    optimizer: str = "sgd",
    schedule: str = "constant",
    seed: int = 0,
    split: str | Split = "iid",
    clock: Clock | None = None,
    evaluate_every: int | None = None,
    executor: str = "lockstep",
) -> pd.DataFrame:
    """The curve of a run: one row per evaluation, the first before training.

    A step is one gradient of every worker; where workers do not wait for one another, a row is
    written when they have computed as many in the mean. The model that is evaluated is the mean of
    the workers'. Columns beside the settings: ``train_loss``, the mean over all batches since the
    row before (NaN in the first); ``test_loss`` and ``test_accuracy``; ``consensus_distance``, the
    mean squared distance of the workers' parameters from their mean; ``bytes_sent`` so far by a
    worker in the mean, counted; ``seconds`` of the virtual clock, NaN without one; ``diverged``,
    true in the last row of a run that ended early because its loss was huge or no number.
    The same arguments give the same bits. Raises UnknownName and InputError.
    """
    import pandas as pd

    task, method, split = get_learning_task(task), training_method(method), get_split(split)
    require_whole(workers=workers, steps=steps)
    require_whole(0, seed=seed)
    local_batch = task.local_batch if local_batch is None else local_batch
    evaluate_every = max(1, steps // EVALUATIONS) if evaluate_every is None else evaluate_every
    require_whole(local_batch=local_batch, evaluate_every=evaluate_every)
    lr = default_rate(task, optimizer) if lr is None else lr
    require(0 < lr < math.inf, f"learning rate {lr} must be positive and finite")
    if executor not in EXECUTORS:
        raise UnknownName("executor", executor, EXECUTORS)

    make_optimizer, shape = get_optimizer(optimizer, lr), get_schedule(schedule)
    batches = task.batches(split, workers, local_batch, seed)
    loss = _Checked(task, HUGE * max(1.0, task.evaluate(task.build(seed)).loss))
    with _one_thread():
        crew = [
            Worker(
                rank,
                workers,
                task.build(seed),
                loss,
                batches[rank],
                make_optimizer,
                method.compression,
                schedule=partial(shape.factor, steps=steps),
                architecture=method.architecture,
                seed=seed,
            )
            for rank in range(workers)
        ]
        curve = _Curve(task, crew, steps, evaluate_every, timed=clock is not None)
        run = Lockstep(
            crew,
            method.synchronisation.loop,
            steps,
            rule=method.rule(workers, crew[0].pieces()),
            clock=clock,
            on_step=curve.on_step,
        )
        rows = curve.run(run)
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
        "optimizer": optimizer,
        "schedule": str(shape),
        "learning_rate": lr,
        "seed": seed,
        "executor": executor,
    }
    return pd.DataFrame([settings | row for row in rows])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch with one thread: small tensors are faster so, and sums always have the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Checked:
    """A loss that stops the run when it is huge or no number, before anything is made of it."""

    task: LearningTask
    limit: float

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        loss = self.task.loss(module, batch)
        if not abs(loss.item()) <= self.limit:
            raise _Diverged
        return loss


@dataclass
class _Curve:
    """Watches a run and writes its rows."""

    task: LearningTask
    workers: Sequence[Worker]
    steps: int
    every: int
    timed: bool
    rows: list[dict[str, object]] = field(default_factory=list)
    _done: int = 0  # gradients, of all workers
    _losses: list[float] = field(default_factory=list)

    def run(self, lockstep: Lockstep) -> list[dict[str, object]]:
        """The rows of the run."""
        self._bytes = lockstep.bytes_sent
        self._mean = _MeanModel(self.task.build(0), self.workers)
        self._write(0, 0.0)
        try:
            lockstep.run()
        except _Diverged:
            step = min(self.steps, math.ceil(self._done / len(self.workers)))
            if self.rows[-1]["step"] != step:
                self._write(step, math.nan)
            self.rows[-1]["diverged"] = True
        return self.rows

    def on_step(self, rank: int, done: int, seconds: float) -> None:
        """Called by the executor after every iteration of every worker."""
        self._done += 1
        self._losses.append(self.workers[rank].last_loss)
        step, others = divmod(self._done, len(self.workers))
        if not others and (step % self.every == 0 or step == self.steps):
            self._write(step, seconds)

    def _write(self, step: int, seconds: float) -> None:
        distance = self._mean.update()
        found = self.task.evaluate(self._mean.module)
        losses, self._losses = self._losses, []
        self.rows.append(
            {
                "step": step,
                "train_loss": sum(losses) / len(losses) if losses else math.nan,
                "test_loss": found.loss,
                "test_accuracy": found.accuracy,
                "consensus_distance": distance,
                "bytes_sent": sum(self._bytes) / len(self.workers),
                "seconds": seconds if self.timed else math.nan,
                "diverged": False,
            }
        )


class _MeanModel:
    """A model whose parameters are the mean of the workers'."""

    def __init__(self, module: nn.Module, workers: Sequence[Worker]):
        self.module, self._workers = module, workers
        owned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._flat = torch.cat([parameter.detach().flatten() for parameter in owned])
        sizes = [parameter.numel() for parameter in owned]
        for parameter, values in zip(owned, self._flat.split(sizes), strict=True):
            parameter.data = values.view(parameter.shape)

    def update(self) -> float:
        """Take the mean; return the mean squared distance of the workers from it."""
        mean = torch.zeros_like(self._flat, dtype=torch.float64)  # exact for equal workers
        for worker in self._workers:
            mean += worker.parameters
        mean /= len(self._workers)
        self._flat.copy_(mean)
        squares = ((worker.parameters - mean).square().sum() for worker in self._workers)
        return sum(square.item() for square in squares) / len(self._workers)
