"""What a fit minimises: how far predictions are from observations, and values from their priors.

Explore the shape of the cost around its minimum, from which the posterior follows.

A simulator has kinks: a link stops to matter where another becomes the bottleneck. There the
curvature at one point says little. Slopes are therefore taken over as much as a parameter may be
off, on the flatter side of a kink, and a profile scan sets limits where the cost rises sooner than
such slopes say.

Fit effects of clusters to observed seconds, with what is known of them before and after.

The fitted values are the most probable ones: those with the least half sum of squares of
(log predicted - log observed) / spread over the observations and of
(log value - log prior) / prior spread over the parameters whose prior is not flat. They are found
by bounded least squares with differences for slopes, for which all cells are simulated together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ddlnb.calibration.observations import Observation, Row, predictions, require_small, row_of
from ddlnb.calibration.parameters import Parameter, ParameterValues, log_bounds, require_parameters
from ddlnb.calibration.posterior import (
    Identifiability,
    Numbers,
    Posterior,
    identified_count,
    laplace_covariance,
)
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.errors import require, require_whole
from ddlnb.progress import Show, bar

STEP = 0.01  # of a logarithm: wide enough to see over small jumps
ANCHOR = 1e-3  # the weight of a flat prior, so that the search leaves alone what nothing identifies
LEAST_RATIO = 1e-3  # of the observed value; a prediction below that counts as this much
MOST_EVALUATIONS = 60  # of one search


@dataclass(frozen=True, eq=False)
class Minimum:
    """The logarithms of values at a minimum, its cost, and whether the search converged."""

    x: Numbers
    cost: float
    converged: bool


class Objective:
    """Residuals of observations and priors as functions of the logarithms of parameters.

    Both are in units of their spreads, and the cost is half the sum of their squares. If ``robust``
    a residual r of an observation counts as 2 (sqrt(1 + r^2) - 1) instead of r^2.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        parameters: Sequence[Parameter],
        *,
        robust: bool = False,
        progress: Show = None,
    ):
        self.observations, self.parameters = tuple(observations), tuple(parameters)
        self.robust, self._progress = robust, progress
        self._values = ParameterValues(self.parameters)
        self._quantities = [observation.quantity for observation in observations]
        self.low, self.high = log_bounds(parameters)
        self._observed = np.array([observation.value for observation in observations])
        self._spread = np.array([observation.spread for observation in observations])
        self._prior = np.log([parameter.prior for parameter in parameters])
        spread = np.array([parameter.spread for parameter in parameters])
        self._is_flat = np.array([parameter.prior_spread is None for parameter in parameters])
        self._prior_weight = np.where(self._is_flat, ANCHOR, 1.0) / spread
        self.prior_slope = np.diag(self._prior_weight)

    def minimise(self, start: Numbers) -> Minimum:
        """Search for the minimum within the bounds, from ``start``."""
        from scipy.optimize import least_squares

        def residuals(x: Numbers) -> Numbers:
            search.update()
            return np.concatenate([self.at([x])[0], self.prior_residuals(x)])

        search = bar(desc="search", unit="evaluation", progress=self._progress)
        found = least_squares(
            residuals,
            np.clip(start, self.low, self.high),
            jac=lambda x: np.vstack([self.slope(x), self.prior_slope]),
            bounds=(self.low, self.high),
            loss=_soft_l1_of_first(len(self._observed)) if self.robust else "linear",
            x_scale="jac",
            xtol=1e-5,
            ftol=1e-4,
            gtol=1e-8,
            max_nfev=MOST_EVALUATIONS,
        )
        search.close()
        return Minimum(found.x, float(found.cost), bool(found.success))

    def draw(self, generator: np.random.Generator) -> Numbers:
        """Draw logarithms of values from the priors."""
        uniform = generator.uniform(self.low, self.high)
        normal = generator.normal(self._prior, 1 / self._prior_weight)
        return np.clip(np.where(self._is_flat, uniform, normal), self.low, self.high)

    def predicted(self, points: Iterable[Numbers], planned_at: Numbers | None = None) -> Numbers:
        """Return the predictions (columns) at each point (rows), all simulated together.

        Methods plan for the values at the point itself, or for those at ``planned_at``.
        """
        planned = None if planned_at is None else self._values.at(np.exp(planned_at).tolist())
        several = [self._values.at(np.exp(point).tolist(), planned) for point in points]
        return predictions(self._quantities, several)

    def at(self, points: Iterable[Numbers], planned_at: Numbers | None = None) -> Numbers:
        """Return the residuals of the observations at each of these points."""
        predicted = self.predicted(points, planned_at)
        return np.log(np.maximum(predicted / self._observed, LEAST_RATIO)) / self._spread

    def prior_residuals(self, x: Numbers) -> Numbers:
        """Return the distances from the priors in units of their spreads, about 0 for flat ones."""
        return (x - self._prior) * self._prior_weight

    def weights(self, residuals: Numbers) -> Numbers:
        """Return how much the squares of these residuals of observations count."""
        return 1 / np.sqrt(1 + residuals**2) if self.robust else np.ones_like(residuals)

    def standard_deviation(self, residuals: Numbers) -> float:
        """Return the standard deviation of residuals around zero, from their median if robust."""
        if self.robust:
            return float(1.4826 * np.median(np.abs(residuals)))
        return float(np.sqrt(np.mean(residuals**2)))

    def slope(self, x: Numbers) -> Numbers:
        """Return the derivatives of the residuals by central differences within the bounds.

        Plans stay those at ``x``, or a difference could be that between two plans.
        """
        steps = STEP * np.eye(len(x))
        up, down = np.minimum(x + steps, self.high), np.maximum(x - steps, self.low)
        residuals = self.at([*up, *down], planned_at=x)
        width = (up - down).diagonal()[:, None]
        return ((residuals[: len(x)] - residuals[len(x) :]) / width).T

    def costs(
        self,
        points: Iterable[Numbers],
        standard_deviation: float = 1.0,
        planned_at: Numbers | None = None,
    ) -> Numbers:
        """Return the cost at each point if residuals have this standard deviation."""
        points = list(points)
        squares = self.at(points, planned_at) ** 2
        if self.robust:
            squares = 2 * (np.sqrt(1 + squares) - 1)
        prior = np.array([(self.prior_residuals(point) ** 2).sum() for point in points])
        return (squares.sum(axis=1) / standard_deviation**2 + prior) / 2


