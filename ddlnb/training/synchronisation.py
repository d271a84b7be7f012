"""Synchronisations: BSP, SSP, DSSP, ASP and R2SP. Each is a dataclass with the loop of one worker.

Without barriers a worker takes a gradient, lets its own optimizer change the parameters that it
pulled last, and pushes that change divided by the number of workers, so that n pushes weigh as much
as one iteration of BSP. The answer is the sum of all workers' updates since the start. Momentum
stays with the workers; since their updates are averaged, SGD with or without momentum is BSP when
nothing is stale. Source: survey of Shi et al. 2020, section 3.1.2.

Local SGD: workers average only every H gradients; H is fixed, 1 at first, or adaptive.

A round begins at parameters that all workers share, the anchor. A worker takes H gradients, moves
after each one by a plain SGD step at its learning rate, and adds the gradients up. The sums are
averaged, compressed if so chosen; the worker returns to the anchor, and its optimizer takes one
step with the average. So H = 1 is BSP with any optimizer. With plain SGD at a learning rate that
is constant within rounds this is local SGD as published (Stich 2019): all workers end at the mean
of where they were. Another optimizer, and weight decay, acts once per round on the sum of its
gradients, as the outer optimizer of SlowMo (Wang et al. 2020) and FedOpt (Reddi et al. 2021). Since
it shares its rate with the steps within a round, LARS, LAMB and Adam are refused, whose rates mean
something else.

Stop at the end of a round: within one the workers are apart. Source: survey of Shi et al. 2020,
sections 3.1.2 and 5.1.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ddlnb.compression.base import Compressor
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.requests import Flow
from ddlnb.plans.server_rules import BulkSynchronous, Rule
from ddlnb.registry import Choice, one_of
from ddlnb.training.optimizers import Optimizer
from ddlnb.training.server_rules import BoundedStaleness, DynamicBound, RoundRobin
from ddlnb.training.worker import NextGradient, StepDone, Worker


class Synchronisation(Choice):
    """When workers wait for one another: the first aspect of the survey.

    ``architectures`` are those that it runs on (A2A, PS, gossip), ``why_not_elsewhere`` says why it
    runs on no other. It ``averages_gradients`` if it averages each one, so that layers can be sent
    early; it ``pushes_every_iteration`` if on servers a layer can be pushed when its gradient is
    there, and keeps the ``model_on_server`` if a server holds the common model at all times. What
    a loop does is declared beside it: a class with a loop of its own inherits neither of the first
    two, and what it sends is counted by playing it.
    """

    architectures: ClassVar[tuple[str, ...]]
    why_not_elsewhere: ClassVar[str] = ""
    averages_gradients: ClassVar[bool] = False
    pushes_every_iteration: ClassVar[bool] = False
    model_on_server: ClassVar[bool] = False

    def __init_subclass__(cls, **options: object) -> None:
        """Take back what was declared of the loop of another class."""
        super().__init_subclass__(**options)
        for name in ("averages_gradients", "pushes_every_iteration"):
            declaring = next(one for one in cls.__mro__ if name in vars(one))
            if getattr(declaring, "loop", cls.loop) is not cls.loop:
                setattr(cls, name, False)

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

    def newest(self, last: int, workers: int) -> int:
        """Return whose copy of the ``model_on_server`` is the newest once ``last`` has stepped."""
        return last

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

    `ddlnb.training.server_rules.DynamicBound` chooses it.
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

    def newest(self, last: int, workers: int) -> int:
        return workers - 1


STARTS = ("frequent", "rare")


class Local(Synchronisation):
    """Rounds of H gradients, whatever decides H. All workers must decide the same."""

    architectures = ("A2A", "PS")
    why_not_elsewhere = "its rounds end with the average over all workers"

    def rule(self, workers: int) -> Rule:
        return BulkSynchronous(workers)

    @property
    @abstractmethod
    def longest(self) -> int:
        """The largest H."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise InputError if plain SGD could not take this rate, unless rounds have one step."""
        require(
            self.longest == 1 or optimizer.takes_plain_rate,
            f"{self} moves between averages by plain SGD steps at the optimizer's learning rate, "
            f"and that of {optimizer} is none for them; take sgd or momentum, or bsp",
        )


