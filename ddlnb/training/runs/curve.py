"""The price of the model that a curve evaluates: the mean of the workers' models.

After an iteration of BSP every worker has that model. Within a round of local SGD, and in gossip at
any time, nobody does: it takes one average of the workers' models more, which the method itself
does not ask for. SSP and ASP keep a common model on the server; the mean of the workers' copies
stands for it and costs nothing.

The rows of a run's curve, written while it runs in lockstep, or from the reports of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddlnb.errors import NotFinite
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce
from ddlnb.training.executors.clock import HELD_PULL, PUSH, Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.job import TrainingJob, TrainingRun, WorkerReport
from ddlnb.training.method import TrainingMethod
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.worker import Worker
from ddlnb.workloads.task import Batch


@dataclass(frozen=True)
class Averaging:
    """One average of the models: bytes that a worker sends, and receives, and seconds (or NaN)."""

    bytes_sent: float
    seconds: float

    @classmethod
    def of(
        cls, method: TrainingMethod, workers: int, parameters: int, clock: Clock | None
    ) -> Averaging:
        """Return the price for models of float32 ``parameters``, averaged as it averages."""
        size = 4 * parameters
        if method.synchronisation.model_on_server:
            return cls(0.0, 0.0)
        if method.architecture == "PS":
            return cls(float(size), _through_server(clock, size, workers) if clock else math.nan)
        seconds = clock.communicate(AllReduce, size, workers) if clock else math.nan
        return cls(ring_bytes_sent(size, workers), seconds)

    def columns(self, consensus_distance: float) -> dict[str, object]:
        """Return the columns of a row whose workers are at this mean squared distance."""
        needed = consensus_distance != 0
        return {
            "averaging_bytes_sent": self.bytes_sent if needed else 0.0,
            "averaging_bytes_received": self.bytes_sent if needed else 0.0,
            "averaging_seconds": self.seconds if needed else 0.0,
        }


def _through_server(clock: Clock, size: int, workers: int) -> float:
    return sum(clock.trip_of(0, way, size, workers).seconds for way in (PUSH, HELD_PULL))


Row = dict[str, object]
HUGE = 1e3  # a run has diverged when its loss is this many times the first one, or times 1


class _Diverged(Exception):
    """A loss that is huge or no number."""


def largest_loss(task: LearningTask, job: TrainingJob) -> float:
    """Return the loss beyond which a run has diverged."""
    return HUGE * max(1.0, task.evaluate(job.model()).loss)


@dataclass(frozen=True)
class StoppingLoss:
    """A loss that ends the run when it is huge or no number, before a step is taken with it."""

    task: LearningTask
    limit: float

    @classmethod
    def of(cls, task: LearningTask, job: TrainingJob) -> StoppingLoss:
        """Return the task's loss with the limit of this job."""
        return cls(task, largest_loss(task, job))

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        loss = self.task.loss(module, batch)
        if not abs(loss.item()) <= self.limit:
            raise _Diverged
        return loss


class Learnt(NamedTuple):
    """What training changes of a worker's model."""

    parameters: Tensor  # flat
    buffers: tuple[Tensor, ...]  # in the order of the module, such as running statistics

    @classmethod
    def by(cls, worker: Worker) -> Learnt:
        """Return a copy of what this worker has learnt so far."""
        return cls(worker.parameters.clone(), _buffers(worker))


def _buffers(worker: Worker) -> tuple[Tensor, ...]:
    return tuple(one.clone() for one in worker.module.buffers())


class Carried(NamedTuple):
    """Bytes that a worker has sent and received, on average."""

    sent: float
    received: float

    @classmethod
    def by(cls, workers: Sequence[WorkerReport]) -> Carried:
        """Return the bytes of these workers until they reported."""
        return cls(
            sum(one.bytes_sent for one in workers) / len(workers),
            sum(one.bytes_received for one in workers) / len(workers),
        )


