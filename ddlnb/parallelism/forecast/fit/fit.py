"""The fit: times and memory in turn, robust against runs that nothing explains.

Times are fitted in the logarithm with a Cauchy loss. A run with a pipeline counts as slow where the
slow forecast is nearer to it than the other; the chance of that is the most likely one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Column
from ddlnb.parallelism.forecast.fit.counted import away
from ddlnb.parallelism.forecast.fit.observations import Observations
from ddlnb.parallelism.forecast.footprint import footprint
from ddlnb.parallelism.forecast.forecast import FREEDOM, MOST_SHOWN, by_nodes
from ddlnb.parallelism.forecast.parameters import Fitted, Parameters, names
from ddlnb.parallelism.forecast.slow_mode import chance_of_slow
from ddlnb.parallelism.forecast.step import MEMORY_RESERVED, Step, step
from ddlnb.units import GIB

ROUNDS = 3
TAIL = 0.05  # of the logarithm: residuals beyond this count ever less
EVALUATIONS = 40
CHANCE_SPREAD = 2.0  # standard deviation of log chances about their start, if runs say little
UNSEEN = 1.25
CLEARLY = 1.3  # times as long as forecast: nothing shorter counts as slow
START = Parameters(
    matrix_share=0.64,
    attention_share=0.3,
    elementwise=340,
    launch=4.2e-3,
    inside_share=0.8,
    across_share=0.5,
    neighbours=1.5,
    hop=1e-4,
    pipelined_hop=2e-3,
    pipelined_node=0.2,
    transfer=2e-4,
    reduction_share=0.4,
    reduction_growth=0.015,
    fixed=0.05,
    stall=3.0,
    slow_transfer=0.26,
    slow_link=-5.0,
    slow_whole=4.0,
    states=2.0,
    kept=22,
    kept_inner=8.5,
    held_back=3.6,
    logits=10.6,
    context=0.8,
)
SPREAD = {
    "inside": 0.03,
    "across": 0.06,
    "fsdp": 0.03,
    "megatron": 0.05,
    "paper": 0.06,
    "elsewhere": 0.07,
}


def fit(runs: Observations, start: Fitted | None = None) -> Fitted:
    """Return the parameters that explain these runs best, of one framework with a pipeline."""
    found = start or Fitted(START, {}, SPREAD)
    lacking = np.zeros(len(runs), bool)
    slow = np.zeros(len(runs), bool)
    for _ in range(ROUNDS):
        slow = is_slow(runs, step(runs.cases, found, lacking))
        found = _least(
            found,
            "time",
            lambda one, slow=slow, lacking=lacking: np.log(
                times(step(runs.cases, one, lacking), slow) / runs.seconds
            ),
        )
        bound = step(runs.cases, found).bound
        found = _least(
            found, "memory", lambda one, bound=bound: np.log(shown(runs, one, bound) / runs.memory)
        )
        asked = footprint(runs.cases, found, bound)[:, 0]
        lacking = asked > runs.cases.memory / GIB * (1 - MEMORY_RESERVED)
    found = _chances(found, runs, slow, lacking)
    return replace(found, spread=dict(found.spread) | spreads(runs, found, slow, lacking))


def times(of: Step, slow: NDArray[np.bool_]) -> Column:
    """Return the seconds of steps of which some are slow."""
    return of.seconds + np.where(slow, of.slow, 0)


def is_slow(runs: Observations, of: Step) -> NDArray[np.bool_]:
    """Return which runs are nearer to the slow forecast than to the other one."""
    measured, quick = runs.seconds, of.seconds
    nearer = np.abs(np.log(measured / (quick + of.slow))) < np.abs(np.log(measured / quick))
    return (runs.cases.pp > 1) & nearer & (measured > CLEARLY * quick)


def shown(runs: Observations, fitted: Fitted, bound: Column) -> Column:
    """Return GiB of the first stage as runs report it."""
    return np.minimum(
        footprint(runs.cases, fitted, bound)[:, 0], runs.cases.memory / GIB * MOST_SHOWN
    )


def spreads(
    runs: Observations, fitted: Fitted, slow: NDArray[np.bool_], lacking: NDArray[np.bool_]
) -> dict[str, float]:
    """Return the scale of Student's t of what is unexplained, by where the groups of tp are."""
    off = np.log(runs.seconds / times(step(runs.cases, fitted, lacking), slow))
    off = off / by_nodes(runs.cases)
    across = runs.cases.tp > runs.cases.gpus_per_node
    kinds = {"inside": off[~across], "across": off[across]}
    return {kind: scale(values) for kind, values in kinds.items() if len(values) > 1}


def scale(values: Column) -> float:
    """Return the scale of Student's t about 0 whose 90 % interval holds 90 % of the values.

    That of runs that a fit has not seen is larger, by what cross-validation shows.
    """
    from scipy.special import stdtrit

    return UNSEEN * float(np.quantile(np.abs(values), 0.9) / stdtrit(FREEDOM, 0.95))


def _least(fitted: Fitted, phase: str, off: Callable[..., Column]) -> Fitted:
    """Return the fit with the parameters of one phase at the least of these differences.

    What can be counted stays near to that (`counted`).
    """
    from scipy.optimize import least_squares

    which = names(phase)
    bounds = {one.name: one.metadata for one in Parameters.__dataclass_fields__.values()}
    low, high = (
        np.log([max(bounds[name][end], 1e-6) for name in which]) for end in ("low", "high")
    )
    at = np.log([max(getattr(fitted.parameters, name), 1e-6) for name in which])

    def of(logs: Column) -> Fitted:
        values = dict(zip(which, np.exp(logs).tolist(), strict=True))
        return replace(fitted, parameters=replace(fitted.parameters, **values))

    found = least_squares(
        lambda logs: np.concatenate([off(of(logs)), TAIL * away(which, logs)]),
        np.clip(at, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="cauchy",
        f_scale=TAIL,
        max_nfev=EVALUATIONS,
    )
    return of(found.x)


def _chances(
    fitted: Fitted, runs: Observations, slow: NDArray[np.bool_], lacking: NDArray[np.bool_]
) -> Fitted:
    """Return the fit with the most likely chance of a slow run."""
    from scipy.optimize import minimize

    which = names("chance")
    bounds = [
        (m["low"], m["high"])
        for m in (Parameters.__dataclass_fields__[name].metadata for name in which)
    ]

    at = np.array([asdict(START)[name] for name in which])

    def of(values: Column) -> Fitted:
        odds = dict(zip(which, np.asarray(values).tolist(), strict=True))
        return replace(fitted, parameters=replace(fitted.parameters, **odds))

    def unlikely(values: Column) -> float:
        chance = chance_of_slow(runs.cases, of(values), lacking)
        may = (chance > 0) & ~lacking
        likely = np.where(slow, chance, 1 - chance)[may]
        away = (values - at) / CHANCE_SPREAD
        return float(-np.log(np.maximum(likely, 1e-9)).sum() + (away**2).sum() / 2)

    return of(minimize(unlikely, at, bounds=bounds, method="L-BFGS-B").x)
