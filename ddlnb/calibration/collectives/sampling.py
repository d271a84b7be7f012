"""Draw from a posterior that may have several peaks: tempered sequential Monte Carlo.

Draws of the prior are turned into draws of the posterior in stages. At each stage the likelihood
counts a little more; draws are resampled by what that changes, and moved by Metropolis steps
(Del Moral, Doucet and Jasra, 2006). Rows of two nodes often leave open whether a ring or a tree
was at work, and a single best fit would have to guess.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddlnb.calibration.collectives.cost import Array
from ddlnb.calibration.collectives.priors import Prior

KEPT = 0.5  # of the draws: the effective number that a stage may leave
STEPS = 4  # Metropolis steps of every draw at each stage
SCALE = 0.5  # of the draws' covariance, as the steps' deviation


def posterior_draws(
    prior: Prior,
    log_likelihood: Callable[[Array], Array],
    count: int,
    random: np.random.Generator,
) -> Array:
    """Return draws of the posterior, (count, parameters).

    ``log_likelihood`` maps draws (n, parameters) to logarithms of likelihoods (n,).
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


def _next_stage(fit: Array, most: float) -> float:
    """Return by how much the likelihood's power may grow, by bisection."""
    if _effective(most * fit) >= KEPT:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _effective(middle * fit) >= KEPT else (low, middle)
    return max(low, 1e-6)


def _effective(logarithms: Array) -> float:
    """Return the effective share of draws with these logarithms of weights."""
    weights = np.exp(logarithms - logarithms.max())
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