@dataclass
class LockstepCurve:
    """Watches a run in lockstep and writes its rows."""

    task: LearningTask
    job: TrainingJob
    workers: Sequence[Worker]
    every: int
    timed: bool
    averaging: Averaging
    rows: list[Row] = field(default_factory=list)
    _done: int = 0  # gradients, of all workers
    _losses: list[float] = field(default_factory=list)

    def of(self, run: Lockstep) -> list[Row]:
        """Make the run, whose ``on_step`` must be that of this curve, and return its rows."""
        self._run = run
        self._mean = _MeanModel(self.task, self.job)
        self._buffers = [_buffers(worker) for worker in self.workers]
        self._write(0, 0.0)
        try:
            run.run()
        except (_Diverged, NotFinite):
            step = max(1, math.ceil(self._done / len(self.workers)))
            if self.rows[-1]["step"] != step:
                self._write(step, math.nan)
            self.rows[-1]["diverged"] = True
        return self.rows

    def on_step(self, rank: int, done: int, seconds: float) -> None:
        """Count an iteration of a worker; the executor calls this after each of them."""
        self._done += 1
        self._losses.append(self.workers[rank].last_loss)
        # The worker's next gradient changes them, and may come before the others get here.
        self._buffers[rank] = _buffers(self.workers[rank])
        step, others = divmod(self._done, len(self.workers))
        if not others and (step % self.every == 0 or step == self.job.steps):
            self._write(step, seconds)

    def _write(self, step: int, seconds: float) -> None:
        run, workers = self._run, len(self.workers)
        carried = Carried(sum(run.bytes_sent) / workers, sum(run.bytes_received) / workers)
        shown = seconds if self.timed else math.nan
        learnt = [
            Learnt(worker.parameters, buffers)
            for worker, buffers in zip(self.workers, self._buffers, strict=True)
        ]
        row = self._mean.row(step, learnt, self._losses, carried, shown, self.averaging)
        self.rows.append(row)
        self._losses = []


class _MeanModel:
    """A model whose parameters and running statistics are the mean of the workers'.

    Buffers that are no floats are those of worker 0; what is not trained is as the job builds it.
    """

    def __init__(self, task: LearningTask, job: TrainingJob):
        self._task, self._module = task, job.model()
        owned = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._flat = torch.cat([parameter.detach().flatten() for parameter in owned])
        sizes = [parameter.numel() for parameter in owned]
        for parameter, values in zip(owned, self._flat.split(sizes), strict=True):
            parameter.data = values.view(parameter.shape)

    def row(
        self,
        step: int,
        learnt: Sequence[Learnt],
        losses: Sequence[float],
        carried: Carried,
        seconds: float,
        averaging: Averaging,
    ) -> Row:
        """Return a row about what these workers have learnt."""
        mean = _mean([one.parameters for one in learnt])
        self._flat.copy_(mean)
        for buffer, *copies in zip(
            self._module.buffers(), *(one.buffers for one in learnt), strict=True
        ):
            buffer.copy_(_mean(copies) if buffer.is_floating_point() else copies[0])
        squares = sum((one.parameters - mean).square().sum().item() for one in learnt)
        distance = squares / len(learnt)
        found = self._task.evaluate(self._module)
        return {
            "step": step,
            "train_loss": sum(losses) / len(losses) if losses else math.nan,
            "test_loss": found.loss,
            "test_accuracy": found.accuracy,
            "consensus_distance": distance,
            "bytes_sent": carried.sent,
            "bytes_received": carried.received,
            "seconds": seconds,
            **averaging.columns(distance),
            "diverged": False,
        }


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean in float64, so that the mean of equal tensors is exact."""
    mean = torch.zeros_like(tensors[0], dtype=torch.float64)
    for one in tensors:
        mean += one
    return mean / len(tensors)


class Seen(NamedTuple):
    """A worker after a step of its own, at some seconds of its clock."""

    step: int
    seconds: float
    learnt: Learnt
    diverged: bool


@dataclass(frozen=True)
class Observing:
    """Records what a worker on a rank has learnt, after every ``every`` steps and in the end."""

    steps: int
    every: int

    def __call__(self, worker: Worker, done: int, seconds: float) -> Seen | None:
        if done % self.every and done != self.steps:
            return None
        return Seen(done, seconds, Learnt.by(worker), worker.diverged)


def curve_of_ranks(task: LearningTask, job: TrainingJob, run: TrainingRun) -> list[Row]:
    """Return the rows of a run on ranks that were `Observing`; seconds are those of the slowest."""
    mean, limit = _MeanModel(task, job), largest_loss(task, job)
    start = [Learnt.by(job.worker(0))] * job.workers
    averaging = Averaging.of(job.method, job.workers, start[0].parameters.numel(), None)
    rows = [mean.row(0, start, (), Carried(0.0, 0.0), 0.0, averaging)]
    observed = [[seen for seen in report.observed if seen is not None] for report in run.workers]
    before = 0
    for seen in zip(*observed, strict=True):
        step = seen[0].step
        losses = [loss for report in run.workers for loss in report.losses[before:step]]
        carried = Carried.by(run.workers) if step == job.steps else Carried(math.nan, math.nan)
        seconds = max(one.seconds for one in seen)
        row = mean.row(step, [one.learnt for one in seen], losses, carried, seconds, averaging)
        rows.append(row)
        before = step
        if any(one.diverged for one in seen) or not all(abs(loss) <= limit for loss in losses):
            row["diverged"] = True
            break
    return rows
