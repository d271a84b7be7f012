"""Draw from a normal distribution that is cut off at a box.

Gibbs sampling of independent normal numbers z with x = centre + L z, L L' being the covariance: one
sweep is exact where no bound is near. Source: Li and Ghosh, Journal of Statistical Theory and
Practice 9 (2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

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
