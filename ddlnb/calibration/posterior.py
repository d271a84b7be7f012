"""What is known of values after a fit: a normal distribution of their logarithms within limits.

A simulator has kinks: a link stops to matter where another becomes the bottleneck. There the
curvature at one point says little. Slopes are therefore taken over as much as a parameter may be
off, on the flatter side of a kink, and a profile scan sets limits where the cost rises sooner than
such slopes say. `explore` does both; `laplace` takes the slope at the minimum, which is enough for
smooth predictions. `tempered_draws` are those of a posterior that may have several peaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from ddlnb.calibration.fit import STEP, Minimum, Numbers, Prior, Problem
from ddlnb.errors import require_whole

INTERVAL_DRAWS = 4000  # from which a 90 % interval is taken
TAILS = (0.05, 0.95)  # of a 90 % interval
UNIDENTIFIED = 0.9  # of the prior's spread: data that leave as much do not identify a parameter
ALIKE = 0.95  # the correlation beyond which only a combination of two parameters is identified
AT_BOUND = 0.01  # of a value
PASSES = 5  # of widening the steps over which slopes are taken
WIDER = 1.5  # times a step: less is not worth another look
KINK = 2.0  # slopes on both sides that differ by more are those of a kink
LOOSE = 0.3  # standard deviation of a logarithm beyond which a parameter is scanned
DISTANCES = np.array([0.03, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])  # standard deviations
RISE = 2.0  # of the cost at two standard deviations of a normal distribution
LOWER = 0.5  # of the cost, as at one standard deviation: a scan that gains more found a better one
ROUNDS = 3  # of searching again from a better point
SWEEPS = 30  # of every chain, after which it has forgotten its start
KEPT = 0.5  # of the draws: the effective number that a stage may leave
STEPS = 4  # Metropolis steps of every draw at each stage
SCALE = 0.5  # of the draws' covariance, as the steps' deviation


@dataclass(frozen=True)
class Identifiability:
    """What the data say of every parameter.

    ``ratio`` is the spread of the posterior over that of the prior. ``unidentified`` are the
    parameters that keep theirs, ``at_bound`` those that a bound holds, and ``alike`` pairs with
    their correlation, of which only a combination is identified. ``ambiguous`` are values far away
    with which another search explains the data as well; the intervals do not hold them.
    """

    ratio: dict[str, float]
    unidentified: tuple[str, ...]
    at_bound: tuple[str, ...]
    alike: tuple[tuple[str, str, float], ...]
    ambiguous: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        lines = [f"{'parameter':<40} posterior / prior spread"]
        for name, ratio in self.ratio.items():
            remarks = ["not identified by the data"] * (name in self.unidentified)
            remarks += ["at a bound"] * (name in self.at_bound)
            lines.append(f"{name:<40} {ratio:<6.2f} {', '.join(remarks)}".rstrip())
        lines += [f"{a} and {b}: correlation {r:.2f}" for a, b, r in self.alike]
        lines += [f"{name} could as well be {value:.4g}" for name, value in self.ambiguous]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The Laplace approximation: ``mode`` and ``covariance`` of logarithms, within limits.

    ``gradient`` is that of the cost at the mode; it is not zero where a bound holds the mode.
    ``low`` and ``high`` are the limits: the bounds, or nearer where a profile scan found one.
    """

    prior: Prior
    mode: Numbers
    covariance: Numbers
    gradient: Numbers
    low: Numbers
    high: Numbers

    def samples(self, count: int, seed: int = 0) -> Numbers:
        """Draw ``count`` rows within the limits, one column per parameter, in their units."""
        require_whole(count=count)
        centre = self.mode - self.covariance @ np.where(self._is_at_bound, self.gradient, 0.0)
        drawn = draw_within(centre, self.covariance, self.low, self.high, self.mode, count, seed)
        return np.exp(drawn)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the 90 % interval of every parameter, in its unit; the mode lies within."""
        low, high = np.quantile(self.samples(INTERVAL_DRAWS), TAILS, axis=0)
        mode = np.exp(self.mode)
        pairs = np.stack([np.minimum(low, mode), np.maximum(high, mode)], axis=1).tolist()
        return {
            name: (low, high) for name, (low, high) in zip(self.prior.names, pairs, strict=True)
        }

    @property
    def spread(self) -> Numbers:
        """Return the standard deviations of the logarithms, without regard to the limits."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def identifiability(self) -> Identifiability:
        """Return what the data say of every parameter."""
        names, ratio = self.prior.names, self.spread / self.prior.spread
        correlation = self.covariance / np.outer(self.spread, self.spread)
        return Identifiability(
            dict(zip(names, ratio.tolist(), strict=True)),
            tuple(name for name, r in zip(names, ratio, strict=True) if r > UNIDENTIFIED),
            tuple(name for name, held in zip(names, self._is_at_bound, strict=True) if held),
            tuple(
                (names[i], names[j], float(correlation[i, j]))
                for i in range(len(names))
                for j in range(i + 1, len(names))
                if abs(correlation[i, j]) > ALIKE
            ),
        )

    @property
    def _is_at_bound(self) -> NDArray[np.bool_]:
        """Return for each parameter whether it is at a bound beyond which the cost still falls."""
        at_low = (self.mode - self.prior.low < AT_BOUND) & (self.gradient > 0)
        at_high = (self.prior.high - self.mode < AT_BOUND) & (self.gradient < 0)
        return at_low | at_high


