"""How far predictions are from what was seen, and the values of parameters that make it least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.calibration.observations import Observation, predictions
from ddlnb.calibration.parameters import Parameter, World, log_bounds
from ddlnb.calibration.posterior import Numbers

STEP = 0.01  # of a logarithm: wide enough to see over the jumps of plans that change
ANCHOR = 1e-3  # what a flat prior counts, so that the search leaves alone what nothing tells
LEAST_RATIO = 1e-3  # of what was seen; a prediction of zero counts as this much
MOST_EVALUATIONS = 60


@dataclass(frozen=True, eq=False)
class Minimum:
    """Logarithms of values where the cost is least, that cost, and whether the search got there."""

    x: Numbers
    cost: float
    converged: bool


class Misfit:
    """Residuals of observations and priors as functions of the logarithms of parameters.

    Both are in units of their spreads; the cost is half the sum of their squares. With ``robust``
    a residual r of an observation counts as 2 (sqrt(1 + r^2) - 1) instead of r^2.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        parameters: Sequence[Parameter],
        without: Sequence[str] = (),
        *,
        robust: bool = False,
    ):
        self.observations, self.parameters = tuple(observations), tuple(parameters)
        self.without, self.robust = tuple(without), robust
        self.low, self.high = log_bounds(parameters)
        self._observed = np.array([observation.value for observation in observations])
        self._spread = np.array([observation.spread for observation in observations])
        self._prior = np.log([parameter.prior for parameter in parameters])
        spread = np.array([parameter.spread for parameter in parameters])
        self._is_flat = np.array([parameter.prior_spread is None for parameter in parameters])
        self._pull = np.where(self._is_flat, ANCHOR, 1.0) / spread
        self.prior_slope = np.diag(self._pull)

    def minimise(self, start: Numbers) -> Minimum:
        """The minimum within the bounds that a search from there ends in."""
        from scipy.optimize import least_squares

        found = least_squares(
            lambda x: np.concatenate([self.at([x])[0], self.prior_residuals(x)]),
            np.clip(start, self.low, self.high),
            jac=lambda x: np.vstack([self.slope(x), self.prior_slope]),
            bounds=(self.low, self.high),
            loss=_soft_l1_of_first(len(self._observed)) if self.robust else "linear",
            xtol=1e-5,
            ftol=1e-4,
            gtol=1e-8,
            max_nfev=MOST_EVALUATIONS,
        )
        return Minimum(found.x, float(found.cost), bool(found.success))

    def draw(self, generator: np.random.Generator) -> Numbers:
        """Logarithms of values drawn from the priors."""
        uniform = generator.uniform(self.low, self.high)
        normal = generator.normal(self._prior, 1 / self._pull)
        return np.clip(np.where(self._is_flat, uniform, normal), self.low, self.high)

    def predicted(self, points: Iterable[Numbers]) -> Numbers:
        """What is predicted at each of these points, all simulated together."""
        values = [tuple(np.exp(point).tolist()) for point in points]
        worlds = [World(self.parameters, value, self.without) for value in values]
        return predictions(self.observations, worlds)

    def residuals(self, predicted: Numbers) -> Numbers:
        """Logarithms of predicted over observed, in units of the spreads."""
        return np.log(np.maximum(predicted / self._observed, LEAST_RATIO)) / self._spread

    def prior_residuals(self, x: Numbers) -> Numbers:
        """Distances from the priors in units of their spreads, next to nothing for flat ones."""
        return (x - self._prior) * self._pull

    def weights(self, residuals: Numbers) -> Numbers:
        """How much the squares of these residuals of observations count."""
        return 1 / np.sqrt(1 + residuals**2) if self.robust else np.ones_like(residuals)

    def scatter(self, residuals: Numbers) -> float:
        """Standard deviation of residuals around zero; the robust one heeds the middle ones."""
        if self.robust:
            return float(1.4826 * np.median(np.abs(residuals)))
        return float(np.sqrt(np.mean(residuals**2)))

    def slope(self, x: Numbers) -> Numbers:
        """How the residuals of observations change with x, by central differences within bounds."""
        steps = STEP * np.eye(len(x))
        up, down = np.minimum(x + steps, self.high), np.maximum(x - steps, self.low)
        residuals = self.at([*up, *down])
        width = (up - down).diagonal()[:, None]
        return ((residuals[: len(x)] - residuals[len(x) :]) / width).T

    def costs(self, points: Iterable[Numbers], scatter: float = 1.0) -> Numbers:
        """The cost at each point when residuals have this standard deviation."""
        points = list(points)
        squares = self.at(points) ** 2
        if self.robust:
            squares = 2 * (np.sqrt(1 + squares) - 1)
        prior = np.array([(self.prior_residuals(point) ** 2).sum() for point in points])
        return (squares.sum(axis=1) / scatter**2 + prior) / 2

    def at(self, points: Iterable[Numbers]) -> Numbers:
        """The residuals of observations at each of these points."""
        return self.residuals(self.predicted(points))


def _soft_l1_of_first(count: int) -> Callable[[Numbers], Numbers]:
    """The loss that is soft L1 for the first residuals and square for the others, the priors."""

    def loss(squares: Numbers) -> Numbers:
        rho = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1 + squares[:count])
        rho[:, :count] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    return loss
