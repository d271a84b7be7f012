"""Train one method on one task: a tidy curve of what was learnt, sent and waited for.

Rows are written while a run goes on in lockstep, or from the reports of ranks. Every row names the
code that made it: saved runs count only if the same code would make them.

What is evaluated is the mean of the workers' models, and it has a price. After an iteration of BSP
every worker has that model. Within a round of local SGD, and in gossip at any time, nobody does: it
takes one average of the workers' models more, which the method itself does not ask for. SSP and ASP
keep a common model on the server, and that is evaluated, as the newest copy of it. Other workers
may hold older ones, those that have ended for good.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

import ddlnb
from ddlnb.errors import NotFinite, require
from ddlnb.files import versions
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce
from ddlnb.training.executors.clock import HELD_PULL, PUSH, Clock, Straggler
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingJob, TrainingMethod, TrainingRun
from ddlnb.training.settings import LOCKSTEP, TrainingSettings, training_settings
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.worker import Worker
from ddlnb.workloads.profiling import torch_threads
from ddlnb.workloads.task import Batch

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.ranks import Ranks


PACKAGE = Path(ddlnb.__file__).parent
ALGORITHMS = (
    *("training", "compression"),
    *("registry.py", "seeding.py", "compiling.py"),
    *("plans/alpha_beta.py", "plans/requests.py", "plans/server_rules.py"),
    *("workloads/task.py", "workloads/models.py"),
)


def train(
    task: str | LearningTask,
    method: str | TrainingMethod,
    *,
    ranks: Ranks | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Return the curve of one run: one row per evaluation, the first before training.

    ``settings`` are those of `ddlnb.training.settings.TrainingSettings`, such as ``workers``,
    ``steps``, ``lr``, ``optimizer``, ``split``, ``seed`` and ``clock``. In lockstep the same
    arguments give the same bits.

    A step is one gradient of every worker; where workers do not wait for one another, a row is
    written when they have computed as many on average. The model that is evaluated is the mean of
    the workers', or the one on the server where there is one at all times. Beside the settings and
    the code that it was ``made_by``, a row holds

    - ``train_loss``, the mean over all batches since the row before (NaN in the first);
    - ``test_loss`` and ``test_accuracy``;
    - ``consensus_distance``, the mean squared distance of the workers' parameters from their mean;
    - ``bytes_sent`` and ``bytes_received`` so far, counted, by a worker on average;
    - ``seconds`` of the virtual clock, NaN without one;
    - ``averaging_bytes_sent``, ``averaging_bytes_received`` and ``averaging_seconds``, the price of
      forming that mean model, 0 where all workers have it (seconds are NaN without a clock);
    - ``diverged``, true in the last row of a run that ended early because its loss, or what it had
      to send, was huge or no number.

    With executor "distributed" the workers are processes, of ``ranks`` or new ones, and seconds are
    real, those of the average too: one all-reduce after the last step. A row then holds the workers
    as each was at that step of its own, and bytes are known in the last row only (NaN before). A
    run that diverges goes on there, and what follows is left out.
    "byteps" is the same with BytePS's parameter servers, for methods on PS that wait for everybody
    or for nobody (`ddlnb.training.executors.distributed`).

    Raises UnknownName, InputError and MissingPart, and RankError if a rank fails.

    >>> curve = train("quadratic", "local(8)", workers=4, steps=16)
    >>> bool(curve["test_loss"].iloc[-1] < curve["test_loss"].iloc[0])
    True
    """
    return run(training_settings(task, method, **settings), ranks)


def run(settings: TrainingSettings, ranks: Ranks | None = None) -> pd.DataFrame:
    """Return the curve of the run with these settings, as `train` does."""
    import pandas as pd

    if settings.executor == LOCKSTEP:
        require(ranks is None, "lockstep has no ranks; leave them out or take distributed")
        with torch_threads(1):  # small tensors are faster so, and sums have the same order
            rows = curve_in_lockstep(settings)
    else:
        rows = _on_ranks(settings, ranks)
    columns = settings.columns() | {"made_by": made_by(settings.task)}
    return pd.DataFrame([columns | row for row in rows])


def _on_ranks(settings: TrainingSettings, ranks: Ranks | None) -> list[Row]:
    from ddlnb.engines.settings import TRAINING
    from ddlnb.launch.ranks import Ranks
    from ddlnb.training.executors.distributed import train_on_ranks

    job = settings.job()
    observed = replace(job, observe=Observing(job.steps, settings.every), goes_on=True)
    imports = (train_on_ranks.__module__, *TRAINING)
    own = Ranks(job.ranks, imports=imports) if ranks is None else nullcontext(ranks)
    with own as started:
        report = train_on_ranks(started, observed, executor=settings.executor)
    with torch_threads(1):
        return curve_of_ranks(settings.task, job, report)


