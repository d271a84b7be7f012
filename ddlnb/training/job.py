"""One training run as data: what travels to the ranks, and what they report.

Every executor makes its workers here, so that runs differ only in who answers their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.server_rules import Rule
from ddlnb.training.method import TrainingMethod
from ddlnb.training.worker import Schedule, Worker
from ddlnb.workloads.task import Batch

SEEDS = 1 << 32  # torch uses 32 bits of a seed
Observe = Callable[[Worker, int, float], Any]  # worker, iterations it has done, seconds


def constant(step: int) -> float:
    """Return 1: a schedule that keeps the learning rate."""
    return 1.0


def no_delay(rank: int, step: int) -> float:
    """Return no seconds: there are no stragglers but those of the machine."""
    return 0.0


@dataclass(frozen=True)
class TrainingJob:
    """``steps`` steps of ``workers`` workers, and one more rank for a parameter server on "PS".

    ``build()`` makes the model, the same on every worker. ``batches()`` makes every worker's
    ``batch(step)``, by rank; it is called on the ranks, so that data need not travel.
    ``delay(rank, step)`` is how many seconds a worker sleeps before a gradient, as a straggler.
    ``observe(worker, iterations, seconds)`` is called after every iteration, within the time that
    is measured; the report keeps what it returns. Functions must be picklable. With ``goes_on``
    workers do not fail when their numbers cannot be compressed (see `Worker`).

    Raises InputError.
    """

    method: TrainingMethod
    build: Callable[[], nn.Module] = field(repr=False)
    loss: Callable[[nn.Module, Batch], Tensor] = field(repr=False)
    batches: Callable[[], Sequence[Callable[[int], Batch]]] = field(repr=False)
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = field(repr=False)
    workers: int
    steps: int
    seed: int = 0
    schedule: Schedule = field(default=constant, repr=False)
    delay: Callable[[int, int], float] = field(default=no_delay, repr=False)
    observe: Observe | None = field(default=None, repr=False)
    goes_on: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        require(
            isinstance(self.method, TrainingMethod),
            f"method {self.method!r} is not a TrainingMethod; make one with "
            f"training_method('bsp + top-k(0.01)')",
        )
        require_whole(workers=self.workers, steps=self.steps)
        require_whole(0, seed=self.seed)
        require(self.seed < SEEDS, f"seed {self.seed} must be below {SEEDS}: torch knows 32 bits")
        for name in ("build", "loss", "batches", "make_optimizer", "schedule", "delay"):
            value = getattr(self, name)
            require(callable(value), f"{name} {value!r} must be a function")

    @property
    def servers(self) -> int:
        """Parameter servers, one or none; they are the ranks from ``workers`` on.

        A single server sees all pushes in one order, which a replay can repeat.
        """
        return 1 if self.method.architecture == "PS" else 0

    @property
    def ranks(self) -> int:
        """The number of processes that take part."""
        return self.workers + self.servers

    def model(self) -> nn.Module:
        """Return a new model, the same for every worker."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build()

    def worker(self, rank: int) -> Worker:
        """Return a new worker of this rank. Raises InputError if it has no batches."""
        batches = self.batches()
        if len(batches) != self.workers:
            raise InputError(
                f"batches() makes batches of {len(batches)} workers, and there are {self.workers}; "
                f"let it return one function of the step per worker"
            )
        return Worker(
            rank,
            self.workers,
            self.model(),
            self.loss,
            batches[rank],
            self.make_optimizer,
            self.method.compression,
            self.schedule,
            architecture=self.method.architecture,
            seed=self.seed,
            goes_on=self.goes_on,
        )

    def rule(self) -> Rule | None:
        """Return a new rule for the parameter server; None if there is no server."""
        if not self.servers:
            return None
        return self.method.rule(self.workers, self.worker(0).pieces)


@dataclass(frozen=True)
class WorkerReport:
    """What one worker reports: a loss per iteration, and the seconds of all iterations."""

    rank: int
    parameters: Tensor = field(repr=False)  # flat
    losses: tuple[float, ...]
    bytes_sent: float
    bytes_received: float
    seconds: float
    observed: tuple[Any, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Arrival:
    """A push that a parameter server applied, at ``seconds`` of its own clock."""

    worker: int
    seconds: float


@dataclass(frozen=True)
class TrainingRun:
    """What all workers report, by rank, and the order in which a server applied their pushes."""

    workers: tuple[WorkerReport, ...]
    arrivals: tuple[Arrival, ...] = field(default=(), repr=False)
