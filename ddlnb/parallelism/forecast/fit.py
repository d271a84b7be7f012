"""The parameters of the forecast, fitted to published runs, and draws of what they leave open.

Times and memory are fitted in turn, in the logarithm, with a Cauchy loss: robust against runs that
nothing explains. A run with a pipeline counts as slow where the slow forecast is nearer to it than
the other; the chance of that is the most likely one. Other frameworks differ in a few parameters.

Activations that grow with the width of the model and those that grow with that of its feed-forward
part differ only between models; so do matrices and what elementwise kernels move. A fit that sees
fewer models than it has such parameters would give all to one and none to the other: it forecasts
the runs that it has seen, and is off on every other model. Counted values keep them apart.

Which of several layouts is fastest is a chance. What layouts have in common, the fitted parameters,
is drawn once for all of them; what a run has of its own, the residual and whether it is slow, is
drawn for every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.calibration.fit import Prior, Problem, student
from ddlnb.errors import require_whole
from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.exchanges import EXCHANGES, GATHERED_AGAIN
from ddlnb.parallelism.forecast.forecast import (
    FREEDOM,
    MOST_SHOWN,
    by_nodes,
    chance_of_slow,
    footprint,
    forecast,
)
from ddlnb.parallelism.forecast.frameworks import (
    FRAMEWORKS,
    LIMITS,
    Fitted,
    Parameters,
    parameter_names,
    saved_fit,
)
from ddlnb.parallelism.forecast.mixture import Expected
from ddlnb.parallelism.forecast.published import Observations, observed
from ddlnb.parallelism.forecast.step import MEMORY_RESERVED, Step, step
from ddlnb.units import GIB

# Bytes per element of what a layer in bf16 (2 bytes) keeps for its backward pass with flash
# attention: inputs and outputs of two norms (8), queries, keys and values (6), the first two with
# their positions (4), the output of attention (2); per element of the feed-forward part: gate and
# up (4), the activated gate (2), the product (2). Exchanges hold back the two gathered inputs of a
# layer. Logits: bf16 and its gradient (4), the copy in fp32 and its gradient (8). Buffers beside
# states: gradients in bf16, which are added up in fp32. Elementwise: norms, residuals, positions
# and activations read and write about 65 bytes forward and twice that backward.
COUNTED = {
    "states": 2.0,
    "kept": 20.0,
    "kept_inner": 8.0,
    "held_back": 4.0,
    "logits": 12.0,
    "elementwise": 200.0,
    # A judgement: fused attention gets half of what matrices get. All runs have sequences of 4,096
    # tokens, where its time grows as elementwise traffic does.
    "attention_share": 0.5,
    # Of the cluster's own all-reduces of 256 MB over 64 nodes a twentieth had 177 GB/s or more,
    # the median over two nodes 362 (data/published). Runs on at most 8 nodes hardly tell.
    "reduction_growth": 0.0168,
}
AWAY = 0.2  # by how much a parameter may differ: a standard deviation of its logarithm

LEAST = 1e-6  # of a value whose logarithm is fitted
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
    launch=3.25e-5,
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
    slow_cluster=1.0,
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
    "elsewhere": 0.07,
}


def fit(runs: Observations, start: Fitted | None = None) -> Fitted:
    """Return the parameters that explain these runs best, of one framework with a pipeline."""
    found = start or Fitted(START, {}, SPREAD)
    lacking = slow = np.zeros(len(runs), bool)
    for _ in range(ROUNDS):
        slow = is_slow(runs, step(runs.cases, found, lacking))
        seconds = partial(times, runs.cases, slow, lacking)
        found = _most_probable(found, "time", seconds, runs.seconds)
        bound = step(runs.cases, found).bound
        found = _most_probable(found, "memory", partial(shown, runs.cases, bound), runs.memory)
        asked = footprint(runs.cases, found, bound)[:, 0]
        lacking = asked > runs.cases.memory / GIB * (1 - MEMORY_RESERVED)
    found = _chances(found, runs, slow, lacking)
    return replace(found, spread=dict(found.spread) | spreads(runs, found, slow, lacking))


def times(
    cases: Cases, slow: NDArray[np.bool_], lacking: NDArray[np.bool_] | None, fitted: Fitted
) -> Column:
    """Return the seconds of steps of which some are slow, and some lack memory."""
    of = step(cases, fitted, lacking)
    return of.seconds + np.where(slow, of.slow, 0)


def is_slow(runs: Observations, of: Step) -> NDArray[np.bool_]:
    """Return which runs are nearer to the slow forecast than to the other one."""
    measured, quick = runs.seconds, of.seconds
    nearer = np.abs(np.log(measured / (quick + of.slow))) < np.abs(np.log(measured / quick))
    return (runs.cases.pp > 1) & nearer & (measured > CLEARLY * quick)


def shown(cases: Cases, bound: Column, fitted: Fitted) -> Column:
    """Return GiB of the first stage as runs report it."""
    return np.minimum(footprint(cases, fitted, bound)[:, 0], cases.memory / GIB * MOST_SHOWN)


def spreads(
    runs: Observations, fitted: Fitted, slow: NDArray[np.bool_], lacking: NDArray[np.bool_]
) -> dict[str, float]:
    """Return the scale of Student's t of what is unexplained, by where the groups of tp are."""
    off = np.log(runs.seconds / times(runs.cases, slow, lacking, fitted))
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


