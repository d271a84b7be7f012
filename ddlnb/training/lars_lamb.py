"""LARS and LAMB: every layer takes steps in proportion to its own size, for large batches.

The batch grows with the number of workers and the learning rate with the batch; a rate that is
right for one layer is then too large for another. Both optimizers divide a layer's step by its norm
and multiply it by the norm of the layer's weights, so that only the share by which weights change
is left to choose. Linear scaling with warm-up is a schedule (`ddlnb.training.optimizers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ddlnb.errors import require


class _LayerWise(torch.optim.Optimizer, ABC):
    """An optimizer that updates one tensor at a time, with the options of its group."""

    def __init__(self, parameters: Iterable[nn.Parameter], **options: Any):
        for name in ("lr", "weight_decay"):
            require(options[name] >= 0, f"{name} {options[name]!r} must not be negative")
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


class LARS(_LayerWise):
    """Layer-wise adaptive rate scaling (You et al. 2017, arXiv 1708.03888).

    For the weights w of a layer with gradient g, momentum m, weight decay d and ``trust`` c:
    rate = lr c |w| / (|g| + d |w|), v <- m v + rate (g + d w), w <- w - v. Without momentum and
    decay a step has the norm lr c |w|, whatever the gradient's norm. Weights that are all zero have
    no size: their rate is lr c, which hardly moves biases that begin at zero if c is small. With
    ``exclude_vectors`` tensors of fewer than two dimensions, biases and the parameters of
    normalisation, take the steps of SGD without decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        exclude_vectors: bool = False,
    ):
        require(0 <= momentum < 1, f"momentum {momentum!r} must be at least 0 and below 1")
        require(trust > 0, f"trust {trust!r} must be above 0")
        super().__init__(
            parameters,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust=trust,
            exclude_vectors=exclude_vectors,
        )

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


class LAMB(_LayerWise):
    """Layer-wise adaptive moments (You et al. 2020, arXiv 1904.00962, algorithm 2).

    With Adam's direction r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) and weight decay d a
    layer's weights change by lr |w| (r + d w) / |r + d w|. The paper's phi is the identity. Weights
    that are zero take Adam's step. With ``exclude_vectors`` tensors of fewer than two dimensions,
    biases and the parameters of normalisation, take Adam's steps without decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        exclude_vectors: bool = False,
    ):
        require(
            all(0 <= beta < 1 for beta in betas), f"betas {betas!r} must be at least 0 and below 1"
        )
        require(eps > 0, f"eps {eps!r} must be above 0")
        super().__init__(
            parameters,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            exclude_vectors=exclude_vectors,
        )

    def _update(self, weights: Tensor, gradient: Tensor, group: Any, adapts: bool) -> None:
        state = self.state[weights]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weights), square=torch.zeros_like(weights))
        state["step"] += 1
        first, second = group["betas"]
        mean = state["mean"].lerp_(gradient, 1 - first) / (1 - first ** state["step"])
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        deviation = (state["square"] / (1 - second ** state["step"])).sqrt_()
        step = mean / (deviation + group["eps"])
        rate = group["lr"]
        if adapts:
            step += group["weight_decay"] * weights
            rate = rate * _ratio(weights.norm(), step.norm())
        weights.sub_(rate * step)


def _ratio(size: Tensor, force: Tensor) -> Tensor:
    """Return ``size`` / ``force``, or one if either is zero."""
    return torch.where((size > 0) & (force > 0), size / force, torch.ones_like(size))
