"""What is known of parameters after a fit: a normal distribution of logarithms within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from ddlnb.calibration.parameters import Parameter, log_bounds
from ddlnb.errors import require_whole

Numbers = NDArray[np.floating[Any]]

SWEEPS = 30
INTERVAL_DRAWS = 4000
TAILS = (0.05, 0.95)
UNTOLD = 0.9  # a parameter whose spread shrank to no less than this share is not told by the data
ALIKE = 0.95  # a correlation beyond this cannot be told apart
AT_BOUND = 0.01  # of a value


@dataclass(frozen=True)
class Identifiability:
    """What the data tells of every parameter.

    ``ratio`` is the spread of the posterior over that of the prior. ``untold`` are parameters that
    the data does not move, ``at_bound`` those that it pushes against a bound, ``alike`` pairs with
    their correlation, of which it tells only a combination. ``ambiguous`` are values far away with
    which another search explains the data as well; the intervals do not hold them.
    """

    ratio: dict[str, float]
    untold: tuple[str, ...]
    at_bound: tuple[str, ...]
    alike: tuple[tuple[str, str, float], ...]
    ambiguous: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        lines = [f"{'parameter':<40} posterior / prior spread"]
        for name, ratio in self.ratio.items():
            remarks = ["not told by the data"] * (name in self.untold)
            remarks += ["at a bound"] * (name in self.at_bound)
            lines.append(f"{name:<40} {ratio:<6.2f} {', '.join(remarks)}".rstrip())
        lines += [f"{a} and {b}: correlation {r:.2f}" for a, b, r in self.alike]
        lines += [f"{name} could as well be {value:.4g}" for name, value in self.ambiguous]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Laplace approximation: ``mode`` and ``covariance`` of logarithms, cut off at two walls.

    ``push`` is the slope of the cost at the mode; it is not zero where a bound holds the mode.
    ``low`` and ``high`` are the walls: the bounds, or nearer where the data says so. ``points`` are
    draws, one in each row, that stand in for the approximation where there are some.
    """

    parameters: tuple[Parameter, ...]
    mode: Numbers
    covariance: Numbers
    push: Numbers
    low: Numbers
    high: Numbers
    points: Numbers | None = None

    def samples(self, count: int, seed: int = 0) -> Numbers:
        """Draws within the bounds: ``count`` rows, one column per parameter, in their units."""
        require_whole(count=count)
        if self.points is not None:
            picked = np.random.default_rng(seed).integers(0, len(self.points), count)
            return np.exp(self.points[picked])
        centre = self.mode - self.covariance @ np.where(self._held, self.push, 0.0)
        drawn = draw_within(centre, self.covariance, self.low, self.high, self.mode, count, seed)
        return np.exp(drawn)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 90 % interval of every parameter, in its unit; the mode lies within."""
        low, high = np.quantile(self.samples(INTERVAL_DRAWS), TAILS, axis=0)
        mode = np.exp(self.mode)
        pairs = np.stack([np.minimum(low, mode), np.maximum(high, mode)], axis=1).tolist()
        return {p.name: (pair[0], pair[1]) for p, pair in zip(self.parameters, pairs, strict=True)}

    @property
    def spread(self) -> Numbers:
        """Standard deviations of the logarithms, bounds aside."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def identifiability(self) -> Identifiability:
        """What the data tells of every parameter."""
        names = [parameter.name for parameter in self.parameters]
        ratio = self.spread / [parameter.spread for parameter in self.parameters]
        correlation = self.covariance / np.outer(self.spread, self.spread)
        return Identifiability(
            dict(zip(names, ratio.tolist(), strict=True)),
            tuple(name for name, r in zip(names, ratio, strict=True) if r > UNTOLD),
            tuple(name for name, held in zip(names, self._held, strict=True) if held),
            tuple(
                (names[i], names[j], float(correlation[i, j]))
                for i in range(len(names))
                for j in range(i + 1, len(names))
                if abs(correlation[i, j]) > ALIKE
            ),
        )

    @property
    def _held(self) -> NDArray[np.bool_]:
        """Which parameters a bound holds back."""
        low, high = log_bounds(self.parameters)
        at_low = (self.mode - low < AT_BOUND) & (self.push > 0)
        at_high = (high - self.mode < AT_BOUND) & (self.push < 0)
        return at_low | at_high


def laplace_covariance(
    parameters: Sequence[Parameter], slope: Numbers, scatter: float = 1.0
) -> Numbers:
    """Covariance of logarithms, from residuals that change by ``slope`` with them.

    Residuals have the standard deviation 1, or ``scatter`` if that is larger: then the model, or
    the spreads of the observations, leave something out, and the data counts for less. A flat
    prior counts as one with the spread of its bounds.
    """
    spread = np.array([parameter.spread for parameter in parameters])
    precision = slope.T @ slope / max(1.0, scatter) ** 2 + np.diag(1 / spread**2)
    covariance = np.linalg.inv(precision)
    return (covariance + covariance.T) / 2


def told_parameters(parameters: Sequence[Parameter], slope: Numbers) -> float:
    """How many parameters the data determines rather than the prior, not a whole number."""
    spread = np.array([parameter.spread for parameter in parameters])
    scaled = slope * spread  # in units of the prior's spread
    strengths = np.linalg.eigvalsh(scaled.T @ scaled).clip(0)
    return float((strengths / (1 + strengths)).sum())


def draw_within(
    centre: Numbers,
    covariance: Numbers,
    low: Numbers,
    high: Numbers,
    start: Numbers,
    count: int,
    seed: int,
) -> Numbers:
    """Draws from a normal distribution cut off at a box, ``count`` rows.

    Gibbs sampling of independent normal numbers z with x = centre + L z, L L' the covariance: every
    row is a chain of its own from ``start``, and one sweep is exact where no bound is near. See Li
    and Ghosh, Journal of Statistical Theory and Practice 9 (2015).
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
    """Standard normal numbers between two limits, from uniform ones; accurate in both tails."""
    flipped = least > 0
    lower, upper = np.where(flipped, -most, least), np.where(flipped, -least, most)
    below, above = ndtr(lower), ndtr(upper)
    drawn = np.clip(ndtri(below + uniform * (above - below)), lower, upper)
    return np.where(flipped, -drawn, drawn)