def _most_probable(
    fitted: Fitted, phase: str, predicted: Callable[[Fitted], Column], observed: Column
) -> Fitted:
    """Return the fit with the most probable parameters of one phase.

    What can be counted stays near to that (`COUNTED`).
    """
    which = parameter_names(phase)

    def of(values: Column) -> Fitted:
        named = dict(zip(which, values.tolist(), strict=True))
        return replace(fitted, parameters=replace(fitted.parameters, **named))

    known = {name: COUNTED[name] for name in which if name in COUNTED}
    start = [getattr(fitted.parameters, name) for name in which]
    return of(_search(predicted, of, observed, which, start, known, AWAY))


def _search(
    predicted: Callable[[Fitted], Column],
    of: Callable[[Column], Fitted],
    observed: Column,
    which: Sequence[str],
    start: Sequence[float],
    known: Mapping[str, float],
    spread: float | Sequence[float],
    weight: Column | float = 1.0,
) -> Column:
    """Return the most probable values of some parameters; `of` makes the fit with them.

    What is ``known`` of them, with its spread, counts as observations do: a run that nothing
    explains and a value that is no good are both left alone.
    """
    low, high = (np.log([max(LIMITS[name][end], LEAST) for name in which]) for end in (0, 1))
    at = np.clip(np.log(np.maximum(start, LEAST)), low + LEAST, high - LEAST)
    places = [list(which).index(name) for name in known]

    def predict(values: NDArray[Any], about: NDArray[Any] | None) -> NDArray[np.float64]:
        return np.stack([np.concatenate([predicted(of(row)), row[places]]) for row in values])

    problem = Problem(
        predict,
        np.concatenate([observed, list(known.values())]),
        np.append(np.full(len(observed), TAIL), np.broadcast_to(spread, len(known))),
        Prior(tuple(which), at, high - low, low, high, np.array(True)),
        student(1),  # errors of Cauchy's distribution
        np.append(np.broadcast_to(weight, len(observed)), np.ones(len(known))) / 2,
        {"max_nfev": EVALUATIONS},
    )
    return np.exp(problem.minimise(at).x)


def _chances(
    fitted: Fitted, runs: Observations, slow: NDArray[np.bool_], lacking: NDArray[np.bool_]
) -> Fitted:
    """Return the fit with the most likely chance of a slow run."""
    from scipy.optimize import minimize

    which = parameter_names("chance")
    bounds = [LIMITS[name] for name in which]
    at = np.array([getattr(START, name) for name in which])

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


# Of these frameworks' activations: 34 bytes per element (arXiv 2205.05198, equation 1) less 2 for
# masks of dropout, which large models do without; 16 of them are four times the feed-forward
# width's. Logits in bf16 and in fp32. The host of eager programs on one GPU takes 32.5 us for an
# operation (data/hardware/roofline.yaml), of which the loop of a step has some two hundred. Without
# a fused kernel attention runs at the rate of matrices, and computes the masked half, too. Of a
# network of their own (nanotron's was shared), replicas reach what InfiniBand does on two nodes
# (data/hardware/protocols.yaml), less two hops of 7 us to every further node per message of 160 MB.
THEORY = {
    "states": 0.0,
    "kept": 16.0,
    "kept_inner": 4.0,
    "logits": 6.0,
    "launch": 3.25e-5,
    "fixed": 6e-3,
    "matrix_share": 0.8,
    "attention_share": 0.5,
    "elementwise": 200.0,
    "reduction_share": 0.9,
    "reduction_growth": 0.002,
}
SHARED = ("matrix_share", "attention_share", "elementwise", "launch")
# Where nanotron's runs are not known: of its cluster's own collectives of 256 MB, gathers and
# scatters, of which nearly all its exchanges are, had 250 of 450 GB/s inside a node and 183 of 400
# over two (data/published/collectives_upto2nodes.csv); hops of 10 us in each of a layer's exchanges
# with sequence parallelism. Of eight other sources with pipelines across nodes none lost transfers:
# by the rule of succession the next one does with a chance of a tenth, in any of its runs for what
# is known, and waits for TCP to send again, 0.2 s at the least in Linux.
OWN_NETWORK = {
    "matrix_share": 0.8,
    "inside_share": 0.55,
    "across_share": 0.46,
    "neighbours": 1.0,
    "hop": (EXCHANGES + GATHERED_AGAIN) * 1e-5,
    "pipelined_hop": 1e-5,
    "reduction_share": 0.46,
    "stall": 1.0,
    "transfer": 1e-5,
    "slow_transfer": 0.2,
    "slow_cluster": 0.1,
    "slow_link": 0.0,
    "slow_whole": 0.0,
}
LOOSE = 1.0  # by how much a parameter may differ from these: a standard deviation of its log
KIN = 0.2  # and from those of other frameworks, which run the same products on the same GPUs
SURER = {"launch": 0.08}  # as 430 runs on one GPU have it
MANY = 8  # runs of a source that each say something of their own
Sources = Mapping[str, Observations]
Alone = dict[tuple[str, ...], Mapping[str, float]]  # by framework and the sources that it has


