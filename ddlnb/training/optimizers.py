"""How the learning rate changes during a run.

The optimizers that workers use, by name, and the learning rate at which tuning begins.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ddlnb.errors import UnknownName, require, require_whole
from ddlnb.registry import one_of, parsed, shown
from ddlnb.training import lars_lamb
from ddlnb.training.tasks.task import LearningTask

DECAYS = ("none", "cosine")


class RateSchedule(ABC):
    """A factor for the learning rate, step by step."""

    name: ClassVar[str]

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor at a step, counted from one, of a run of ``steps``."""

    @property
    def rising_steps(self) -> int:
        """Steps until the full rate."""
        return 0

    def require_fits(self, steps: int, what: str = "the run") -> None:
        """Raise InputError for a run that ends before the rate has risen to its full height."""
        require(
            self.rising_steps <= steps,
            f"schedule {self} rises over {self.rising_steps} steps, and {what} has {steps}: it "
            f"would never reach its rate; take a shorter warm-up or more steps",
        )

    def __str__(self) -> str:
        return shown(self.name, self)


@dataclass(frozen=True)
class Constant(RateSchedule):
    """The same rate at every step."""

    name = "constant"

    def factor(self, step: int, steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class WarmUp(RateSchedule):
    """A linear rise over the first ``over`` steps, then constant (Goyal et al. 2017)."""

    over: int = 50
    name = "warm-up"

    def __post_init__(self) -> None:
        require_whole(over=self.over)

    @property
    def rising_steps(self) -> int:
        return self.over

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, step / self.over)


@dataclass(frozen=True)
class Cosine(RateSchedule):
    """A linear rise over ``warm_up`` steps, then half a cosine (Loshchilov et al. 2017).

    The cosine would reach zero one step after the last, so every step has an effect.
    """

    warm_up: int = 0
    name = "cosine"

    def __post_init__(self) -> None:
        require_whole(0, warm_up=self.warm_up)

    @property
    def rising_steps(self) -> int:
        return self.warm_up

    def factor(self, step: int, steps: int) -> float:
        if step < self.warm_up:
            return step / self.warm_up
        top = max(1, self.warm_up)  # the step of the full rate
        return (1 + math.cos(math.pi * (step - top) / (steps + 1 - top))) / 2


@dataclass(frozen=True)
class LinearScaling(RateSchedule):
    """The rate of one worker times ``times``, for a batch that many times as large.

    The factor rises from one over the first ``over`` steps (Goyal et al. 2017, arXiv 1706.02677,
    sections 2.1 and 2.2). It is constant then or, with a ``decay`` of cosine, falls as `Cosine`.
    """

    times: float = 8.0
    over: int = 50
    decay: str = one_of("none", DECAYS)
    name = "linear-scaling"

    def __post_init__(self) -> None:
        require(self.times >= 1, f"times {self.times!r} must be at least 1")
        require_whole(over=self.over)
        if self.decay not in DECAYS:
            raise UnknownName("decay", self.decay, DECAYS)

    @property
    def rising_steps(self) -> int:
        return self.over

    def factor(self, step: int, steps: int) -> float:
        if step < self.over:
            return 1 + (self.times - 1) * step / self.over
        return self.times * (Cosine(self.over).factor(step, steps) if self.decay != "none" else 1)


SCHEDULES: dict[str, type[RateSchedule]] = {
    kind.name: kind for kind in (Constant, WarmUp, Cosine, LinearScaling)
}


def get_schedule(text: str | RateSchedule) -> RateSchedule:
    """Return the schedule that a text such as ``"warm-up(50)"`` names.

    Raises UnknownName and InputError.

    >>> get_schedule("warm-up(50)").factor(25, 300)
    0.5
    """
    return text if isinstance(text, RateSchedule) else parsed("schedule", text, SCHEDULES)


Parameters = Iterable[nn.Parameter]


class Optimizer(ABC):
    """A choice of optimizer, without its learning rate."""

    name: ClassVar[str]
    takes_plain_rate: ClassVar[bool] = False  # whether plain SGD could take its learning rate

    def __post_init__(self) -> None:
        """Raise InputError for options out of range. All optimizers give them the same names."""
        options = vars(self)
        decay = options["weight_decay"]
        require(decay >= 0, f"weight_decay {decay!r} must not be negative")
        betas = [("beta", beta) for beta in options.get("betas", ())]
        for name, value in [("momentum", options.get("momentum", 0.0)), *betas]:
            require(0 <= value < 1, f"{name} {value!r} must be at least 0 and below 1")

    @abstractmethod
    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        """Return one for these parameters. Raises InputError or ValueError for bad options."""

    @abstractmethod
    def first_rate(self, task: LearningTask) -> float:
        """Return the learning rate to begin with."""

    @property
    def inertia(self) -> float:
        """The share of its last direction that a step keeps: momentum, or Adam's first beta."""
        return 0.0

    def __str__(self) -> str:
        return shown(self.name, self, brief=True)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent."""

    weight_decay: float = 0.0

    name = "sgd"
    takes_plain_rate = True

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
        super().__post_init__()
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
        """Return the task's rate times 1 - momentum: a gradient counts 1 / (1 - momentum) times."""
        return (1 - self.momentum) * task.learning_rate


@dataclass(frozen=True)
class LARS(Optimizer):
    """Momentum SGD scaled layer by layer (You et al. 2017)."""

    trust: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    exclude_vectors: bool = False

    name = "lars"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.trust > 0, f"trust {self.trust!r} must be above 0")

    @property
    def inertia(self) -> float:
        return self.momentum

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return lars_lamb.LARS(parameters, lr, **vars(self))

    def first_rate(self, task: LearningTask) -> float:
        """Return the rate at which a step changes a layer's weights by the share 0.003."""
        return 3e-3 / self.trust


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma, Ba 2015)."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    name = "adam"

    @property
    def inertia(self) -> float:
        return self.betas[0]

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr, **vars(self))

    def first_rate(self, task: LearningTask) -> float:
        return 3e-3  # its steps do not grow with gradients


@dataclass(frozen=True)
class LAMB(Adam):
    """Adam scaled layer by layer (You et al. 2020)."""

    exclude_vectors: bool = False

    name = "lamb"

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        return lars_lamb.LAMB(parameters, lr, **vars(self))

    def first_rate(self, task: LearningTask) -> float:
        return 1e-2


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.name: kind for kind in (SGD, Momentum, Adam, LARS, LAMB)
}


def get_optimizer(text: str | Optimizer) -> Optimizer:
    """Return the optimizer that a text such as ``"momentum(0.95)"`` names.

    Raises UnknownName and InputError.

    >>> print(get_optimizer("momentum(0.9)"), get_optimizer("lars(weight_decay=0.0005)"))
    momentum lars(0.001, 0.9, 0.0005)
    """
    return text if isinstance(text, Optimizer) else parsed("optimizer", text, OPTIMIZERS)
