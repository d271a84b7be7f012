"""What a fit minimises: how far predictions are from observations, and values from their priors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.calibration.observations import Observation
from ddlnb.calibration.parameters import Parameter, ParameterValues, log_bounds
from ddlnb.calibration.quantities import predictions
from ddlnb.calibration.truncated_normal import Numbers
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