def made_by(task: LearningTask) -> str:
    """Return versions, the hash of the sources that define training, and what samples are made of.

    Changes of sources during the process are not seen.
    """
    made_of = task.made_of()
    return _code() + (made_of and f"; {made_of}")


@cache
def _code() -> str:
    return f"{versions()}; sources {source_hash(PACKAGE)}"


def source_hash(package: Path, parts: Iterable[str] = ALGORITHMS) -> str:
    """Return the hash of names and contents of these files and folders below a folder."""
    digest = hashlib.sha256()
    for part in parts:
        source = package / part
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path.relative_to(package)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# The rows of a curve.


Row = dict[str, object]
SAME = 1e-9  # models this far apart are one, of their squared length: sums were rounded
HUGE = 1e3  # a run has diverged when its loss is this many times the first one, or times 1


class Averaging(NamedTuple):
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
        if method.architecture != "PS":
            seconds = clock.communicate(AllReduce, size, workers) if clock else math.nan
            return cls(ring_bytes_sent(size, workers), seconds)
        if clock is None:
            return cls(float(size), math.nan)
        ways = (PUSH, HELD_PULL)
        return cls(size, sum(clock.trip_of(0, way, size, workers).seconds for way in ways))


class Learnt(NamedTuple):
    """What training changes of a worker's model."""

    parameters: Tensor  # flat
    buffers: list[Tensor]  # in the order of the module, such as running statistics

    @classmethod
    def by(cls, worker: Worker) -> Learnt:
        """Return a copy of what this worker has learnt so far."""
        return cls(worker.parameters.clone(), _buffers(worker))


def _buffers(worker: Worker) -> list[Tensor]:
    return [one.clone() for one in worker.module.buffers()]


