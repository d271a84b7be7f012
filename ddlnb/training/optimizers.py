"""The optimizers that workers use, by name, and how their learning rate changes during a run.

With large batches every layer takes steps in proportion to its own size: the batch grows with the
number of workers and the learning rate with the batch; a rate that is right for one layer is then
too large for another. LARS and LAMB divide a layer's step by its norm and multiply it by the norm
of the layer's weights, so that only the share by which weights change is left to choose.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ddlnb.errors import require, require_known, require_whole
from ddlnb.registry import Choice, one_of, parsed
from ddlnb.training.tasks.task import LearningTask

EPS = 1e-6  # of LAMB
Parameters = Iterable[nn.Parameter]


# The steps of LARS and LAMB; the choices below check their options.


class LayerWise(torch.optim.Optimizer, ABC):
    """An optimizer that updates one tensor at a time, with the options of its group."""

    def __init__(self, parameters: Parameters, **options: Any):
        super().__init__(parameters, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient; return what the closure returns, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    adapts = not (group["exclude_vectors"] and parameter.dim() < 2)
                    self._update(parameter, parameter.grad, group, adapts)
        return loss

    @abstractmethod
    def _update(self, weights: Tensor, gradient: Tensor, group: Any, adapts: bool) -> None:
        """Take one step of one parameter, at the rate of its layer if it ``adapts``."""


class LarsSteps(LayerWise):
    """Layer-wise adaptive rate scaling (You et al. 2017, arXiv 1708.03888).

    For the weights w of a layer with gradient g, momentum m, weight decay d and ``trust`` c:
    rate = lr c |w| / (|g| + d |w|), v <- m v + rate (g + d w), w <- w - v. Without momentum and
    decay a step has the norm lr c |w|, whatever the gradient's norm. Weights that are all zero have
    no size: their rate is lr c, which hardly moves biases that begin at zero if c is small. With
    ``exclude_vectors`` tensors of fewer than two dimensions, biases and the parameters of
    normalisation, take the steps of SGD without decay.
    """

    def _update(self, weights: Tensor, gradient: Tensor, group: Any, adapts: bool) -> None:
        decay = group["weight_decay"] if adapts else 0.0
        rate = group["lr"]
        if adapts:
            size, force = weights.norm(), gradient.norm()
            rate = rate * group["trust"] * _ratio(size, force + decay * size)
        step = rate * (gradient + decay * weights)
        if group["momentum"]:
            state = self.state[weights]
            if state:
                step = state["velocity"].mul_(group["momentum"]).add_(step)
            state["velocity"] = step
        weights.sub_(step)


class LambSteps(LayerWise):
    """Layer-wise adaptive moments (You et al. 2020, arXiv 1904.00962, algorithm 2).

    With Adam's direction r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) and weight decay d a
    layer's weights change by lr |w| (r + d w) / |r + d w|. The paper's phi is the identity. Weights
    that are zero take Adam's step. With ``exclude_vectors`` tensors of fewer than two dimensions,
    biases and the parameters of normalisation, take Adam's steps without decay.
    """

    def _update(self, weights: Tensor, gradient: Tensor, group: Any, adapts: bool) -> None:
        state = self.state[weights]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weights), square=torch.zeros_like(weights))
        state["step"] += 1
        first, second = group["betas"]
        mean = state["mean"].lerp_(gradient, 1 - first) / (1 - first ** state["step"])
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        deviation = (state["square"] / (1 - second ** state["step"])).sqrt_()
        step = mean / (deviation + EPS)
        rate = group["lr"]
        if adapts:
            step += group["weight_decay"] * weights
            rate = rate * _ratio(weights.norm(), step.norm())
        weights.sub_(rate * step)


def _ratio(size: Tensor, force: Tensor) -> Tensor:
    """Return ``size`` / ``force``, or one if either is zero."""
    return torch.where((size > 0) & (force > 0), size / force, torch.ones_like(size))


# The choices.

PLAIN = partial(torch.optim.SGD, fused=True)


class Optimizer(Choice):
    """A choice of optimizer, without its learning rate."""

    brief = True
    kind: ClassVar[Callable[..., torch.optim.Optimizer]]
    takes_plain_rate: ClassVar[bool] = False  # whether plain SGD could take its learning rate

    def __post_init__(self) -> None:
        """Raise InputError for options out of range. All optimizers give them the same names."""
        options = vars(self)
        decay, trust = options["weight_decay"], options.get("trust", 1.0)
        require(decay >= 0, f"weight_decay {decay!r} must not be negative")
        require(trust > 0, f"trust {trust!r} must be above 0")
        betas = [("beta", beta) for beta in options.get("betas", ())]
        for name, value in [("momentum", options.get("momentum", 0.0)), *betas]:
            require(0 <= value < 1, f"{name} {value!r} must be at least 0 and below 1")

    def make(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:
        """Return one for these parameters."""
        return self.kind(parameters, lr=lr, **vars(self))

    def first_rate(self, task: LearningTask) -> float:
        """Return the learning rate to begin with.

        With momentum it is smaller: a gradient counts 1 / (1 - momentum) times.
        """
        return (1 - self.inertia) * task.learning_rate

    @property
    def inertia(self) -> float:
        """The share of its last direction that a step keeps: momentum, or Adam's first beta."""
        options = vars(self)
        return options["momentum"] if "momentum" in options else options.get("betas", (0.0,))[0]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Plain stochastic gradient descent."""

    weight_decay: float = 0.0

    name = "sgd"
    kind = PLAIN
    takes_plain_rate = True


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with heavy-ball momentum, or Nesterov's."""

    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    name = "momentum"
    kind = PLAIN
    takes_plain_rate = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.momentum > 0, f"momentum {self.momentum!r} must be above 0; sgd has none")


@dataclass(frozen=True)
class LARS(Optimizer):
    """Momentum SGD scaled layer by layer (You et al. 2017)."""

    trust: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 0.0
    exclude_vectors: bool = False

    name = "lars"
    kind = LarsSteps

    def first_rate(self, task: LearningTask) -> float:
        """Return the rate at which a step changes a layer's weights by the share 0.003."""
        return 3e-3 / self.trust


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma, Ba 2015)."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    name = "adam"
    kind: ClassVar[Callable[..., torch.optim.Optimizer]] = torch.optim.Adam

    def first_rate(self, task: LearningTask) -> float:
        return 3e-3  # its steps do not grow with gradients


@dataclass(frozen=True)
class LAMB(Adam):
    """Adam scaled layer by layer (You et al. 2020)."""

    exclude_vectors: bool = False

    name = "lamb"
    kind = LambSteps

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


# Schedules.

DECAYS = ("none", "cosine")


class RateSchedule(Choice):
    """A factor for the learning rate, step by step."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor at a step, counted from one, of a run of ``steps``."""

    @property
    def rising_steps(self) -> int:
        """Steps until the full rate. All schedules that rise give them one of two names."""
        return vars(self).get("over", vars(self).get("warm_up", 0))

    def require_fits(self, steps: int, what: str = "the run") -> None:
        """Raise InputError for a run that ends before the rate has risen to its full height."""
        require(
            self.rising_steps <= steps,
            f"schedule {self} rises over {self.rising_steps} steps, and {what} has {steps}: it "
            f"would never reach its rate; take a shorter warm-up or more steps",
        )


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
        require_known("decay", self.decay, DECAYS)

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
