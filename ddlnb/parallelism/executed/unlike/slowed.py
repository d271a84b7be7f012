"""A small model that computes for real and takes the time of a GPU of given speed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddlnb.errors import require, require_positive, require_whole

LATE_SECONDS = 2e-3  # less is the timer, and is made up for in the next computation


@dataclass(frozen=True)
class SlowedModel:
    """Alike layers of some width, in 8 bytes a number, and how long they take on real ranks.

    ``sample_seconds`` are those of one sample, forward and backward, on a rank of speed 1; a rank
    computes at once and waits until a GPU of its speed would be done.
    """

    layers: int = 12
    width: int = 32
    sample_seconds: float = 0.1

    def __post_init__(self) -> None:
        require_whole(layers=self.layers, width=self.width)
        require_positive(sample_seconds=self.sample_seconds)

    def build(self, first: int, stop: int, seed: int) -> nn.Sequential:
        """Return these layers, the same on every rank."""
        require(0 <= first < stop <= self.layers, f"there are no layers {first} to {stop}")
        layers = []
        for number in range(first, stop):
            layer = nn.Linear(self.width, self.width, dtype=torch.float64)
            generator = torch.Generator().manual_seed(seed * self.layers + number)
            with torch.no_grad():
                for one in layer.parameters():
                    one.copy_(torch.randn(one.shape, generator=generator) / self.width**0.5)
            layers.append(nn.Sequential(layer, nn.Tanh()))
        return nn.Sequential(*layers)

    def batch(self, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return inputs and what they should give."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(2, samples, self.width, generator=generator, dtype=torch.float64)
        return drawn[0], drawn[1]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.layers * self.width * (self.width + 1)


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss, a mean over samples."""
    return nn.functional.mse_loss(outputs, targets)


def alone(model: SlowedModel, samples: int, seed: int) -> list[Tensor]:
    """Return the gradients of one worker on the joined batch."""
    module = model.build(0, model.layers, seed)
    inputs, targets = model.batch(samples, seed)
    mean_loss(module(inputs), targets).backward()
    return gradients(module)


def gradients(module: nn.Module) -> list[Tensor]:
    """Return the gradient of every parameter, zeros for those without."""
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()]


def largest_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest difference of gradients over the largest gradient."""
    scale = max(float(one.abs().max()) for one in wanted)
    pairs = zip(found, wanted, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs) / scale


class Clock:
    """Lets what is computed take as long as it should."""

    def __init__(self) -> None:
        self._until = 0.0

    @contextmanager
    def lasting(self, seconds: float) -> Iterator[None]:
        """Let the block take so many seconds; shorter by as little as the last one was late."""
        now = time.perf_counter()
        start = self._until if now - self._until < LATE_SECONDS else now
        yield
        self._until = start + seconds
        if (left := self._until - time.perf_counter()) > 0:
            time.sleep(left)