class _Curve:
    """The rows of a run, each about the mean of the workers' models, or the one on the server.

    Buffers that are no floats are those of worker 0; what is not trained is as the job builds it.
    A run has diverged when a loss is beyond ``largest_loss``, or is no number.
    """

    def __init__(
        self, task: LearningTask, job: TrainingJob, clock: Clock | None, averaging: float = math.nan
    ):
        self.rows: list[Row] = []
        self._task, self._module = task, job.model()
        self.largest_loss = HUGE * max(1.0, task.evaluate(self._module).loss)
        owned = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._flat = torch.cat([parameter.detach().flatten() for parameter in owned])
        sizes = [parameter.numel() for parameter in owned]
        for parameter, values in zip(owned, self._flat.split(sizes), strict=True):
            parameter.data = values.view(parameter.shape)
        self._average = Averaging.of(job.method, job.workers, len(self._flat), clock)
        if math.isfinite(averaging):  # measured
            self._average = self._average._replace(seconds=averaging)
        self._method, self._synchronisation = job.method, job.method.synchronisation

    def add(
        self,
        step: int,
        learnt: Sequence[Learnt],
        losses: Sequence[float],
        bytes_sent: float,
        bytes_received: float,
        seconds: float,
        last: int = 0,
    ) -> None:
        """Write a row about what these workers have learnt, of whom ``last`` has just stepped.

        Bytes are a worker's on average.
        """
        mean = _mean([one.parameters for one in learnt])
        newest = self._synchronisation.newest(last, len(learnt))
        evaluated = [learnt[newest]] if self._synchronisation.model_on_server else learnt
        self._flat.copy_(_mean([one.parameters for one in evaluated]))
        for buffer, *copies in zip(
            self._module.buffers(), *(one.buffers for one in evaluated), strict=True
        ):
            buffer.copy_(_mean(copies) if buffer.is_floating_point() else copies[0])
        squares = sum((one.parameters - mean).square().sum().item() for one in learnt)
        self._apart = squares / len(learnt)
        average = self._average if squares else Averaging(0.0, 0.0)
        found = self._task.evaluate(self._module)
        self.rows.append(
            {
                "step": step,
                "train_loss": sum(losses) / len(losses) if losses else math.nan,
                "test_loss": found.loss,
                "test_accuracy": found.accuracy,
                "consensus_distance": self._apart,
                "bytes_sent": bytes_sent,
                "bytes_received": bytes_received,
                "seconds": seconds,
                "averaging_bytes_sent": average.bytes_sent,
                "averaging_bytes_received": average.bytes_sent,
                "averaging_seconds": average.seconds,
                "diverged": False,
            }
        )

    def require_one_model(self) -> None:
        """Raise InputError if workers that average every gradient hold different models."""
        size = self._flat.square().sum().item()
        require(
            not (self._synchronisation.averages_gradients and self._apart > SAME * size),
            f"the workers' models differ after step {self.rows[-1]['step']} of {self._method}, by "
            f"{self._apart:.2g} in squared distance, though it averages every gradient; its "
            f"compressor must return the same average to every worker",
        )


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean in float64, so that the mean of equal tensors is exact."""
    mean = torch.zeros_like(tensors[0], dtype=torch.float64)
    for one in tensors:
        mean += one
    return mean / len(tensors)


class _Diverged(Exception):
    """A loss that is huge or no number."""


# Where a run diverges some workers have taken a step that others have not: their mean is no model.
AMID_A_STEP = dict.fromkeys(("test_loss", "test_accuracy", "consensus_distance"), math.nan)
AMID_A_STEP |= dict.fromkeys(
    ("averaging_bytes_sent", "averaging_bytes_received", "averaging_seconds"), 0.0
)


def curve_in_lockstep(settings: TrainingSettings) -> list[Row]:
    """Return the rows of a run in lockstep, which ends when its numbers are huge or none."""
    task, clock, job = settings.task, _clock_of(settings), settings.job()
    curve, batches = _Curve(task, job, clock), job.batches()

    def loss(module: nn.Module, batch: Batch) -> Tensor:  # before a step is taken with it
        found = task.loss(module, batch)
        if not abs(found.item()) <= curve.largest_loss:
            raise _Diverged
        return found

    job = replace(job, loss=loss, batches=lambda: batches)
    workers = [job.worker(rank) for rank in range(job.workers)]
    buffers = [_buffers(worker) for worker in workers]
    losses: list[float] = []
    gradients = 0  # of all workers

    def on_step(rank: int, done: int, seconds: float) -> None:
        nonlocal gradients
        gradients += 1
        losses.append(workers[rank].last_loss)
        # The worker's next gradient changes them, and may come before the others get here.
        buffers[rank] = _buffers(workers[rank])
        step, others = divmod(gradients, len(workers))
        if not others and (step % settings.every == 0 or step == job.steps):
            write(step, seconds, rank)
            curve.require_one_model()

    def write(step: int, seconds: float, last: int = 0) -> None:
        sent, received = (sum(ways) / len(workers) for ways in (run.bytes_sent, run.bytes_received))
        learnt = [
            Learnt(worker.parameters, copies)
            for worker, copies in zip(workers, buffers, strict=True)
        ]
        curve.add(step, learnt, losses, sent, received, seconds if clock else math.nan, last)
        losses.clear()

    loop, rule = job.method.synchronisation.loop, job.rule()
    run = Lockstep(workers, loop, job.steps, rule=rule, clock=clock, on_step=on_step)
    write(0, 0.0)
    try:
        run.run()
    except (_Diverged, NotFinite):
        step = max(1, math.ceil(gradients / len(workers)))
        if curve.rows[-1]["step"] != step:
            write(step, math.nan)
            curve.rows[-1] |= AMID_A_STEP
        curve.rows[-1]["diverged"] = True
    return curve.rows


def _clock_of(settings: TrainingSettings) -> Clock | None:
    """Return the clock of a run, whose stragglers draw with its seed beside their own."""
    clock = settings.clock
    if clock is None or not isinstance(clock.compute, Straggler):
        return clock
    law = clock.compute
    return replace(clock, compute=law.drawn_from(getattr(law, "seed", 0) + settings.seed))


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
    """Return the rows of a run on ranks that were `Observing`; seconds are those of the slowest.

    Bytes are known in the end only.
    """
    averaging = max(report.averaging_seconds for report in run.workers)
    curve = _Curve(task, job, None, averaging)
    curve.add(0, [Learnt.by(job.worker(0))] * job.workers, (), 0.0, 0.0, 0.0)
    observed = [[seen for seen in report.observed if seen is not None] for report in run.workers]
    before = 0
    for seen in zip(*observed, strict=True):
        step = seen[0].step
        losses = [loss for report in run.workers for loss in report.losses[before:step]]
        known = 1.0 if step == job.steps else math.nan
        sent, received = (
            known * sum(getattr(report, way) for report in run.workers) / job.workers
            for way in ("bytes_sent", "bytes_received")
        )
        last = max(range(len(seen)), key=lambda rank: seen[rank].seconds)
        learnt = [one.learnt for one in seen]
        curve.add(step, learnt, losses, sent, received, seen[last].seconds, last)
        before = step
        if any(one.diverged for one in seen) or not all(
            abs(loss) <= curve.largest_loss for loss in losses
        ):
            curve.rows[-1]["diverged"] = True
            break
        curve.require_one_model()
    return curve.rows
