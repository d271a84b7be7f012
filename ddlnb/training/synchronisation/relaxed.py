"""Training on parameter servers without barriers: SSP, DSSP, ASP, R2SP.

A worker takes a gradient, lets its own optimizer change the parameters that it pulled last, and
pushes that change divided by the number of workers, so that n pushes weigh as much as one iteration
of BSP. The answer is the sum of all workers' updates since the start. Momentum stays with the
workers; since their updates are averaged, SGD with or without momentum is BSP when nothing is
stale. Source: survey of Shi et al. 2020, section 3.1.2.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ddlnb.errors import require, require_whole
from ddlnb.plans.requests import Flow
from ddlnb.plans.server_rules import BoundedStaleness, DynamicBound, RoundRobin, Rule
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.worker import NextGradient, StepDone, Worker


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
