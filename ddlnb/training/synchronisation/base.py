"""When workers wait for one another: each choice is a dataclass with the loop of one worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ddlnb.choices import shown
from ddlnb.compression.base import Compressor
from ddlnb.plans.requests import Flow
from ddlnb.plans.server_rules import BulkSynchronous, Rule
from ddlnb.training.loop import NextGradient, StepDone
from ddlnb.training.optimizers import Optimizer
from ddlnb.training.worker import Worker


class Synchronisation(ABC):
    """A choice of the first aspect of the survey."""

    name: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]  # that it makes sense on: A2A, PS, gossip
    why_not_elsewhere: ClassVar[str] = ""
    averages_gradients: ClassVar[bool] = False  # every one of them, so that layers can go ahead
    model_on_server: ClassVar[bool] = False  # a common one, at all times

    @property
    def topology(self) -> str | None:
        """The graph of who gossips with whom; None if nobody does."""
        return None

    @abstractmethod
    def loop(self, worker: Worker) -> Flow:
        """Train for ever, yielding `NextGradient`, communication, and `StepDone` per iteration."""

    def rule(self, workers: int) -> Rule | None:
        """A new rule for each parameter server; None if this choice uses none."""
        return None

    def cycle(self) -> int:
        """The iterations after which the loop starts anew: what one costs is a mean over them.

        Raises InputError, with a way out, where that depends on how training goes.
        """
        return 1

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise InputError, with the reason, if this choice cannot use the compressor."""
        return

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise InputError, with the reason, if this choice cannot use the optimizer."""
        return

    def __str__(self) -> str:
        return shown(self.name, self)


@dataclass(frozen=True)
class BulkSynchronousParallel(Synchronisation):
    """Every iteration ends when all gradients are averaged (BSP; Valiant 1990)."""

    name = "bsp"
    architectures = ("A2A", "PS")
    averages_gradients = True
    why_not_elsewhere = "it needs the average over all workers"

    def rule(self, workers: int) -> Rule:
        return BulkSynchronous(workers)

    def loop(self, worker: Worker) -> Flow:
        while True:
            gradient = yield NextGradient()
            average = yield from worker.averaged(gradient)
            worker.apply(average)
            yield StepDone()
