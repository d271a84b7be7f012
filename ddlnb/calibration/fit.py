"""Fits effects of clusters to observed seconds, with what is known of them before and after.

The fitted values are the most probable ones: those with the least half sum of squares of
(log predicted - log observed) / spread over the observations and of
(log value - log prior) / prior spread over the parameters whose prior is not flat. It is found by
bounded least squares with differences for slopes, for which all cells are simulated together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ddlnb.calibration.cost_shape import settled
from ddlnb.calibration.misfit import LEAST_RATIO, Misfit
from ddlnb.calibration.observations import Observation, Row, label_values, require_small, row_of
from ddlnb.calibration.parameters import Parameter, World, require_parameters
from ddlnb.calibration.posterior import TAILS, Identifiability, Numbers, Posterior
from ddlnb.calibration.sampling import sampled_posterior, starting_points, walk
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.errors import InputError, require, require_whole

BETTER = 0.01  # of the cost: a search from elsewhere counts only if it gains more
AS_GOOD = 2.0  # of the cost, as at two standard deviations
FAR = 3.0  # standard deviations
MOST_DRIFT = 0.5  # standard deviations
MOST_WALKS = 3
NORMAL_TAIL = 1.6449  # 90 % of normal numbers are within so many standard deviations
MOST_MODEL_ERROR = 0.99  # of a Cluster


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted values of parameters, how sure they are, and how well they explain what was seen.

    ``values`` are those of ``parameters`` in their units. ``scatter`` is the standard deviation of
    the residuals in units of the spreads of the observations, ``model_error`` the relative
    standard deviation that those spreads do not explain. ``converged`` is False where the search
    was stopped, ``rivals`` are values in which another search ended with about the same cost.
    """

    observations: tuple[Observation, ...]
    parameters: tuple[Parameter, ...]
    values: tuple[float, ...]
    predicted: tuple[float, ...]
    posterior: Posterior
    slope: Numbers
    scatter: float
    model_error: float
    cost: float
    converged: bool
    robust: bool
    without: tuple[str, ...]
    rivals: tuple[tuple[float, ...], ...] = ()

    @property
    def world(self) -> World:
        """The world with the fitted values."""
        return World(self.parameters, self.values, self.without)

    @property
    def value_of(self) -> dict[str, float]:
        """The fitted values by the names of their parameters."""
        return {p.name: value for p, value in zip(self.parameters, self.values, strict=True)}

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every observation beside what the fit makes of it."""
        pairs = zip(self.observations, self.predicted, strict=True)
        return tuple(row_of(observation, value, "fitted") for observation, value in pairs)

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error of the fit."""
        return float(np.mean([abs(row.relative_error) for row in self.rows]))

    @property
    def median_error(self) -> float:
        """Median absolute relative error of the fit."""
        return float(np.median([abs(row.relative_error) for row in self.rows]))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """90 % intervals of the parameters in their units."""
        return self.posterior.intervals()

    @property
    def identifiability(self) -> Identifiability:
        """What the data tells of every parameter, and what not."""
        spread = self.posterior.spread
        found = [
            (parameter.name, rival[i])
            for rival in self.rivals
            for i, parameter in enumerate(self.parameters)
            if abs(math.log(rival[i] / self.values[i])) > FAR * spread[i]
        ]
        return replace(self.posterior.identifiability, ambiguous=tuple(dict.fromkeys(found)))

    def samples(self, count: int, seed: int = 0) -> Numbers:
        """Draws of the parameters from the posterior, one row each, in their units."""
        return self.posterior.samples(count, seed)

    def sampled_worlds(self, count: int, seed: int = 0) -> list[World]:
        """Worlds with values drawn from the posterior."""
        drawn = self.samples(count, seed).tolist()
        return [World(self.parameters, tuple(row), self.without) for row in drawn]

    def sampled(
        self,
        steps: int = 200,
        seed: int = 0,
        progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    ) -> Calibration:
        """The same fit with a posterior of places that random walkers visited.

        It holds where parameters trade off against one another, or may be anything below a limit,
        which a normal distribution does not. Each step simulates all observations three times for
        every parameter. A walk that has not settled goes on for as many steps, twice at most; then
        InputError is raised.
        """
        require_whole(4, steps=steps)
        misfit = Misfit(self.observations, self.parameters, self.without, robust=self.robust)
        places = starting_points(self.posterior, [np.log(rival) for rival in self.rivals], seed)
        scatter = max(1.0, self.scatter)
        for more in range(MOST_WALKS):
            found = walk(misfit, places, scatter, steps=steps, seed=seed + more, progress=progress)
            if found.drift < MOST_DRIFT:
                return replace(self, posterior=sampled_posterior(self.posterior, found))
            places = found.points[-1]
        raise InputError(
            f"after {MOST_WALKS} x {steps} steps means still move by {found.drift:.2f} standard "
            f"deviations, more than {MOST_DRIFT}; take more steps"
        )

    def with_cross_validation(self, rows: Sequence[Row]) -> Calibration:
        """The same fit with the model error that predictions of left-out observations show."""
        fitted = [row for row in rows if row.forecast == "fitted"]
        return replace(self, model_error=unexplained(fitted))

    def clusters(self, base: Sequence[Cluster]) -> list[Cluster]:
        """These clusters with the fitted effects, their intervals and the model error.

        Parameters of one model only are not in them: a cluster does not know what it trains.
        """
        intervals, untold = self.intervals, self.identifiability.untold
        sources = sorted({observation.labels.source for observation in self.observations})
        data = f"fitted to {len(self.observations)} observations ({', '.join(sources)})"
        clusters = []
        for cluster in base:
            fits = dict(cluster.fits)
            for effect, (parameter, _) in self.world.chosen(cluster).items():
                told = "not told by the data, " * (parameter.name in untold)
                fits[effect] = Fit(*intervals[parameter.name], f"{parameter.name}: {told}{data}")
            error = min(self.model_error, MOST_MODEL_ERROR)
            clusters.append(replace(self.world.cluster(cluster), fits=fits, model_error=error))
        return clusters

    def bootstrap(
        self, by: str = "group", count: int = 100, seed: int = 0, *, refit: bool = False
    ) -> dict[str, tuple[float, float]]:
        """90 % intervals from fits to observations whose groups were drawn with replacement.

        Groups are the values of the label ``by``; observations without it are always fitted. Each
        fit is one step within the bounds from the fitted values, where residuals are nearly
        linear; with ``refit`` it is done in full, which takes as long as that many fits. What the
        data does not tell does not move: see `identifiability`.
        """
        require_whole(count=count)
        groups = label_values(self.observations, by)
        labels = [getattr(observation.labels, by) for observation in self.observations]
        places = [[i for i, label in enumerate(labels) if label == group] for group in groups]
        always = [i for i, label in enumerate(labels) if label is None]
        generator = np.random.default_rng(seed)
        drawn = []
        for _ in range(count):
            picked = generator.integers(0, len(groups), len(groups))
            chosen = [*always, *(place for group in picked for place in places[group])]
            drawn.append(self._fitted_again(chosen) if refit else self._moved(chosen))
        low, high = np.exp(np.quantile(drawn, TAILS, axis=0)).tolist()
        return {p.name: (low[i], high[i]) for i, p in enumerate(self.parameters)}

    def _fitted_again(self, chosen: Sequence[int]) -> Numbers:
        seen = [self.observations[i] for i in chosen]
        misfit = Misfit(seen, self.parameters, self.without, robust=self.robust)
        return misfit.minimise(np.log(self.values)).x

    def _moved(self, chosen: Sequence[int]) -> Numbers:
        """Where one Gauss-Newton step from the fitted values leads, with their weights."""
        from scipy.optimize import lsq_linear

        misfit = Misfit(self.observations, self.parameters, self.without, robust=self.robust)
        mode = np.log(self.values)
        residuals = misfit.residuals(np.array(self.predicted))
        weights = np.sqrt(misfit.weights(residuals))
        slope = [(weights[:, None] * self.slope)[chosen], misfit.prior_slope]
        now = [(weights * residuals)[chosen], misfit.prior_residuals(mode)]
        room = (misfit.low - mode - 1e-9, misfit.high - mode + 1e-9)
        step = lsq_linear(np.vstack(slope), -np.concatenate(now), bounds=room).x
        return np.clip(mode + step, misfit.low, misfit.high)


