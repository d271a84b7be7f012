"""The rows of a run's curve, written while it runs in lockstep or from what ranks report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ddlnb.models import Batch
from ddlnb.training.averaging import Averaging
from ddlnb.training.job import TrainingJob, TrainingRun
from ddlnb.training.learning_task import LearningTask
from ddlnb.training.lockstep import Lockstep
from ddlnb.training.worker import Worker

Row = dict[str, object]
HUGE = 1e3  # times the loss before training, or times one if that is more: the run has diverged


class _Diverged(Exception):
    """A loss that is huge or no number."""


def largest_loss(task: LearningTask, job: TrainingJob) -> float:
    """The loss beyond which a run has diverged."""
    return HUGE * max(1.0, task.evaluate(job.build()).loss)


@dataclass(frozen=True)
class StoppingLoss:
    """A loss that ends the run when it is huge or no number, before anything is made of it."""

    task: LearningTask
    limit: float

    @classmethod
    def of(cls, task: LearningTask, job: TrainingJob) -> StoppingLoss:
        """The task's loss, with the limit of this job."""
        return cls(task, largest_loss(task, job))

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        loss = self.task.loss(module, batch)
        if not abs(loss.item()) <= self.limit:
            raise _Diverged
        return loss


@dataclass
class LockstepCurve:
    """Watches a run and writes its rows."""

    task: LearningTask
    workers: Sequence[Worker]
    steps: int
    every: int
    timed: bool
    averaging: Averaging
    rows: list[Row] = field(default_factory=list)
    _done: int = 0  # gradients, of all workers
    _losses: list[float] = field(default_factory=list)

    def of(self, run: Lockstep) -> list[Row]:
        """The rows of the run, which is run here; its ``on_step`` must be ours."""
        self._bytes = run.bytes_sent
        self._mean = _MeanModel(self.task)
        self._write(0, 0.0)
        try:
            run.run()
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
        sent = sum(self._bytes) / len(self.workers)
        shown = seconds if self.timed else math.nan
        parameters = [worker.parameters for worker in self.workers]
        row = self._mean.row(step, parameters, self._losses, sent, shown, self.averaging)
        self.rows.append(row)
        self._losses = []


class _MeanModel:
    """A model whose parameters are the mean of the workers'."""

    def __init__(self, task: LearningTask):
        self._task, self._module = task, task.build(0)
        owned = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._flat = torch.cat([parameter.detach().flatten() for parameter in owned])
        sizes = [parameter.numel() for parameter in owned]
        for parameter, values in zip(owned, self._flat.split(sizes), strict=True):
            parameter.data = values.view(parameter.shape)

    def row(
        self,
        step: int,
        parameters: Sequence[Tensor],
        losses: Sequence[float],
        sent: float,
        seconds: float,
        averaging: Averaging,
    ) -> Row:
        """What these workers have learnt, as a row."""
        mean = torch.zeros_like(self._flat, dtype=torch.float64)  # exact for equal workers
        for one in parameters:
            mean += one
        mean /= len(parameters)
        self._flat.copy_(mean)
        squares = sum((one - mean).square().sum().item() for one in parameters)
        distance = squares / len(parameters)
        found = self._task.evaluate(self._module)
        return {
            "step": step,
            "train_loss": sum(losses) / len(losses) if losses else math.nan,
            "test_loss": found.loss,
            "test_accuracy": found.accuracy,
            "consensus_distance": distance,
            "bytes_sent": sent,
            "seconds": seconds,
            **averaging.columns(distance),
            "diverged": False,
        }


@dataclass(frozen=True)
class Observing:
    """What a worker on a rank shows of itself, every so many steps: step, seconds, parameters."""

    steps: int
    every: int

    def __call__(
        self, worker: Worker, done: int, seconds: float
    ) -> tuple[int, float, Tensor] | None:
        if done % self.every and done != self.steps:
            return None
        return done, seconds, worker.parameters.clone()


def curve_of_ranks(task: LearningTask, job: TrainingJob, run: TrainingRun) -> list[Row]:
    """The rows of a run on ranks that were `Observing`; seconds are those of the slowest."""
    mean, limit = _MeanModel(task), largest_loss(task, job)
    start = [job.worker(0).parameters] * job.workers
    averaging = Averaging.of(job.method, job.workers, start[0].numel(), None)
    rows = [mean.row(0, start, (), 0.0, 0.0, averaging)]
    seen = [[shown for shown in report.observed if shown is not None] for report in run.workers]
    before = 0
    for shown in zip(*seen, strict=True):
        step = shown[0][0]
        losses = [loss for report in run.workers for loss in report.losses[before:step]]
        last = step == job.steps
        sent = sum(report.bytes_sent for report in run.workers) / job.workers if last else math.nan
        seconds = max(seconds for _, seconds, _ in shown)
        row = mean.row(step, [one for _, _, one in shown], losses, sent, seconds, averaging)
        rows.append(row)
        before = step
        if not all(abs(loss) <= limit for loss in losses):
            row["diverged"] = True
            break
    return rows
