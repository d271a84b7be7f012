"""Fit effects of clusters to observed seconds: the values, how sure they are, new clusters.

All cells that are looked at together are simulated together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ddlnb.calibration.fit import LEAST_RATIO, ROUGH, Numbers, Problem, soft_l1, square
from ddlnb.calibration.observations import Observation, predictions
from ddlnb.calibration.parameters import Parameter, ParameterValues, prior_of, require_parameters
from ddlnb.calibration.posterior import Identifiability, Posterior, explore, shape_by
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.errors import require, require_whole
from ddlnb.progress import Show

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

    @cached_property
    def errors(self) -> Numbers:
        """Return the absolute relative errors: of iterations by a method if any were observed."""
        observed = np.array([one.value for one in self.observations])
        counts = np.array([one.labels.method is not None for one in self.observations])
        errors = np.abs(np.array(self.predicted) / observed - 1)
        return errors[counts] if counts.any() else errors

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
        """Return how far off the fit is."""
        return (
            f"The fit is off by {self.mean_error:.1%} on average and {self.median_error:.1%} in "
            f"the median; forecasts count with a model error of {self.model_error:.1%}."
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
        seen = max((one.labels.gpus or 0 for one in self.observations), default=0)
        clusters = []
        for cluster in base:
            fits = dict(cluster.fits)
            for effect, (parameter, _) in self.parameter_values.chosen(cluster).items():
                remark = "not identified by the data, " * (parameter.name in unidentified)
                fits[effect] = Fit(*intervals[parameter.name], f"{parameter.name}: {remark}{data}")
            error = min(self.model_error, MOST_MODEL_ERROR)
            fitted = self.parameter_values.on(cluster)
            clusters.append(replace(fitted, fits=fits, model_error=error, fitted_workers=seen))
        return clusters


def calibrate_parameters(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    *,
    robust: bool = False,
    by_sides: bool = False,
    thorough: bool = True,
    starts: int = 1,
    seed: int = 0,
    progress: Show = None,
) -> Calibration:
    """Fit the parameters: the most probable values, and how sure they are.

    ``robust`` counts large residuals linearly (soft L1), so that a few wrong observations do no
    harm. The search starts from the priors and from ``starts - 1`` random draws of them; with 4 or
    more it seldom ends in a minimum that is not the lowest. ``by_sides`` takes slopes of one
    side in the search, first over wide steps, which many cells make worth it. Intervals come from
    the shape of the cost around the minimum, and if not ``thorough`` from its slope there, in half
    of the time. Raises InputError for more than MOST_PARAMETERS parameters.
    """
    require(bool(observations), "observations is empty; give at least one")
    require_whole(starts=starts)
    require_parameters(parameters)
    problem = problem_of(observations, parameters, robust=robust, progress=progress)
    problem = replace(problem, by_sides=by_sides)
    generator = np.random.default_rng(seed)
    minima = [problem.minimise(problem.prior.mean)]
    minima += [problem.minimise(problem.prior.draws(1, generator)[0]) for _ in range(starts - 1)]
    best = minima[0]
    for found in minima[1:]:
        if found.cost < best.cost - BETTER:
            best = found
    best, shape = explore(problem, best) if thorough else (best, shape_by(problem, best))
    predicted = problem.predicted([best.x])[0]
    rivals = (one for one in minima if one.cost < best.cost + AS_GOOD and one is not best)
    return Calibration(
        observations=tuple(observations),
        parameters=tuple(parameters),
        values=tuple(np.exp(best.x).tolist()),
        predicted=tuple(predicted.tolist()),
        posterior=shape.posterior,
        residual_deviation=shape.residual_deviation,
        model_error=unexplained(predicted / problem.observed, problem.spread, shape.per_freedom),
        cost=best.cost,
        converged=best.converged,
        rivals=tuple(tuple(np.exp(other.x).tolist()) for other in rivals),
    )


def problem_of(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    *,
    robust: bool = False,
    progress: Show = None,
) -> Problem:
    """Return the problem of `calibrate_parameters`: all cells of all points are simulated together.

    Methods plan for the values themselves, or for those that differences are taken about.
    """
    base = ParameterValues(tuple(parameters))
    quantities = [observation.quantity for observation in observations]

    def predict(values: Numbers, about: Numbers | None) -> Numbers:
        fresh = base.anew()
        planned = None if about is None else fresh.at(about.tolist())
        return predictions(quantities, [fresh.at(row, planned) for row in values.tolist()])

    return Problem(
        predict,
        np.array([observation.value for observation in observations]),
        np.array([observation.spread for observation in observations]),
        prior_of(parameters),
        soft_l1 if robust else square,
        search=ROUGH,
        progress=progress,
    )


def unexplained(ratios: Numbers, spread: Numbers | float, factor: float = 1.0) -> float:
    """Return the relative standard deviation of predicted from observed that no spread explains.

    It is such that 90 % of the ratios are within a 90 % interval: of their logarithms, times the
    factor, the 90 % quantile counts. A tenth of them may be as wrong as they like.
    """
    sizes = np.abs(np.log(np.maximum(ratios, LEAST_RATIO)))
    deviation = float(np.quantile(sizes, 0.9)) / NORMAL_TAIL * factor
    return math.sqrt(max(0.0, deviation**2 - float(np.median(spread)) ** 2))