def fit_all(runs: Sources) -> Fitted:
    """Return the fit to all sources, without what left-out sources say of intervals.

    Without nanotron, what only its runs say is that of a network of one's own, and of others.
    """
    known = {name: one.select(one.cases.experts == 1) for name, one in runs.items()}
    if "nanotron" in known:
        fitted = with_frameworks(fit(known["nanotron"]), known)
    else:
        fitted = with_frameworks(Fitted(replace(START, **OWN_NETWORK), {}, SPREAD), known)
        alike = {name: mean_of(fitted.frameworks)[name] for name in SHARED}
        fitted = replace(fitted, parameters=replace(fitted.parameters, **alike))
    own = {
        name: scale(np.concatenate([off(runs_of_it, fitted) for runs_of_it in found.values()]))
        for name, one in FRAMEWORKS.items()
        if one.network and not one.shared and (found := of_framework(known, name))
    }
    return replace(fitted, spread={**fitted.spread, **own})


def off(runs: Observations, fitted: Fitted) -> Column:
    """Return the logarithm of measured by forecast seconds of runs that are not slow."""
    return np.log(runs.seconds / step(runs.cases, fitted).seconds)


def with_frameworks(fitted: Fitted, runs: Sources, alone: Alone | None = None) -> Fitted:
    """Return the fit with what differs by framework, fitted to the sources that are there.

    First every framework for itself, then with the mean of the others in mind. One of which no
    source is there has that mean. ``alone`` keeps the first fits for other calls with the same
    parameters: sources that are left out change few of them.
    """
    alone = {} if alone is None else alone
    known = {
        name: found
        for name, one in FRAMEWORKS.items()
        if one.fitted and (found := of_framework(runs, name))
    }
    base = {name: getattr(fitted.parameters, name) for name in SHARED}
    first = {"nanotron": base} if of_framework(runs, "nanotron") else {}
    of_itself = {}
    for name, sources in known.items():
        key = name, *sources
        if key not in alone:
            first_fit = fit_framework(fitted, name, list(sources.values()), THEORY, LOOSE)
            alone[key] = first_fit.frameworks[name]
        of_itself[name] = alone[key]
    for name, sources in known.items():
        others = first | {other: of_itself[other] for other in known if other != name}
        fitted = fit_framework(fitted, name, list(sources.values()), mean_of(others), KIN)
    entries = FRAMEWORKS.items()
    without = [name for name, one in entries if one.fitted and not one.like and name not in known]
    means = dict.fromkeys(without, mean_of(first | {**fitted.frameworks}))
    return replace(fitted, frameworks={**fitted.frameworks, **means})


def of_framework(runs: Sources, name: str) -> dict[str, Observations]:
    """Return the runs of a framework, and of those that are like it, by their sources."""
    names = [name, *(other for other, one in FRAMEWORKS.items() if one.like == name)]
    found = {
        source: one.select(np.isin(one.cases.framework, names)) for source, one in runs.items()
    }
    return {source: one for source, one in found.items() if len(one)}


