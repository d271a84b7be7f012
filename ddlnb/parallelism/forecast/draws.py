"""Draws of forecasts: which of several layouts is fastest is a chance, as each may be off.

What layouts have in common, the fitted parameters, is drawn once for all of them. What a run has of
its own, the residual and whether it is slow, is drawn for every layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import require_whole
from ddlnb.parallelism.forecast.cases import Column
from ddlnb.parallelism.forecast.fit.counted import AWAY, COUNTED
from ddlnb.parallelism.forecast.fit.fit import is_slow, times
from ddlnb.parallelism.forecast.fit.observations import observed
from ddlnb.parallelism.forecast.forecast import FREEDOM, Outlook, spread_of
from ddlnb.parallelism.forecast.parameters import Fitted, Parameters, kept, names
from ddlnb.parallelism.forecast.step import step

NUDGE = 1e-3  # of a parameter's logarithm, for derivatives
TAIL = 0.05  # of the logarithm of seconds: residuals beyond this count ever less
UNKNOWN = 0.5  # standard deviation of the logarithm of a parameter on which runs say nothing
LIMITS = {one.name: (one.metadata["low"], one.metadata["high"]) for one in fields(Parameters)}


def drawn_seconds(
    outlook: Outlook,
    which: Sequence[int] | NDArray[np.intp],
    draws: int,
    seed: int = 0,
    fitted: Fitted | None = None,
) -> NDArray[np.float64]:
    """Return seconds of a step of these cases: an array (draws, cases).

    The parameters of a draw are those of all its cases. A case has a residual of its own, from the
    distribution of its interval, and is slow with its own chance. Of a cluster, GPU or framework
    that nothing was fitted to, part of that interval is what its runs would have in common (runs of
    one paper are off together). The kept fit has only the sum, and all of it is drawn for every
    case: which case is faster may be surer there than the draws say.
    """
    require_whole(0, draws=draws)
    fitted, chosen = fitted or kept(), np.asarray(which, dtype=int)
    cases, rng = outlook.cases.select(chosen), np.random.default_rng([seed, draws])
    quick, slow = outlook.step.seconds[chosen], outlook.step.slow[chosen]
    now = step(cases, fitted).seconds
    common = [step(cases, one).seconds / now for one in drawn_parameters(fitted, draws, rng)]
    shape = (draws, len(chosen))
    own = spread_of(cases, fitted) * rng.standard_t(FREEDOM, shape)
    lost = slow * (rng.random(shape) < outlook.chance[chosen])
    return np.asarray((quick * np.reshape(common, shape) + lost) * np.exp(own))


def drawn_parameters(fitted: Fitted, draws: int, rng: np.random.Generator) -> list[Fitted]:
    """Return fits whose parameters of time differ as far as the published runs allow.

    Values that a framework has of its own are off by the same factors.
    """
    which = names("time")
    root = np.linalg.cholesky(_covariance())
    return [
        _moved(fitted, dict(zip(which, np.exp(away).tolist(), strict=True)))
        for away in rng.standard_normal((draws, len(which))) @ root.T
    ]


def _moved(fitted: Fitted, factors: Mapping[str, float]) -> Fitted:
    """Return the fit with parameters times these factors, of every framework, within limits."""

    def moved(values: Mapping[str, float]) -> dict[str, float]:
        return {
            name: float(np.clip(value * factors[name], *LIMITS[name])) if name in factors else value
            for name, value in values.items()
        }

    return replace(
        fitted,
        parameters=Parameters(**moved(asdict(fitted.parameters))),
        frameworks={name: moved(values) for name, values in fitted.frameworks.items()},
    )


@lru_cache(maxsize=1)
def _covariance() -> NDArray[np.float64]:
    """Return how parameters of time, as logarithms, vary together: Gauss and Newton's estimate.

    The inverse of what the published runs say about the kept fit, and of how little is known
    without them (`_unknown`).
    """
    which, fitted, runs = names("time"), kept(), observed()
    slow = is_slow(runs, step(runs.cases, fitted))

    def off(one: Fitted) -> Column:
        return np.asarray(np.log(times(step(runs.cases, one), slow) / runs.seconds))

    residual, columns = off(fitted), []
    for name in which:
        value = getattr(fitted.parameters, name)
        by = NUDGE if value * np.exp(NUDGE) <= LIMITS[name][1] else -NUDGE
        moved = replace(fitted.parameters, **{name: float(value * np.exp(by))})
        columns.append((off(replace(fitted, parameters=moved)) - residual) / by)
    weight = 1 / np.sqrt(1 + (residual / TAIL) ** 2)  # as the fit weighs them (Cauchy)
    slopes = np.stack(columns, axis=1) * weight[:, None]
    scale = float((weight * residual).std())
    information = slopes.T @ slopes / scale**2 + np.diag(_unknown(which) ** -2)
    return np.asarray(np.linalg.inv(information))


def _unknown(which: Sequence[str]) -> Column:
    """Return the standard deviation of every parameter's logarithm without any run.

    What can be counted is known as far as the fit holds it to its count.
    """
    return np.array([AWAY if name in COUNTED else UNKNOWN for name in which])