def laplace(problem: Problem, x: Numbers) -> Posterior:
    """Return the posterior around a minimum, from the slope there."""
    slope, residuals = problem.slope(x), problem.at([x])[0]
    weights = problem.weights(residuals)
    gradient = slope.T @ (weights * residuals)
    return _posterior(problem, x, np.sqrt(weights)[:, None] * slope, 1.0, gradient)


def _posterior(
    problem: Problem, x: Numbers, slope: Numbers, deviation: float, gradient: Numbers
) -> Posterior:
    """Return the posterior from the weighted ``slope`` of the residuals and their gradient.

    Residuals have this standard deviation: where it is above 1, the model, or the spreads of the
    observations, leave something out, and the data count for less.
    """
    prior = problem.prior
    covariance = np.linalg.inv(slope.T @ slope / deviation**2 + prior.precision)
    gradient = gradient / deviation**2 + prior.slope.T @ prior.residuals(x)
    return Posterior(prior, x, (covariance + covariance.T) / 2, gradient, prior.low, prior.high)


@dataclass(frozen=True, eq=False)
class Shape:
    """The posterior, and the standard deviation of the residuals.

    ``per_freedom`` is the factor in it that makes up for the parameters that were fitted.
    """

    posterior: Posterior
    residual_deviation: float
    per_freedom: float


def explore(problem: Problem, minimum: Minimum) -> tuple[Minimum, Shape]:
    """Return the minimum and the shape around it, or those of a lower one that scans come by."""
    for number in range(ROUNDS):
        shape, lower = _shape_at(problem, minimum)
        if lower is None or number == ROUNDS - 1:
            break
        found = problem.minimise(lower)
        if found.cost > minimum.cost - LOWER:
            break
        minimum = found
    return minimum, shape


def _shape_at(problem: Problem, minimum: Minimum) -> tuple[Shape, Numbers | None]:
    """Return the shape at the minimum, and a point where the cost is lower if there is one."""
    shape = shape_by(problem, minimum, _wide_slope(problem, minimum.x))
    counted = max(1.0, shape.residual_deviation)
    low, high, lower = _profile_scan(problem, minimum, shape.posterior.covariance, counted)
    return replace(shape, posterior=replace(shape.posterior, low=low, high=high)), lower


def shape_by(problem: Problem, minimum: Minimum, wide: Numbers | None = None) -> Shape:
    """Return the shape at the minimum by a slope of the residuals there, by default the local one.

    It takes a tenth of what `explore` takes, and sees no kinks.
    """
    x, residuals = minimum.x, problem.at([minimum.x])[0]
    local, weights = problem.slope(x), problem.weights(residuals)
    slope = np.sqrt(weights)[:, None] * (local if wide is None else wide)
    scaled = slope * problem.prior.spread
    strengths = np.linalg.eigvalsh(scaled.T @ scaled).clip(0)
    identified = (strengths / (1 + strengths)).sum()  # how many parameters the data determine
    per_freedom = math.sqrt(len(residuals) / max(1.0, len(residuals) - identified))
    deviation = problem.deviation(residuals) * per_freedom
    counted = max(1.0, deviation)
    posterior = _posterior(problem, x, slope, counted, local.T @ (weights * residuals))
    return Shape(posterior, deviation, per_freedom)


def _wide_slope(problem: Problem, x: Numbers) -> Numbers:
    """Return the slope of the residuals with x, taken over a standard deviation of each parameter.

    At a kink it is the slope of the flatter side. Steps grow as long as slopes over them fall.
    """
    prior = problem.prior
    step, turn = np.full(len(x), STEP), np.arange(len(x))
    slope = np.zeros((len(x), len(problem.observed)))
    for _ in range(PASSES):
        up, down = np.minimum(step, prior.high - x), np.minimum(step, x - prior.low)
        points = [x, *(x + np.diag(up))[turn], *(x - np.diag(down))[turn]]
        residuals = problem.at(points, about=x)
        rises, falls = np.split(residuals[1:] - residuals[0], 2)
        weights = problem.weights(residuals[0])
        for i, rise, fall in zip(turn, rises, falls, strict=True):
            slope[i] = _flatter(rise, fall, up[i], down[i], weights)
        deviation = max(1.0, problem.deviation(residuals[0]))
        precision = (weights * slope**2).sum(axis=1) / deviation**2
        wider = np.maximum(STEP, 1 / np.sqrt(precision + 1 / prior.spread**2))
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
    problem: Problem, minimum: Minimum, covariance: Numbers, deviation: float
) -> tuple[Numbers, Numbers, Numbers | None]:
    """Return limits on both sides of the minimum, and a lower point if there is one.

    Each loose parameter is moved, and the others follow by their covariance. Where the cost rises
    by twice what it should, the limit is where it has risen by what two standard deviations cost.
    """
    prior, x, spread = problem.prior, minimum.x, np.sqrt(np.diag(covariance))
    low, high = prior.low.copy(), prior.high.copy()
    loose = [(i, sign) for i in np.flatnonzero(spread > LOOSE) for sign in (-1.0, 1.0)]
    points = [
        np.clip(x + sign * distance * covariance[:, i] / spread[i], prior.low, prior.high)
        for i, sign in loose
        for distance in DISTANCES
    ]
    at_x, *costs = problem.costs([x, *points], deviation, about=x)
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


