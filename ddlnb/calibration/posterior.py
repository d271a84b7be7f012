"""Draw from a normal distribution that is cut off at a box.

Gibbs sampling of independent normal numbers z with x = centre + L z, L L' being the covariance: one
sweep is exact where no bound is near. Source: Li and Ghosh, Journal of Statistical Theory and
Practice 9 (2015).

What is known of parameters after a fit: a normal distribution of logarithms within limits.
"""

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

SWEEPS = 30  # of every chain, after which it has forgotten its start


def draw_within(
    centre: Numbers,
    covariance: Numbers,
    low: Numbers,
    high: Numbers,
    start: Numbers,
    count: int,
    seed: int,
) -> Numbers:
    """Return ``count`` draws in rows, each the end of a chain of its own from ``start``."""
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


INTERVAL_DRAWS = 4000  # from which a 90 % interval is taken
TAILS = (0.05, 0.95)  # of a 90 % interval
UNIDENTIFIED = 0.9  # of the prior's spread: data that leave as much do not identify a parameter
ALIKE = 0.95  # the correlation beyond which only a combination of two parameters is identified
AT_BOUND = 0.01  # of a value


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

    parameters: tuple[Parameter, ...]
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
        return {p.name: (pair[0], pair[1]) for p, pair in zip(self.parameters, pairs, strict=True)}

    @property
    def spread(self) -> Numbers:
        """Return the standard deviations of the logarithms, without regard to the limits."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def identifiability(self) -> Identifiability:
        """Return what the data say of every parameter."""
        names = [parameter.name for parameter in self.parameters]
        ratio = self.spread / [parameter.spread for parameter in self.parameters]
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
        low, high = log_bounds(self.parameters)
        at_low = (self.mode - low < AT_BOUND) & (self.gradient > 0)
        at_high = (high - self.mode < AT_BOUND) & (self.gradient < 0)
        return at_low | at_high


def laplace_covariance(
    parameters: Sequence[Parameter], slope: Numbers, residual_deviation: float = 1.0
) -> Numbers:
    """Return the covariance of logarithms from the ``slope`` of the residuals with them.

    Residuals have the standard deviation 1, or ``residual_deviation`` if that is larger: then the
    model, or the spreads of the observations, leave something out, and the data count for less. A
    flat prior counts as one with the spread of its bounds.
    """
    spread = np.array([parameter.spread for parameter in parameters])
    precision = slope.T @ slope / max(1.0, residual_deviation) ** 2 + np.diag(1 / spread**2)
    covariance = np.linalg.inv(precision)
    return (covariance + covariance.T) / 2


def identified_count(parameters: Sequence[Parameter], slope: Numbers) -> float:
    """Return how many parameters the data, not the priors, determine; not a whole number."""
    spread = np.array([parameter.spread for parameter in parameters])
    scaled = slope * spread  # in units of the prior's spread
    strengths = np.linalg.eigvalsh(scaled.T @ scaled).clip(0)
    return float((strengths / (1 + strengths)).sum())
