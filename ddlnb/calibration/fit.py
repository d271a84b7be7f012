"""The fit: values of parameters by what was observed, and by what was known of them before.

Who has parameters says what they predict, and gets the most probable values and how sure they are.
It has four users: effects of clusters (`ddlnb.calibration.clusters`), NCCL's collectives
(`ddlnb.calibration.collectives`), what programs reach of data sheets (`benchmarks.roofline_fit`)
and steps of large models (`ddlnb.parallelism.forecast`). Logarithms x of values are fitted. They
have the least cost

    1/2 sum of weight * loss(r^2) + 1/2 sum of p^2,    r = log(predicted / observed) / spread,

where p are the distances from the priors in units of their spreads. Around the minimum the
posterior is taken as normal within limits (`ddlnb.calibration.posterior`); where it may have
several peaks, `tempered_draws` draws from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ddlnb.progress import Show, bar

Numbers = NDArray[np.float64]

STEP = 0.01  # of a logarithm: wide enough to see over small jumps
WIDE = (0.1, 0.06, 0.03)  # over which slopes are first taken where predictions have many kinks
ANCHOR = 1e-3  # the weight of a flat prior, so that the search leaves alone what nothing identifies
LEAST_RATIO = 1e-3  # of the observed value; a prediction below that counts as this much
# Of a search for values whose predictions jump, as those of simulated plans do.
ROUGH = {"xtol": 1e-5, "ftol": 1e-4, "gtol": 1e-8, "max_nfev": 60}


class Predict(Protocol):
    """How observations follow from values, for many sets of values (rows) at once."""

    def __call__(self, values: Numbers, about: Numbers | None) -> Numbers:
        """Return the predictions (columns) for each set of values (rows).

        With ``about``, what is decided by values, such as a plan, is decided by these.
        """


Loss = Callable[[Numbers], Numbers]
"""From squares of residuals to what they count, with the first and the second derivative."""


def square(squares: Numbers) -> Numbers:
    """Return the loss of normal errors."""
    return np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])


def soft_l1(squares: Numbers) -> Numbers:
    """Return the loss 2 (sqrt(1 + r^2) - 1): large residuals count linearly."""
    root = np.sqrt(1 + squares)
    return np.stack([2 * (root - 1), 1 / root, -0.5 / root**3])


def student(freedom: float) -> Loss:
    """Return the loss of errors of Student's t: very large residuals hardly count more."""

    def loss(squares: Numbers) -> Numbers:
        slope = (freedom + 1) / (freedom + squares)
        return np.stack(
            [(freedom + 1) * np.log1p(squares / freedom), slope, -slope / (freedom + squares)]
        )

    return loss


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known of logarithms beforehand: normal, within ``low`` and ``high``.

    A flat one (``is_flat``) has the spread that its bounds have. Two that are ``alike``, by their
    positions, differ with the standard deviation behind them.
    """

    names: tuple[str, ...]
    mean: Numbers
    spread: Numbers
    low: Numbers = field(default_factory=lambda: np.array(-np.inf))
    high: Numbers = field(default_factory=lambda: np.array(np.inf))
    is_flat: NDArray[np.bool_] = field(default_factory=lambda: np.array(False))
    alike: tuple[tuple[int, int, float], ...] = ()

    def __post_init__(self) -> None:
        for name in ("low", "high", "is_flat"):
            object.__setattr__(self, name, np.broadcast_to(getattr(self, name), len(self.names)))

    @cached_property
    def weight(self) -> Numbers:
        """Return what a unit of each logarithm counts."""
        return np.where(self.is_flat, ANCHOR, 1.0) / self.spread

    @cached_property
    def slope(self) -> Numbers:
        """Return the derivatives of the residuals of the prior."""
        return np.vstack([np.diag(self.weight), self._pairs])

    @cached_property
    def precision(self) -> Numbers:
        """Return the inverse of the covariance, flat ones with the spread of their bounds."""
        return np.diag(1 / self.spread**2) + self._pairs.T @ self._pairs

    @property
    def _pairs(self) -> Numbers:
        unit = np.eye(len(self.names))
        rows = [(unit[one] - unit[other]) / spread for one, other, spread in self.alike]
        return np.reshape(rows, (len(rows), len(unit)))

    def residuals(self, x: Numbers) -> Numbers:
        """Return the distances in units of their spreads, about 0 for flat ones."""
        return np.concatenate([(x - self.mean) * self.weight, x @ self._pairs.T], axis=-1)

    def log_density(self, points: Numbers) -> Numbers:
        """Return the logarithm of the density at points (rows), up to a constant."""
        return -0.5 * (self.residuals(points) ** 2).sum(axis=1)

    def draws(self, count: int, generator: np.random.Generator) -> Numbers:
        """Draw ``count`` rows of logarithms."""
        shape, x = (count, len(self.names)), self.mean
        if np.isfinite(self.low).all():
            x = generator.uniform(self.low, self.high, shape)
        normal = generator.normal(self.mean, 1 / self.weight, shape)
        return np.clip(np.where(self.is_flat, x, normal), self.low, self.high)


@dataclass(frozen=True, eq=False)
class Minimum:
    """The logarithms of values at a minimum, its cost, and whether the search converged."""

    x: Numbers
    cost: float
    converged: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """Observed values with their spreads (of logarithms), what predicts them, and the prior.

    ``weight`` is that of each observation, ``search`` are options of SciPy's `least_squares`; a
    search ``by_sides`` takes one-sided slopes, for half as many predictions.
    """

    predict: Predict
    observed: Numbers
    spread: Numbers | float
    prior: Prior
    loss: Loss = square
    weight: Numbers | float = 1.0
    search: Mapping[str, Any] = field(default_factory=dict)
    by_sides: bool = False
    progress: Show = False

    def minimise(self, start: Numbers) -> Minimum:
        """Search for the minimum within the bounds, from ``start``.

        ``by_sides`` searches with slopes over wide steps first, which end at fewer kinks, and over
        ever narrower ones from where that ends.
        """
        if not self.by_sides:
            return self._searched(start, self.slope)
        for step in WIDE:
            start = self._searched(start, partial(self.rough_slope, step=step)).x
        return self._searched(start, self.rough_slope)

    def _searched(self, start: Numbers, slope: Callable[[Numbers], Numbers]) -> Minimum:
        from scipy.optimize import least_squares

        prior, count = self.prior, len(self.observed)

        def residuals(x: Numbers) -> Numbers:
            search.update()
            return np.concatenate([self.at([x])[0], prior.residuals(x)])

        def loss(squares: Numbers) -> Numbers:
            return np.hstack([self.weight * self.loss(squares[:count]), square(squares[count:])])

        search = bar(desc="search", unit="evaluation", progress=self.progress)
        found = least_squares(
            residuals,
            np.clip(start, prior.low, prior.high),
            jac=lambda x: np.vstack([slope(x), prior.slope]),
            bounds=(prior.low, prior.high),
            loss=loss,
            x_scale="jac",
            **self.search,
        )
        search.close()
        return Minimum(found.x, float(found.cost), bool(found.success))

    def predicted(self, points: Iterable[Numbers], about: Numbers | None = None) -> Numbers:
        """Return the predictions (columns) at each point (rows)."""
        values = np.exp(np.stack(list(points)))
        return self.predict(values, None if about is None else np.exp(about))

    def at(self, points: Iterable[Numbers], about: Numbers | None = None) -> Numbers:
        """Return the residuals of the observations at each of these points."""
        ratio = self.predicted(points, about) / self.observed
        return np.log(np.maximum(ratio, LEAST_RATIO)) / self.spread

    def slope(self, x: Numbers) -> Numbers:
        """Return the derivatives of the residuals by central differences within the bounds.

        What is decided stays as it is at ``x``, or a difference could be that between two plans.
        """
        steps = STEP * np.eye(len(x))
        up, down = np.minimum(x + steps, self.prior.high), np.maximum(x - steps, self.prior.low)
        residuals = self.at([*up, *down], about=x)
        width = (up - down).diagonal()[:, None]
        return ((residuals[: len(x)] - residuals[len(x) :]) / width).T

    def rough_slope(self, x: Numbers, step: float = STEP) -> Numbers:
        """Return what `slope` does by one-sided differences, of half as many predictions.

        Steps go up where there is room. A search needs no more: it compares costs.
        """
        steps = np.where(x + step <= self.prior.high, step, -step)
        residuals = self.at([x, *(x + np.diag(steps))], about=x)
        return ((residuals[1:] - residuals[0]) / steps[:, None]).T

    def weights(self, residuals: Numbers) -> Numbers:
        """Return how much the squares of these residuals count."""
        return self.weight * self.loss(residuals**2)[1]

    def deviation(self, residuals: Numbers) -> float:
        """Return the standard deviation of residuals around zero, from their median if robust."""
        if self.loss is square:
            return float(np.sqrt(np.mean(residuals**2)))
        return float(1.4826 * np.median(np.abs(residuals)))

    def log_likelihood(self, points: Iterable[Numbers], about: Numbers | None = None) -> Numbers:
        """Return the logarithm of the likelihood at each point, up to a constant."""
        return -0.5 * (self.weight * self.loss(self.at(points, about) ** 2)[0]).sum(axis=1)

    def costs(self, points: Iterable[Numbers], deviation: float, about: Numbers) -> Numbers:
        """Return the cost at each point if residuals have this standard deviation."""
        points = np.stack(list(points))
        likely = self.log_likelihood(points, about) / deviation**2
        return -likely - self.prior.log_density(points)