def draw_within(
    centre: Numbers,
    covariance: Numbers,
    low: Numbers,
    high: Numbers,
    start: Numbers,
    count: int,
    seed: int,
) -> Numbers:
    """Return ``count`` draws of a normal distribution that is cut off at a box, in rows.

    Gibbs sampling of independent normal numbers z with x = centre + L z, L L' being the covariance:
    one sweep is exact where no bound is near; each draw is the end of a chain of its own from
    ``start``. Source: Li and Ghosh, Journal of Statistical Theory and Practice 9 (2015).
    """
    generator = np.random.default_rng(seed)
    factor = np.linalg.cholesky(covariance)
    z = np.tile(np.linalg.solve(factor, start - centre), (count, 1))
    x = np.tile(np.clip(start, low, high), (count, 1))
    for _ in range(SWEEPS):
        for j in range(len(centre)):
            column = factor[:, j]
            rows = np.flatnonzero(np.abs(column) > 1e-12 * np.abs(column).max())
            to_low = (low[rows] - x[:, rows]) / column[rows]
            to_high = (high[rows] - x[:, rows]) / column[rows]
            least = z[:, j] + np.minimum(to_low, to_high).max(axis=1)
            most = z[:, j] + np.maximum(to_low, to_high).min(axis=1)
            fresh = _normal_between(least, np.maximum(least, most), generator.random(count))
            x += np.outer(fresh - z[:, j], column)
            z[:, j] = fresh
        x = np.clip(x, low, high)  # what rounding moved out
    return x


def _normal_between(least: Numbers, most: Numbers, uniform: Numbers) -> Numbers:
    """Turn uniform numbers into standard normal ones between limits, accurately in both tails."""
    flipped = least > 0
    lower, upper = np.where(flipped, -most, least), np.where(flipped, -least, most)
    below, above = ndtr(lower), ndtr(upper)
    drawn = np.clip(ndtri(below + uniform * (above - below)), lower, upper)
    return np.where(flipped, -drawn, drawn)


def tempered_draws(
    prior: Prior,
    log_likelihood: Callable[[Numbers], Numbers],
    count: int,
    random: np.random.Generator,
) -> Numbers:
    """Return draws of a posterior that may have several peaks, (count, parameters).

    ``log_likelihood`` maps draws (n, parameters) to logarithms of likelihoods (n,). Draws of the
    prior are turned into those of the posterior in stages: at each one the likelihood counts a
    little more; draws are resampled by what that changes, and moved by Metropolis steps (tempered
    sequential Monte Carlo; Del Moral, Doucet and Jasra, 2006).
    """
    draws = prior.draws(count, random)
    fit, power = log_likelihood(draws), 0.0
    while power < 1.0:
        more = _next_stage(fit, 1.0 - power)
        power += more
        weights = np.exp(more * (fit - fit.max()))
        chosen = random.choice(count, count, p=weights / weights.sum())
        draws, fit = draws[chosen], fit[chosen]
        root = np.linalg.cholesky(np.cov(draws.T) + 1e-10 * np.eye(draws.shape[1]))
        for _ in range(STEPS):
            moved = draws + SCALE * random.standard_normal(draws.shape) @ root.T
            its_fit = log_likelihood(moved)
            gain = power * (its_fit - fit) + prior.log_density(moved) - prior.log_density(draws)
            taken = np.log(random.random(count)) < gain
            draws, fit = np.where(taken[:, None], moved, draws), np.where(taken, its_fit, fit)
    return draws


def _next_stage(fit: Numbers, most: float) -> float:
    """Return by how much the likelihood's power may grow, by bisection."""
    if _effective(most * fit) >= KEPT:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _effective(middle * fit) >= KEPT else (low, middle)
    return max(low, 1e-6)


def _effective(logarithms: Numbers) -> float:
    """Return the effective share of draws with these logarithms of weights."""
    weights = np.exp(logarithms - logarithms.max())
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
