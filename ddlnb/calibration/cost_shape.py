"""The shape of the cost around its minimum, from which the posterior follows.

A simulator has kinks: a link stops to matter where another becomes the bottleneck. There curvature
at one point says little. Slopes are therefore taken over as much as a parameter may be off, on the
flatter side of a kink, and walls stand where the cost rises sooner than such slopes say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ddlnb.calibration.misfit import STEP, Minimum, Misfit
from ddlnb.calibration.posterior import Numbers, Posterior, laplace_covariance, told_parameters

PASSES = 5
WIDER = 1.5  # times a step: less is not worth another look
KINK = 2.0  # slopes on both sides that differ by more are those of a kink
LOOSE = 0.3  # standard deviation of a logarithm beyond which a parameter is walked
WALKS = np.array([0.03, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])  # of its standard deviation
RISE = 2.0  # of the cost at two standard deviations of a normal distribution
LOWER = 0.1  # of the cost: a walk that gains more has found a better place
ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Shape:
    """The posterior, the slope of the residuals, and their scatter.

    ``per_freedom`` is what the scatter of residuals is multiplied with, because parameters were
    fitted to them.
    """

    posterior: Posterior
    slope: Numbers
    scatter: float
    per_freedom: float


def settled(misfit: Misfit, minimum: Minimum) -> tuple[Minimum, Shape]:
    """The minimum and the shape around it; a lower one if walks to find the walls come by one."""
    for number in range(ROUNDS):
        shape, lower = _shape_at(misfit, minimum)
        if lower is None or number == ROUNDS - 1:
            break
        found = misfit.minimise(lower)
        if found.cost > minimum.cost - LOWER:
            break
        minimum = found
    return minimum, shape


def _shape_at(misfit: Misfit, minimum: Minimum) -> tuple[Shape, Numbers | None]:
    """The shape at the minimum, and a point where the cost is lower if there is one."""
    x, parameters = minimum.x, misfit.parameters
    residuals = misfit.at([x])[0]
    weights = misfit.weights(residuals)
    slope = wide_slope(misfit, x)
    weighted = np.sqrt(weights)[:, None] * slope
    freedom = max(1.0, len(residuals) - told_parameters(parameters, weighted))
    per_freedom = math.sqrt(len(residuals) / freedom)
    scatter = misfit.scatter(residuals) * per_freedom
    counted = max(1.0, scatter)
    covariance = laplace_covariance(parameters, weighted, scatter)
    low, high, lower = _walk(misfit, minimum, covariance, counted)
    # At a bound the cost still falls outwards.
    push = misfit.slope(x).T @ (weights * residuals) / counted**2
    push = push + misfit.prior_slope.T @ misfit.prior_residuals(x)
    posterior = Posterior(parameters, x, covariance, push, low, high)
    return Shape(posterior, slope, scatter, per_freedom), lower


def wide_slope(misfit: Misfit, x: Numbers) -> Numbers:
    """How the residuals of observations change with x, within a standard deviation of each.

    At a kink it is the slope of the flatter side. Steps grow as long as slopes over them fall.
    """
    prior = np.array([parameter.spread for parameter in misfit.parameters])
    step, turn = np.full(len(x), STEP), np.arange(len(x))
    slope = np.zeros((len(x), len(misfit.observations)))
    for _ in range(PASSES):
        up, down = np.minimum(step, misfit.high - x), np.minimum(step, x - misfit.low)
        residuals = misfit.at([x, *(x + np.diag(up))[turn], *(x - np.diag(down))[turn]])
        rises, falls = np.split(residuals[1:] - residuals[0], 2)
        weights = misfit.weights(residuals[0])
        for i, rise, fall in zip(turn, rises, falls, strict=True):
            slope[i] = _flatter(rise, fall, up[i], down[i], weights)
        told = (weights * slope**2).sum(axis=1) / max(1.0, misfit.scatter(residuals[0])) ** 2
        wider = np.maximum(STEP, 1 / np.sqrt(told + 1 / prior**2))
        turn, step = np.flatnonzero(wider > WIDER * step), wider
        if not len(turn):
            break
    return slope.T


def _flatter(rise: Numbers, fall: Numbers, above: float, below: float, weights: Numbers) -> Numbers:
    """The slope from what a step above and a step below change; steps of 0 do not count."""
    if above < STEP / 2:
        return -fall / below
    if below < STEP / 2:
        return rise / above
    sides = [rise / above, -fall / below]
    sides.sort(key=lambda slope: float((weights * slope**2).sum()))
    flat, steep = (math.sqrt((weights * slope**2).sum()) for slope in sides)
    return sides[0] if steep > KINK * flat else (rise - fall) / (above + below)


def _walk(
    misfit: Misfit, minimum: Minimum, covariance: Numbers, scatter: float
) -> tuple[Numbers, Numbers, Numbers | None]:
    """Walls on both sides of the minimum, and a lower point if there is one.

    Each loose parameter is moved, and the others follow by their covariance. Where the cost rises
    by twice what it should, a wall stands where it has risen by what two standard deviations cost.
    """
    x, spread = minimum.x, np.sqrt(np.diag(covariance))
    low, high = misfit.low.copy(), misfit.high.copy()
    loose = [(i, sign) for i in np.flatnonzero(spread > LOOSE) for sign in (-1.0, 1.0)]
    points = [
        np.clip(x + sign * walk * covariance[:, i] / spread[i], misfit.low, misfit.high)
        for i, sign in loose
        for walk in WALKS
    ]
    at_x, *costs = misfit.costs([x, *points], scatter)
    rises = np.reshape(costs, (-1, len(WALKS))) - at_x
    for (i, sign), rise in zip(loose, rises, strict=True):
        if (rise > np.maximum(RISE, WALKS**2)).any():
            roots = np.sqrt(np.maximum.accumulate(np.maximum(0.0, rise)))
            walk = float(np.interp(math.sqrt(RISE), [0.0, *roots], [0.0, *WALKS]))
            if sign < 0:
                low[i] = max(low[i], x[i] - walk * spread[i])
            else:
                high[i] = min(high[i], x[i] + walk * spread[i])
    if points and min(costs) < at_x - LOWER:
        return low, high, points[int(np.argmin(costs))]
    return low, high, None
