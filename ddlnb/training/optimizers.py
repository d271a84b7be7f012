"""The optimizers that workers use, by name, and where to begin when tuning their learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ddlnb.errors import UnknownName
from ddlnb.training.large_batch import LAMB, LARS
from ddlnb.training.learning_task import LearningTask

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MOMENTUM = 0.9


@dataclass(frozen=True)
class Choice:
    """``make(parameters, lr=...)``, and its first guess: ``factor`` times the task's SGD rate.

    With ``rate`` the guess is that number, for optimizers whose steps do not grow with gradients.
    """

    make: Callable[..., torch.optim.Optimizer]
    about: str
    factor: float = 1.0
    rate: float | None = None


OPTIMIZERS = {
    "sgd": Choice(partial(torch.optim.SGD, fused=True), "plain stochastic gradient descent"),
    "momentum": Choice(
        partial(torch.optim.SGD, momentum=MOMENTUM, fused=True),
        f"SGD with heavy-ball momentum {MOMENTUM}",
        factor=1 - MOMENTUM,
    ),
    "adam": Choice(torch.optim.Adam, "Adam (Kingma, Ba 2015)", rate=3e-3),
    "lars": Choice(LARS, "momentum SGD scaled layer by layer (You et al. 2017)", rate=3.0),
    "lamb": Choice(LAMB, "Adam scaled layer by layer (You et al. 2020)", rate=1e-2),
}


def get_optimizer(name: str, lr: float) -> MakeOptimizer:
    """What makes the optimizer of that name with this learning rate. Raises UnknownName."""
    return partial(_choice(name).make, lr=lr)


def default_rate(task: LearningTask, optimizer: str) -> float:
    """The learning rate to begin with. Raises UnknownName."""
    choice = _choice(optimizer)
    return choice.rate if choice.rate is not None else choice.factor * task.learning_rate


def _choice(name: str) -> Choice:
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]
