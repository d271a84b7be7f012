"""Noisy convex problems whose gradients are in closed form, for many independent points at once.

The tasks, with their samples and constants, are those of `ddlnb.training.tasks.convex`. A point is
a row of a tensor, so that one pass of a training method carries many runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ddlnb.errors import InputError, UnknownName, require_whole
from ddlnb.training.tasks.convex import SPECTRUM, logistic, quadratic
from ddlnb.training.tasks.task import LearningTask

NOISE = 10.0  # of the quadratic: the first gradient is 1.9 long, a sample's own pull 3.2
SAMPLES = 2048  # of the logistic regression, whose mean gradient is over all of them
PENALTY = 0.01


@dataclass(frozen=True)
class Problem:
    """``sampled(points, chosen)`` are the gradients of one sample each, (runs, d) from (runs, d)
    and (runs,); ``mean(points)`` those of the objective.
    """

    task: LearningTask
    sampled: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    mean: Callable[[Tensor], Tensor] = field(repr=False)

    @property
    def dimensions(self) -> int:
        """How long a point is."""
        return len(self.task.constants().optimum)

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.task.samples().labels)

    @property
    def gap(self) -> float:
        """How far the objective at zero, where runs start, is above its minimum."""
        return self.task.evaluate(self.task.build(0)).loss - self.task.constants().best_loss

    def rate(self, workers: int, steps: int) -> float:
        """The step size that makes the bound of BSP least: sqrt(2 gap n / (L sigma^2 T)).

        L and sigma^2 are the task's smoothness and noise. Raises InputError where it is above 1/L,
        for which the bound does not hold.
        """
        require_whole(workers=workers, steps=steps)
        known = self.task.constants()
        rate = math.sqrt(2 * self.gap * workers / (known.smoothness * known.noise * steps))
        if rate > 1 / known.smoothness:
            raise InputError(
                f"{steps} steps of {workers} workers ask for a step size of {rate:.3g} on "
                f"{self.task.name!r}, above 1/L = {1 / known.smoothness:.3g}; take more steps"
            )
        return rate

    def bound(self, workers: int, steps: int) -> float:
        """The most that the mean of |gradient|^2 over BSP's iterations can be expected to be.

        2 gap / (rate T) + rate L sigma^2 / n = sqrt(8 gap L sigma^2 / (n T)), for noise of sigma^2
        at most (Ghadimi and Lan 2013, for smooth objectives, convex or not).
        """
        known = self.task.constants()
        return math.sqrt(8 * self.gap * known.smoothness * known.noise / (workers * steps))


def _quadratic() -> Problem:
    task = quadratic(SPECTRUM, NOISE)
    (pulls,), _ = task.samples()
    curvature = torch.tensor(SPECTRUM)

    def mean(points: Tensor) -> Tensor:
        return curvature * (points - 1)

    return Problem(task, lambda points, chosen: mean(points) - pulls[chosen], mean)


def _logistic() -> Problem:
    task = logistic(samples=SAMPLES, penalty=PENALTY)
    (data, labels), _ = task.samples()

    def sampled(points: Tensor, chosen: Tensor) -> Tensor:
        rows = data[chosen]
        wrong = torch.sigmoid((rows * points).sum(1)) - labels[chosen]
        return wrong[:, None] * rows + PENALTY * points

    def mean(points: Tensor) -> Tensor:
        wrong = torch.sigmoid(points @ data.T) - labels
        return wrong @ data / len(data) + PENALTY * points

    return Problem(task, sampled, mean)


PROBLEMS: dict[str, Callable[[], Problem]] = {"quadratic": _quadratic, "logistic": _logistic}


def get_problem(name: str) -> Problem:
    """The problem of that name. Raises UnknownName."""
    if name not in PROBLEMS:
        raise UnknownName("convex problem", name, PROBLEMS)
    return PROBLEMS[name]()


def expected_of_bsp(workers: int, steps: int) -> float:
    """What the mean of |gradient|^2 over BSP's iterations is on the quadratic, in expectation.

    Exactly, coordinate by coordinate: of the start (1 - rate h)^(2t) is left after t steps, and
    noise of variance v/n builds up to rate^2 v/n (1 - (1 - rate h)^(2t)) / (1 - (1 - rate h)^2).

    >>> expected_of_bsp(4, 1000) < _quadratic().bound(4, 1000)
    True
    """
    curvature = torch.tensor(SPECTRUM, dtype=torch.float64)
    rate, pull = _quadratic().rate(workers, steps), NOISE / len(SPECTRUM) / workers
    left = (1 - rate * curvature).square()
    spread = (1 - left**steps) / (1 - left) / steps  # the mean of what is left over all steps
    noise = rate**2 * pull / (1 - left) * (1 - spread)
    return float((curvature.square() * (spread + noise)).sum())
