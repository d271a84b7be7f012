"""The optimizers that workers use, by name, and where to begin when tuning their learning rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ddlnb.choices import parsed, shown
from ddlnb.errors import require
from ddlnb.training import lars_lamb
from ddlnb.training.tasks.task import LearningTask

Parameters = Iterable[nn.Parameter]


class Optimizer(ABC):
    """A choice of optimizer, but for its learning rate."""

    name: ClassVar[str]
    takes_plain_rate: ClassVar[bool] = False  # one that a step of plain SGD could have, too

    @abstractmethod
    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        """One for these parameters. Raises InputError or ValueError for options out of range."""

    @abstractmethod
    def first_rate(self, task: LearningTask) -> float:
        """The learning rate to begin with."""

    @property
    @abstractmethod
    def inertia(self) -> float:
        """The share of its last direction that a step keeps: momentum, or Adam's first beta."""

    def __str__(self) -> str:
        return shown(self.name, self, brief=True)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent."""

    weight_decay: float = 0.0

    name = "sgd"
    takes_plain_rate = True
    inertia = 0.0

    def __post_init__(self) -> None:
        _require_options(weight_decay=self.weight_decay)

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr, weight_decay=self.weight_decay, fused=True)

    def first_rate(self, task: LearningTask) -> float:
        return task.learning_rate


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with heavy-ball momentum, or Nesterov's."""

    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    name = "momentum"
    takes_plain_rate = True

    def __post_init__(self) -> None:
        _require_options(weight_decay=self.weight_decay, momentum=self.momentum)
        require(self.momentum > 0, f"momentum {self.momentum!r} must be above 0; sgd has none")

    @property
    def inertia(self) -> float:
        return self.momentum

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters,
            lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            fused=True,
        )

    def first_rate(self, task: LearningTask) -> float:
        """A gradient moves the weights 1 / (1 - momentum) times, in the end."""
        return (1 - self.momentum) * task.learning_rate


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma, Ba 2015)."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    name = "adam"

    def __post_init__(self) -> None:
        _require_options(weight_decay=self.weight_decay, betas=self.betas)

    @property
    def inertia(self) -> float:
        return self.betas[0]

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        options: dict[str, Any] = {"betas": self.betas, "weight_decay": self.weight_decay}
        return torch.optim.Adam(parameters, lr, **options)

    def first_rate(self, task: LearningTask) -> float:
        return 3e-3  # its steps do not grow with gradients


@dataclass(frozen=True)
class LARS(Optimizer):
    """Momentum SGD scaled layer by layer (You et al. 2017)."""

    trust: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    exclude_vectors: bool = False

    name = "lars"

    def __post_init__(self) -> None:
        _require_options(weight_decay=self.weight_decay, momentum=self.momentum)
        require(self.trust > 0, f"trust {self.trust!r} must be above 0")

    @property
    def inertia(self) -> float:
        return self.momentum

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return lars_lamb.LARS(
            parameters, lr, self.momentum, self.weight_decay, self.trust, self.exclude_vectors
        )

    def first_rate(self, task: LearningTask) -> float:
        """By the share of a layer's weights that changes in a step: 0.003."""
        return 3e-3 / self.trust


@dataclass(frozen=True)
class LAMB(Optimizer):
    """Adam scaled layer by layer (You et al. 2020)."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    exclude_vectors: bool = False

    name = "lamb"

    def __post_init__(self) -> None:
        _require_options(weight_decay=self.weight_decay, betas=self.betas)

    @property
    def inertia(self) -> float:
        return self.betas[0]

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return lars_lamb.LAMB(
            parameters,
            lr,
            self.betas,
            weight_decay=self.weight_decay,
            exclude_vectors=self.exclude_vectors,
        )

    def first_rate(self, task: LearningTask) -> float:
        return 1e-2


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.name: kind for kind in (SGD, Momentum, Adam, LARS, LAMB)
}


def get_optimizer(text: str | Optimizer) -> Optimizer:
    """The optimizer that a text such as ``"momentum(0.95)"`` stands for.

    Raises UnknownName and InputError.

    >>> print(get_optimizer("momentum(0.9)"), get_optimizer("lars(weight_decay=0.0005)"))
    momentum lars(0.001, 0.9, 0.0005)
    """
    return text if isinstance(text, Optimizer) else parsed("optimizer", text, OPTIMIZERS)


def _require_options(
    weight_decay: float, momentum: float = 0.0, betas: tuple[float, ...] = ()
) -> None:
    require(weight_decay >= 0, f"weight_decay {weight_decay!r} must not be negative")
    for name, value in [("momentum", momentum), *(("beta", beta) for beta in betas)]:
        require(0 <= value < 1, f"{name} {value!r} must be at least 0 and below 1")
