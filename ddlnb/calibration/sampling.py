"""Draws from a posterior that is not normal: bent, with kinks, or with several peaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.calibration.misfit import Misfit
from ddlnb.calibration.posterior import Numbers, Posterior

WALKERS_PER_PARAMETER = 3
LEAST_WALKERS = 24
JUMP_EVERY = 10  # steps: then a walker may leap from one peak to another
BLUR = 1e-4  # of a logarithm


@dataclass(frozen=True, eq=False)
class Walk:
    """Where the walkers went: steps, walkers, logarithms of parameters.

    ``drift`` says how far means still moved between the last two quarters of the steps, in standard
    deviations of the parameter that moved most: with 0.3 or less the walk was long enough.
    """

    points: Numbers
    accepted: float

    @property
    def kept(self) -> Numbers:
        """The second half of the steps, all walkers in rows."""
        return self.points[len(self.points) // 2 :].reshape(-1, self.points.shape[2])

    @property
    def drift(self) -> float:
        """How far the means still moved, in standard deviations."""
        quarter = len(self.points) // 4
        before, after = self.points[-2 * quarter : -quarter], self.points[-quarter:]
        moved = np.abs(after.mean(axis=(0, 1)) - before.mean(axis=(0, 1)))
        return float((moved / (self.kept.std(axis=0) + 1e-12)).max())


def walk(
    misfit: Misfit,
    start: Numbers,
    scatter: float,
    *,
    steps: int,
    seed: int,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Walk:
    """Walkers that visit each place as often as it is probable, once they forgot the start.

    Differential evolution (ter Braak, Statistics and Computing 16, 2006): a walker moves by the
    difference between two walkers of the other half, and stays if the cost there is too high.
    """
    generator = np.random.default_rng(seed)
    x, (count, size) = start.copy(), start.shape
    costs = misfit.costs(x, scatter)
    halves = np.array_split(np.arange(count), 2)
    gamma = 2.38 / math.sqrt(2 * size)
    points, accepted = [], 0
    for step in progress(range(steps)):
        reach = 1.0 if step % JUMP_EVERY == JUMP_EVERY - 1 else gamma
        for half, other in (halves, halves[::-1]):
            pairs = np.array([generator.choice(other, 2, replace=False) for _ in half])
            ahead = x[half] + reach * (x[pairs[:, 0]] - x[pairs[:, 1]])
            ahead = _reflected(
                ahead + BLUR * generator.standard_normal(ahead.shape), misfit.low, misfit.high
            )
            cost = misfit.costs(ahead, scatter)
            goes = np.log(generator.random(len(half))) < costs[half] - cost
            x[half[goes]], costs[half[goes]] = ahead[goes], cost[goes]
            accepted += int(goes.sum())
        points.append(x.copy())
    return Walk(np.array(points), accepted / (steps * count))


def _reflected(x: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Places thrown back by the bounds, as often as it takes."""
    width = high - low
    folded = np.mod(x - low, 2 * width)
    return low + np.where(folded > width, 2 * width - folded, folded)


def starting_points(posterior: Posterior, peaks: Sequence[Numbers], seed: int) -> Numbers:
    """Where walkers begin: draws of the approximate posterior, shared out among its peaks."""
    size = len(posterior.mode)
    count = max(LEAST_WALKERS, WALKERS_PER_PARAMETER * size)
    drawn = np.log(posterior.samples(count, seed))
    for number, peak in enumerate(peaks, start=1):
        drawn[number :: len(peaks) + 1] += peak - posterior.mode
    low = [parameter.low for parameter in posterior.parameters]
    high = [parameter.high for parameter in posterior.parameters]
    return np.clip(drawn, np.log(low), np.log(high))


def sampled_posterior(posterior: Posterior, found: Walk) -> Posterior:
    """The posterior with the places that walkers visited instead of a normal distribution."""
    kept = found.kept
    covariance = np.atleast_2d(np.cov(kept, rowvar=False))
    return replace(posterior, covariance=covariance, points=kept)
