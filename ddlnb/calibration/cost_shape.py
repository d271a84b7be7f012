"""Explore the shape of the cost around its minimum, from which the posterior follows.

A simulator has kinks: a link stops to matter where another becomes the bottleneck. There the
curvature at one point says little. Slopes are therefore taken over as much as a parameter may be
off, on the flatter side of a kink, and a profile scan sets limits where the cost rises sooner than
such slopes say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ddlnb.calibration.objective import STEP, Minimum, Objective
from ddlnb.calibration.posterior import Posterior, identified_count, laplace_covariance
from ddlnb.calibration.truncated_normal import Numbers

PASSES = 5  # of widening the steps over which slopes are taken
WIDER = 1.5  # times a step: less is not worth another look
KINK = 2.0  # slopes on both sides that differ by more are those of a kink
LOOSE = 0.3  # standard deviation of a logarithm beyond which a parameter is scanned
DISTANCES = np.array([0.03, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])  # standard deviations
RISE = 2.0  # of the cost at two standard deviations of a normal distribution
LOWER = 0.1  # of the cost: a scan that gains more has found a better point
ROUNDS = 3  # of searching again from a better point


@dataclass(frozen=True, eq=False)
class Shape:
    """The posterior, and the standard deviation of the residuals.

    ``per_freedom`` is the factor in it that makes up for the parameters that were fitted.
    """

    posterior: Posterior
    residual_deviation: float
    per_freedom: float


def explore(objective: Objective, minimum: Minimum) -> tuple[Minimum, Shape]:
    """Return the minimum and the shape around it, or those of a lower one that scans come by."""
    for number in range(ROUNDS):
        shape, lower = _shape_at(objective, minimum)
        if lower is None or number == ROUNDS - 1:
            break
        found = objective.minimise(lower)
        if found.cost > minimum.cost - LOWER:
            break
        minimum = found
    return minimum, shape


def _shape_at(objective: Objective, minimum: Minimum) -> tuple[Shape, Numbers | None]:
    """Return the shape at the minimum, and a point where the cost is lower if there is one."""
    x, parameters = minimum.x, objective.parameters
    residuals = objective.at([x])[0]
    weights = objective.weights(residuals)
    weighted = np.sqrt(weights)[:, None] * wide_slope(objective, x)
    freedom = max(1.0, len(residuals) - identified_count(parameters, weighted))
    per_freedom = math.sqrt(len(residuals) / freedom)
    deviation = objective.standard_deviation(residuals) * per_freedom
    counted = max(1.0, deviation)
    covariance = laplace_covariance(parameters, weighted, deviation)
    low, high, lower = _profile_scan(objective, minimum, covariance, counted)
    gradient = objective.slope(x).T @ (weights * residuals) / counted**2
    gradient = gradient + objective.prior_slope.T @ objective.prior_residuals(x)
    posterior = Posterior(parameters, x, covariance, gradient, low, high)
    return Shape(posterior, deviation, per_freedom), lower


def wide_slope(objective: Objective, x: Numbers) -> Numbers:
    """Return the slope of the residuals with x, taken over a standard deviation of each parameter.

    At a kink it is the slope of the flatter side. Steps grow as long as slopes over them fall.
    """
    prior = np.array([parameter.spread for parameter in objective.parameters])
    step, turn = np.full(len(x), STEP), np.arange(len(x))
    slope = np.zeros((len(x), len(objective.observations)))
    for _ in range(PASSES):
        up, down = np.minimum(step, objective.high - x), np.minimum(step, x - objective.low)
        points = [x, *(x + np.diag(up))[turn], *(x - np.diag(down))[turn]]
        residuals = objective.at(points, planned_at=x)
        rises, falls = np.split(residuals[1:] - residuals[0], 2)
        weights = objective.weights(residuals[0])
        for i, rise, fall in zip(turn, rises, falls, strict=True):
            slope[i] = _flatter(rise, fall, up[i], down[i], weights)
        deviation = max(1.0, objective.standard_deviation(residuals[0]))
        precision = (weights * slope**2).sum(axis=1) / deviation**2
        wider = np.maximum(STEP, 1 / np.sqrt(precision + 1 / prior**2))
        turn, step = np.flatnonzero(wider > WIDER * step), wider
        if not len(turn):
            break
    return slope.T


def _flatter(rise: Numbers, fall: Numbers, above: float, below: float, weights: Numbers) -> Numbers:
    """Return the slope from the changes by a step above and one below; steps of 0 do not count."""
    if above < STEP / 2:
        return -fall / below
    if below < STEP / 2:
        return rise / above
    sides = [rise / above, -fall / below]
    sides.sort(key=lambda slope: float((weights * slope**2).sum()))
    flat, steep = (math.sqrt((weights * slope**2).sum()) for slope in sides)
    return sides[0] if steep > KINK * flat else (rise - fall) / (above + below)


def _profile_scan(
    objective: Objective, minimum: Minimum, covariance: Numbers, deviation: float
) -> tuple[Numbers, Numbers, Numbers | None]:
    """Return limits on both sides of the minimum, and a lower point if there is one.

    Each loose parameter is moved, and the others follow by their covariance. Where the cost rises
    by twice what it should, the limit is where it has risen by what two standard deviations cost.
    """
    x, spread = minimum.x, np.sqrt(np.diag(covariance))
    low, high = objective.low.copy(), objective.high.copy()
    loose = [(i, sign) for i in np.flatnonzero(spread > LOOSE) for sign in (-1.0, 1.0)]
    points = [
        np.clip(x + sign * distance * covariance[:, i] / spread[i], objective.low, objective.high)
        for i, sign in loose
        for distance in DISTANCES
    ]
    at_x, *costs = objective.costs([x, *points], deviation, planned_at=x)
    rises = np.reshape(costs, (-1, len(DISTANCES))) - at_x
    for (i, sign), rise in zip(loose, rises, strict=True):
        if (rise > np.maximum(RISE, DISTANCES**2)).any():
            roots = np.sqrt(np.maximum.accumulate(np.maximum(0.0, rise)))
            distance = float(np.interp(math.sqrt(RISE), [0.0, *roots], [0.0, *DISTANCES]))
            if sign < 0:
                low[i] = max(low[i], x[i] - distance * spread[i])
            else:
                high[i] = min(high[i], x[i] + distance * spread[i])
    if points and min(costs) < at_x - LOWER:
        return low, high, points[int(np.argmin(costs))]
    return low, high, None