@dataclass(frozen=True)
class LocalSGD(Local):
    """Average every ``period`` (H) gradients."""

    period: int = 8

    name = "local"

    def __post_init__(self) -> None:
        require_whole(period=self.period)

    def cycle(self) -> int:
        return self.period

    @property
    def longest(self) -> int:
        return self.period

    def loop(self, worker: Worker) -> Flow:
        while True:
            yield from one_round(worker, self.period)
            yield StepDone()


@dataclass(frozen=True)
class PostLocalSGD(Local):
    """BSP until every worker has taken ``after`` steps, then local SGD (Lin et al. 2020)."""

    period: int = 8
    after: int = 100

    name = "post-local"

    def __post_init__(self) -> None:
        require_whole(period=self.period)
        require_whole(0, after=self.after)

    def cycle(self) -> int:
        raise InputError(
            f"an iteration of {self} has no single cost: {self.after} iterations cost what those "
            f"of bsp do, and all others what those of local({self.period}) do; ask for the cost of "
            f"these, and for a time to target leave its curves out"
        )

    @property
    def longest(self) -> int:
        return self.period

    def loop(self, worker: Worker) -> Flow:
        while True:
            yield from one_round(worker, 1 if worker.step < self.after else self.period)
            yield StepDone()


@dataclass(frozen=True)
class AdaptiveLocalSGD(Local):
    """H between ``low`` and ``high``, chosen before every round from the training loss.

    L is the mean loss of the last round, over its gradients and all workers, and L0 that of the
    first. With ``start`` rare, H = ceil(high (L / L0)^power) falls with the loss, as in AdaComm
    with power 1/2 (Wang and Joshi 2019); with ``start`` frequent, H = floor(low (L0 / L)^power)
    rises; both are kept within low and high. The first round has the H of L = L0. Losses are
    averaged uncompressed, in one request of four bytes per round, so that all workers agree.
    """

    low: int = 1
    high: int = 16
    start: str = one_of("rare", STARTS)
    power: float = 0.5

    name = "adaptive-local"

    def __post_init__(self) -> None:
        require_whole(low=self.low, high=self.high)
        require(self.low <= self.high, f"low {self.low} must be at most high {self.high}")
        require(self.start in STARTS, f"start {self.start!r} must be one of {', '.join(STARTS)}")
        require(self.power > 0, f"power {self.power!r} must be above 0")

    def cycle(self) -> int:
        raise InputError(
            f"an iteration of {self} has no single cost, because the losses decide how often it "
            f"averages: ask for those of local({self.low}) and local({self.high}), between which "
            f"it lies, and for a time to target leave its curves out"
        )

    @property
    def longest(self) -> int:
        return self.high

    def period(self, first: float, loss: float) -> int:
        """Return H for this loss and that of the first round.

        >>> AdaptiveLocalSGD(1, 16, "rare").period(4.0, 1.0)
        8
        >>> AdaptiveLocalSGD(1, 16, "frequent").period(4.0, 1.0)
        2
        >>> AdaptiveLocalSGD(1, 16, "rare").period(4.0, -1.0)
        1
        """
        ratio = loss / first if first > 0 and math.isfinite(loss) else 1.0
        if ratio <= 0:  # losses of the paper do not fall below zero: as if nothing were left of it
            return self.low if self.start == "rare" else self.high
        try:
            left = ratio**self.power
        except OverflowError:
            left = math.inf
        if self.start == "rare":
            return max(self.low, math.ceil(min(self.high, self.high * left)))
        return max(self.low, math.floor(min(self.high, self.low / left if left else self.high)))

    def loop(self, worker: Worker) -> Flow:
        first = loss = 1.0
        known = False
        while True:
            own = yield from one_round(worker, self.period(first, loss))
            # On the CPU, even if the worker's tensors have no values.
            mean = torch.tensor([own], dtype=torch.float32, device="cpu")
            total = yield from worker.summed(mean)
            loss = float(total) / worker.workers
            if not known:
                first, known = loss, True
            yield StepDone()


def one_round(worker: Worker, period: int) -> Generator[Any, Any, float]:
    """Run a round of ``period`` gradients, all but its last `StepDone`; return the mean loss."""
    anchor = worker.parameters.clone()
    gradient = yield NextGradient()
    total, loss = gradient.clone(), worker.last_loss
    for _ in range(period - 1):
        worker.parameters.add_(gradient, alpha=-worker.learning_rate)
        yield StepDone()
        gradient = yield NextGradient()
        total += gradient
        loss += worker.last_loss
    average = yield from worker.averaged(total)
    worker.parameters.copy_(anchor)
    worker.apply(average)
    return loss / period