def calibrate_parameters(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    *,
    robust: bool = False,
    starts: int = 1,
    seed: int = 0,
    without: Sequence[str] = (),
) -> Calibration:
    """The most probable values of the parameters, and how sure they are.

    ``robust`` counts large residuals linearly (soft L1), so that a few wrong observations do no
    harm. The search starts from the priors and from ``starts - 1`` random draws of them; with 4 or
    more it seldom ends in a minimum that is not the lowest. ``without`` are effects that are taken
    away. Intervals come from the shape of the cost around the minimum, which is quick; where data
    are few, `Calibration.sampled` gives better ones. Raises InputError for more than 30 parameters,
    and for published observations of more than 8 GPUs.
    """
    require(bool(observations), "observations is empty; give at least one")
    require_whole(starts=starts)
    require_parameters(parameters)
    require_small(observations)
    misfit = Misfit(observations, parameters, without, robust=robust)
    generator = np.random.default_rng(seed)
    minima = [misfit.minimise(np.log([parameter.prior for parameter in parameters]))]
    minima += [misfit.minimise(misfit.draw(generator)) for _ in range(starts - 1)]
    best = minima[0]
    for found in minima[1:]:
        if found.cost < best.cost - BETTER:
            best = found
    best, shape = settled(misfit, best)
    predicted = misfit.predicted([best.x])[0]
    calibration = Calibration(
        observations=misfit.observations,
        parameters=misfit.parameters,
        values=tuple(np.exp(best.x).tolist()),
        predicted=tuple(predicted.tolist()),
        posterior=shape.posterior,
        slope=shape.slope,
        scatter=shape.scatter,
        model_error=0.0,
        cost=best.cost,
        converged=best.converged,
        robust=robust,
        without=misfit.without,
        rivals=tuple(
            tuple(np.exp(other.x).tolist())
            for other in minima
            if other.cost < best.cost + AS_GOOD and other is not best
        ),
    )
    return replace(calibration, model_error=unexplained(calibration.rows, shape.per_freedom))


def unexplained(rows: Sequence[Row], factor: float = 1.0) -> float:
    """The relative standard deviation of observed from predicted that no spread explains.

    It is such that 90 % of the rows are within a 90 % interval: of the logarithms of the ratios,
    times the factor, the 90 % quantile counts. A tenth of the rows may be as wrong as they like.
    """
    ratios = [abs(math.log(max(r.predicted / r.observed, LEAST_RATIO))) for r in rows]
    require(bool(ratios), "there are no rows to tell the model error from")
    scatter = float(np.quantile(ratios, 0.9)) / NORMAL_TAIL * factor
    spread = float(np.median([row.spread for row in rows]))
    return math.sqrt(max(0.0, scatter**2 - spread**2))