def mean_of(frameworks: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return what is counted, and the geometric mean of what frameworks were fitted to."""
    found = {one: [np.log(own[one]) for own in frameworks.values()] for one in SHARED}
    return THEORY | {one: float(np.exp(np.mean(logs))) for one, logs in found.items() if logs}


def fit_framework(
    fitted: Fitted,
    name: str,
    known: Sequence[Observations],
    prior: Mapping[str, float],
    spread: float,
) -> Fitted:
    """Return the fit with the parameters of a framework at their best; others are kept.

    The runs of a source are off together, so that they count as at most `MANY` of them.
    """
    which = FRAMEWORKS[name].fitted
    before = {one: prior[one] for one in which}
    weight = np.concatenate([np.full(len(one), min(len(one), MANY) / len(one)) for one in known])
    measured = np.concatenate([one.seconds for one in known])
    cases = Cases.all_of([one.cases for one in known])

    def of(values: Column) -> Fitted:
        own = {**prior, **dict(zip(which, values.tolist(), strict=True))}
        return replace(fitted, frameworks={**fitted.frameworks, name: own})

    def seconds(found: Fitted) -> Column:
        return step(cases, found).seconds

    start = list(before.values())
    spreads = [SURER.get(one, spread) for one in which]
    return of(_search(seconds, of, measured, which, start, before, spreads, weight))


NUDGE = 1e-3  # of a parameter's logarithm, for derivatives
UNKNOWN = 0.5  # standard deviation of the logarithm of a parameter on which runs say nothing


def drawn_seconds(
    outlook: Expected,
    which: Sequence[int] | NDArray[np.intp],
    draws: int,
    seed: int = 0,
    fitted: Fitted | None = None,
    own: int = 0,
) -> NDArray[np.float64]:
    """Return seconds of a step of these layouts: an array (draws, layouts).

    The framework of a draw is that of all its layouts, of those that run it and in which it fits.
    Parameters are those of the seed, residuals those of the seed and the number ``own``.

    Parameters of a draw are those of all its layouts, in every framework off by the same factors. A
    layout has a residual of its own, from the distribution of its interval, and is slow with its
    own chance. Of a cluster, GPU or framework that nothing was fitted to, part of that interval is
    what its runs would have in common (runs of one paper are off together). The kept fit has only
    the sum, and all of it is drawn for every layout: which one is faster may be surer there than
    the draws say.
    """
    require_whole(0, draws=draws)
    if not draws:
        return np.zeros((0, len(which)))
    fitted, asked = fitted or saved_fit(), outlook.members.select(np.asarray(which, dtype=int))
    cases, found = asked.cases, forecast(asked.cases, fitted)
    shape, rng = (draws, len(cases)), np.random.default_rng([seed, draws])
    every = cases.select(np.tile(np.arange(len(cases)), draws))
    off = {name: np.repeat(one, len(cases)) for name, one in drawn_factors(draws, rng).items()}
    common = step(every, fitted, off=off).seconds.reshape(shape) / step(cases, fitted).seconds
    rng = np.random.default_rng([seed, draws, own]) if own else rng
    residual = found.spread * rng.standard_t(FREEDOM, shape)
    lost = found.step.slow * (rng.random(shape) < found.chance)
    seconds = (found.step.seconds * common + lost) * np.exp(residual)
    # The first of exponential waits is each framework with its share, of any that take part.
    waits = np.random.default_rng([seed, draws, 0, 1]).exponential(size=(draws, len(FRAMEWORKS)))
    named = np.searchsorted(sorted(FRAMEWORKS), cases.framework)
    waits = waits[:, named] / np.maximum(asked.share, LEAST)
    each = [np.flatnonzero(asked.owner == place) for place in range(len(which))]
    meant = np.stack([one[waits[:, one].argmin(axis=1)] for one in each], axis=1)
    return np.asarray(np.take_along_axis(seconds, meant, axis=1))


def drawn_factors(draws: int, rng: np.random.Generator) -> dict[str, Column]:
    """Return by how much the parameters of time are off, as far as the published runs allow."""
    which = parameter_names("time")
    root = np.linalg.cholesky(_covariance())
    away = rng.standard_normal((draws, len(which))) @ root.T
    return dict(zip(which, np.exp(away).T, strict=True))


@lru_cache(maxsize=1)
def _covariance() -> NDArray[np.float64]:
    """Return how parameters of time, as logarithms, vary together: Gauss and Newton's estimate.

    The inverse of what the published runs say about the kept fit, and of how little is known
    without them.
    """
    which, fitted, runs = parameter_names("time"), saved_fit(), observed()
    slow = is_slow(runs, step(runs.cases, fitted))

    def off(one: Fitted) -> Column:
        return np.asarray(np.log(times(runs.cases, slow, None, one) / runs.seconds))

    residual, columns = off(fitted), []
    for name in which:
        value = getattr(fitted.parameters, name)
        by = NUDGE if value * np.exp(NUDGE) <= LIMITS[name][1] else -NUDGE
        moved = replace(fitted.parameters, **{name: float(value * np.exp(by))})
        columns.append((off(replace(fitted, parameters=moved)) - residual) / by)
    weight = 1 / np.sqrt(1 + (residual / TAIL) ** 2)  # as the fit weighs them (Cauchy)
    slopes = np.stack(columns, axis=1) * weight[:, None]
    scale = float((weight * residual).std())
    # What can be counted is known as far as the fit holds it to its count.
    unknown = np.array([AWAY if name in COUNTED else UNKNOWN for name in which])
    information = slopes.T @ slopes / scale**2 + np.diag(unknown**-2)
    return np.asarray(np.linalg.inv(information))
