"""A job that a rank trains, the spans that it records, and its report.

Jobs and reports are data that travels between processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from ddlnb.engines.settings import OPTIMIZERS, MakeOptimizer
from ddlnb.launch.rank import RankContext
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Plan
from ddlnb.plans.transfers import Collective
from ddlnb.results.timeline import Span
from ddlnb.workloads.task import Task


@dataclass(frozen=True)
class SyncPoint:
    """All ranks met before ``iteration``, which kept this one for so many seconds.

    ``drifted`` says whether the cost of an all-reduce was measured, and a plan searched for it.
    """

    iteration: int
    seconds: float
    drifted: bool


@dataclass(frozen=True)
class PlanSwitch:
    """A plan that took over before ``iteration``, counted from 0 and warm-up included.

    ``cost`` is that of the all-reduce it was searched for, in real seconds.
    """

    iteration: int
    digest: str
    messages: int
    cost: AlphaBeta

    def __str__(self) -> str:
        return f"{self.digest} from iteration {self.iteration}"


class Replanner(Protocol):
    """Follows the run of one worker, and may put another plan in the place of its own."""

    switches: list[PlanSwitch]
    sync_points: list[SyncPoint]

    def after_step(self, iteration: int) -> None:
        """Take note of a step; ``iteration`` is that of the next one. Every rank calls it."""


class Replans(Protocol):
    """How a job plans anew, as data that travels to the ranks."""

    def follow(self, context: RankContext, job: Job, store: Any, trainer: Any) -> Replanner:
        """Return what follows this worker."""


@dataclass(frozen=True)
class Job:
    """One run: ``warmup`` iterations, ``iterations`` timed ones, ``traced`` ones with spans.

    ``engine`` is a name of ddlnb.engines.catalogue; ``plan`` is None for its baseline.
    Step t of worker w trains on ``task.batch(local_batch, seed)`` with seed t * workers + w,
    starting over after ``batches`` steps; they are drawn before the clock starts. ``topology`` is
    that of our own engine's all-reduces, ``collective`` what carries them out instead, where the
    plan does not say it; ``ranks_per_node`` neighbours share a node.
    With ``replanning`` our own engine plans anew when the network drifts. Before the iterations of
    ``changes``, counted from 0 with the warm-up, rank 0 has the owner change the emulated network.
    """

    task: Task
    engine: str
    workers: int
    local_batch: int
    iterations: int
    warmup: int = 0
    traced: int = 0
    plan: Plan | None = None
    make_optimizer: MakeOptimizer = OPTIMIZERS["sgd"]
    seed: int = 0
    batches: int = 8
    device: str = "cpu"
    backend: str = "gloo"
    topology: str = "ring"
    collective: Collective | None = None
    ranks_per_node: int = 1
    keep_parameters: bool = False
    replanning: Replans | None = None
    changes: tuple[int, ...] = ()

    @property
    def servers(self) -> int:
        """The number of parameter servers, which are the ranks from ``workers`` on."""
        return self.plan.servers if self.plan else 0

    @property
    def ranks(self) -> int:
        """The number of processes that take part."""
        return self.workers + self.servers


@dataclass(frozen=True)
class Report:
    """What one worker measured. Seconds are those of all timed iterations together.

    ``step_seconds`` are those of each iteration in turn, warm-up and traced ones included; with a
    plan that overlaps iterations, messages of one may be waited for in the next. Those at
    ``sync_points`` are not in them, which are in seconds of the clock whatever the scale.
    ``digest`` is a fingerprint of the final parameters; ``parameters`` are kept only if asked.
    ``switches`` are the plans that took over from the job's own.
    """

    rank: int
    seconds: float
    waited_seconds: float
    bytes_sent: float
    losses: tuple[float, ...]
    digest: str
    spans: tuple[Span, ...] = ()
    parameters: dict[str, torch.Tensor] | None = field(default=None, repr=False)
    switches: tuple[PlanSwitch, ...] = ()
    step_seconds: tuple[float, ...] = ()
    sync_points: tuple[SyncPoint, ...] = ()

    def scaled(self, scale: float) -> Report:
        """Return the report of a run slowed to the scale, in real seconds.

        At a hundredth of the speed everything takes a hundred times as long.
        """
        if scale == 1:
            return self
        spans = tuple(
            replace(
                span,
                start_seconds=scale * span.start_seconds,
                stop_seconds=scale * span.stop_seconds,
            )
            for span in self.spans
        )
        return replace(
            self,
            seconds=scale * self.seconds,
            waited_seconds=scale * self.waited_seconds,
            step_seconds=tuple(scale * each for each in self.step_seconds),
            spans=spans,
        )


class Tracer:
    """Collects spans; ``zero`` is a moment all ranks share, such as the end of a barrier.

    Appending to a list is atomic, so hooks, transports and the training loop may all record.
    """

    def __init__(self, rank: int, zero: float):
        self.rank, self.zero, self.iteration = rank, zero, 0
        self.spans: list[Span] = []

    def record(
        self,
        kind: str,
        name: str,
        start: float,
        stop: float,
        size: int = 0,
        iteration: int | None = None,
    ) -> None:
        """Note a span between two readings of time.perf_counter."""
        number = self.iteration if iteration is None else iteration
        begin, end = start - self.zero, stop - self.zero
        self.spans.append(Span(self.rank, kind, name, begin, end, number, size))


@contextmanager
def recorded(tracer: Tracer | None, kind: str, name: str) -> Iterator[None]:
    """Note the block as one span, if there is a tracer."""
    start = time.perf_counter()
    yield
    if tracer is not None:
        tracer.record(kind, name, start, time.perf_counter())
