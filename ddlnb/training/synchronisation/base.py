"""Synchronisations: BSP, SSP, DSSP, ASP and R2SP. Each is a dataclass with the loop of one worker.

Without barriers a worker takes a gradient, lets its own optimizer change the parameters that it
pulled last, and pushes that change divided by the number of workers, so that n pushes weigh as much
as one iteration of BSP. The answer is the sum of all workers' updates since the start. Momentum
stays with the workers; since their updates are averaged, SGD with or without momentum is BSP when
nothing is stale. Source: survey of Shi et al. 2020, section 3.1.2.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ddlnb.compression.base import Compressor
from ddlnb.errors import require, require_whole
from ddlnb.plans.requests import Flow
from ddlnb.plans.server_rules import (
    BoundedStaleness,
    BulkSynchronous,
    DynamicBound,
    RoundRobin,
    Rule,
)
from ddlnb.registry import Choice
from ddlnb.training.optimizers import Optimizer
from ddlnb.training.worker import NextGradient, StepDone, Worker


class Synchronisation(Choice):
    """When workers wait for one another: the first aspect of the survey.

    ``architectures`` are those that it runs on (A2A, PS, gossip), ``why_not_elsewhere`` says why it
    runs on no other. It ``averages_gradients`` if it averages each one, so that layers can be sent
    early; it ``pushes_every_iteration`` if on servers a layer can be pushed when its gradient is
    there, and keeps the ``model_on_server`` if a server holds the common model at all times.
    """

    architectures: ClassVar[tuple[str, ...]]
    why_not_elsewhere: ClassVar[str] = ""
    averages_gradients: ClassVar[bool] = False
    pushes_every_iteration: ClassVar[bool] = False
    model_on_server: ClassVar[bool] = False

    @property
    def topology(self) -> str | None:
        """The graph of who gossips with whom; None if there is no gossip."""
        return None

    @abstractmethod
    def loop(self, worker: Worker) -> Flow:
        """Train for ever, yielding `NextGradient`, communication, and `StepDone` per iteration."""

    def rule(self, workers: int) -> Rule | None:
        """Return a new rule for a parameter server; None if this choice uses no server."""
        return None

    def cycle(self) -> int:
        """Return after how many iterations the loop repeats: costs are averaged over them.

        Raises InputError, with a way out, if that depends on how training goes.
        """
        return 1

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise InputError, with the reason, if this choice cannot use the compressor."""
        return

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise InputError, with the reason, if this choice cannot use the optimizer."""
        return


@dataclass(frozen=True)
class BulkSynchronousParallel(Synchronisation):
    """Every iteration ends when all gradients are averaged (BSP; Valiant 1990)."""

    name = "bsp"
    architectures = ("A2A", "PS")
    averages_gradients = True
    pushes_every_iteration = True
    why_not_elsewhere = "it needs the average over all workers"

    def rule(self, workers: int) -> Rule:
        return BulkSynchronous(workers)

    def loop(self, worker: Worker) -> Flow:
        while True:
            gradient = yield NextGradient()
            average = yield from worker.averaged(gradient)
            worker.apply(average)
            yield StepDone()


class Relaxed(Synchronisation):
    """Workers push updates to a server, which sums them and decides when to answer."""

    architectures = ("PS",)
    pushes_every_iteration = True
    model_on_server = True
    why_not_elsewhere = (
        "some workers go on while others are behind, which takes a server that keeps what is common"
    )

    def loop(self, worker: Worker) -> Flow:
        initial = worker.parameters.clone()
        while True:
            gradient = yield NextGradient()
            before = worker.parameters.clone()
            worker.apply(gradient)
            update = (worker.parameters - before) / worker.workers
            total = yield from worker.pushed(update)
            worker.parameters.copy_(initial + total)
            yield StepDone()

    @abstractmethod
    def rule(self, workers: int) -> Rule:
        """Return the rule that says when the server answers."""


@dataclass(frozen=True)
class StaleSynchronousParallel(Relaxed):
    """The fastest worker is at most ``bound`` iterations ahead (SSP; Ho et al. 2013)."""

    bound: int = 3

    name = "ssp"

    def __post_init__(self) -> None:
        require_whole(0, bound=self.bound)

    def rule(self, workers: int) -> Rule:
        return BoundedStaleness(workers, self.bound)


@dataclass(frozen=True)
class DynamicStaleSynchronousParallel(Relaxed):
    """SSP with a bound between ``low`` and ``high``, chosen as it runs (DSSP; Zhao et al. 2019).

    `ddlnb.plans.server_rules.DynamicBound` chooses it.
    """

    low: int = 1
    high: int = 8

    name = "dssp"

    def __post_init__(self) -> None:
        require_whole(0, low=self.low, high=self.high)
        require(self.low <= self.high, f"low {self.low} must be at most high {self.high}")

    def rule(self, workers: int) -> Rule:
        return DynamicBound(workers, self.low, self.high)


@dataclass(frozen=True)
class AsynchronousParallel(Relaxed):
    """Nobody waits for anybody (ASP; Recht et al. 2011, Dean et al. 2012)."""

    name = "asp"

    def rule(self, workers: int) -> Rule:
        return BoundedStaleness(workers, None)


@dataclass(frozen=True)
class RoundRobinSynchronousParallel(Relaxed):
    """Workers are served one after the other in a fixed order (R2SP; Chen et al. 2019)."""

    name = "r2sp"

    def rule(self, workers: int) -> Rule:
        return RoundRobin(workers)