def _soft_l1_of_first(count: int) -> Callable[[Numbers], Numbers]:
    """Return the loss that is soft L1 for the first residuals and square for the priors' after."""

    def loss(squares: Numbers) -> Numbers:
        rho = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1 + squares[:count])
        rho[:, :count] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    return loss


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


BETTER = 0.01  # of the cost: another search counts only if it gains more
AS_GOOD = 2.0  # of the cost, as at two standard deviations
FAR = 3.0  # standard deviations
NORMAL_TAIL = 1.6449  # 90 % of normal numbers are within this many standard deviations
MOST_MODEL_ERROR = 0.99  # of a Cluster


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted values of parameters, how sure they are, and how well they explain the observations.

    ``values`` are those of ``parameters`` in their units. ``residual_deviation`` is the standard
    deviation of the residuals in units of the spreads of the observations, ``model_error`` the
    relative standard deviation that those spreads do not explain. ``converged`` is False where the
    search was stopped; ``rivals`` are values where another search ended at about the same cost.
    """

    observations: tuple[Observation, ...]
    parameters: tuple[Parameter, ...]
    values: tuple[float, ...]
    predicted: tuple[float, ...]
    posterior: Posterior
    residual_deviation: float
    model_error: float
    cost: float
    converged: bool
    rivals: tuple[tuple[float, ...], ...] = ()

    @property
    def parameter_values(self) -> ParameterValues:
        """Return the fitted values, to predict with."""
        return ParameterValues(self.parameters, self.values)

    @property
    def value_of(self) -> dict[str, float]:
        """Return the fitted values by the names of their parameters."""
        return {p.name: value for p, value in zip(self.parameters, self.values, strict=True)}

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return every observation with the value that the fit predicts for it."""
        pairs = zip(self.observations, self.predicted, strict=True)
        return tuple(row_of(observation, value, "fitted") for observation, value in pairs)

    @property
    def errors(self) -> tuple[float, ...]:
        """Return the absolute relative errors: of iterations by a method if any were observed."""
        iterations = [row for row in self.rows if row.method is not None]
        return tuple(abs(row.relative_error) for row in iterations or self.rows)

    @property
    def mean_error(self) -> float:
        """Return the mean of the errors."""
        return float(np.mean(self.errors))

    @property
    def median_error(self) -> float:
        """Return the median of the errors."""
        return float(np.median(self.errors))

    @property
    def in_words(self) -> str:
        """Return how far off the fit is, or why that says nothing of it."""
        values, effects = len(self.observations), len(self.parameters)
        spread = f"forecasts count with a model error of {self.model_error:.1%}"
        if values < effects:
            return (
                f"{effects} effects were fitted to {values} values, so how close it comes to them "
                f"says nothing; {spread}."
            )
        return (
            f"The fit is off by {self.mean_error:.1%} on average and {self.median_error:.1%} in "
            f"the median; {spread}."
        )

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Return the 90 % intervals of the parameters in their units."""
        return self.posterior.intervals()

    @property
    def identifiability(self) -> Identifiability:
        """Return what the data say of every parameter."""
        spread = self.posterior.spread
        found = [
            (parameter.name, rival[i])
            for rival in self.rivals
            for i, parameter in enumerate(self.parameters)
            if abs(math.log(rival[i] / self.values[i])) > FAR * spread[i]
        ]
        return replace(self.posterior.identifiability, ambiguous=tuple(dict.fromkeys(found)))

    def clusters(self, base: Sequence[Cluster]) -> list[Cluster]:
        """Return these clusters with the fitted effects, their intervals and the model error.

        Parameters of one model only are not in them: a cluster does not know what it trains.
        """
        intervals, unidentified = self.intervals, self.identifiability.unidentified
        sources = sorted({observation.labels.source for observation in self.observations})
        data = f"fitted to {len(self.observations)} observations ({', '.join(sources)})"
        clusters = []
        for cluster in base:
            fits = dict(cluster.fits)
            for effect, (parameter, _) in self.parameter_values.chosen(cluster).items():
                remark = "not identified by the data, " * (parameter.name in unidentified)
                fits[effect] = Fit(*intervals[parameter.name], f"{parameter.name}: {remark}{data}")
            error = min(self.model_error, MOST_MODEL_ERROR)
            clusters.append(
                replace(self.parameter_values.on(cluster), fits=fits, model_error=error)
            )
        return clusters


def calibrate_parameters(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    *,
    robust: bool = False,
    starts: int = 1,
    seed: int = 0,
    progress: Show = None,
) -> Calibration:
    """Fit the parameters: the most probable values, and how sure they are.

    ``robust`` counts large residuals linearly (soft L1), so that a few wrong observations do no
    harm. The search starts from the priors and from ``starts - 1`` random draws of them; with 4 or
    more it seldom ends in a minimum that is not the lowest. Intervals come from the shape of the
    cost around the minimum. Raises InputError for more than 30 parameters, and for published
    observations of more than 8 GPUs.
    """
    require(bool(observations), "observations is empty; give at least one")
    require_whole(starts=starts)
    require_parameters(parameters)
    require_small(observations)
    objective = Objective(observations, parameters, robust=robust, progress=progress)
    generator = np.random.default_rng(seed)
    minima = [objective.minimise(np.log([parameter.prior for parameter in parameters]))]
    minima += [objective.minimise(objective.draw(generator)) for _ in range(starts - 1)]
    best = minima[0]
    for found in minima[1:]:
        if found.cost < best.cost - BETTER:
            best = found
    best, shape = explore(objective, best)
    calibration = Calibration(
        observations=objective.observations,
        parameters=objective.parameters,
        values=tuple(np.exp(best.x).tolist()),
        predicted=tuple(objective.predicted([best.x])[0].tolist()),
        posterior=shape.posterior,
        residual_deviation=shape.residual_deviation,
        model_error=0.0,
        cost=best.cost,
        converged=best.converged,
        rivals=tuple(
            tuple(np.exp(other.x).tolist())
            for other in minima
            if other.cost < best.cost + AS_GOOD and other is not best
        ),
    )
    return replace(calibration, model_error=unexplained(calibration.rows, shape.per_freedom))


def unexplained(rows: Sequence[Row], factor: float = 1.0) -> float:
    """Return the relative standard deviation of observed from predicted that no spread explains.

    It is such that 90 % of the rows are within a 90 % interval: of the logarithms of the ratios,
    times the factor, the 90 % quantile counts. A tenth of the rows may be as wrong as they like.
    """
    ratios = [abs(math.log(max(r.predicted / r.observed, LEAST_RATIO))) for r in rows]
    require(bool(ratios), "the model error needs at least one row")
    deviation = float(np.quantile(ratios, 0.9)) / NORMAL_TAIL * factor
    spread = float(np.median([row.spread for row in rows]))
    return math.sqrt(max(0.0, deviation**2 - spread**2))
