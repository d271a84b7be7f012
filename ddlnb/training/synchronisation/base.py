"""Synchronisations: each is a dataclass with the training loop of one worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ddlnb.compression.base import Compressor
from ddlnb.plans.requests import Flow
from ddlnb.plans.server_rules import BulkSynchronous, Rule
from ddlnb.registry import shown
from ddlnb.training.optimizers import Optimizer
from ddlnb.training.worker import NextGradient, StepDone, Worker


class Synchronisation(ABC):
    """When workers wait for one another: the first aspect of the survey.

    ``architectures`` are those that it runs on (A2A, PS, gossip), ``why_not_elsewhere`` says why it
    runs on no other. It ``averages_gradients`` if it averages each one, so that layers can be sent
    early; it ``pushes_every_iteration`` if on servers a layer can be pushed when its gradient is
    there, and keeps the ``model_on_server`` if a server holds the common model at all times.
    """

    name: ClassVar[str]
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

    def __str__(self) -> str:
        return shown(self.name, self)


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
