"""How well a fit predicts what it has not seen, and what each effect contributes to that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.calibration.baselines import TrivialForecast
from ddlnb.calibration.fit import Calibration, calibrate_parameters, unexplained
from ddlnb.calibration.observations import (
    LABELS,
    IterationTime,
    Observation,
    Quantity,
    Row,
    label_values,
    predictions,
    row_of,
)
from ddlnb.calibration.parameters import Parameter
from ddlnb.calibration.posterior import TAILS, Numbers
from ddlnb.clusters.effects import UNITS
from ddlnb.errors import UnknownName, require, require_whole
from ddlnb.simulator.simulate import Cell

# Predictions with 90 % intervals, from what is not known of parameters and of the model.
NOISE_POINTS = 41


@dataclass(frozen=True, eq=False)
class Intervals:
    """Median and 90 % interval of several predictions."""

    median: Numbers
    low: Numbers
    high: Numbers


def predict_intervals(
    things: Sequence[Cell | Quantity], calibration: Calibration, count: int = 200, seed: int = 0
) -> Intervals:
    """Seconds of every cell, or values of every quantity, with their 90 % intervals.

    They hold what is not known of the parameters and the model error. All worlds are simulated
    together: this takes ``count`` times as long as simulating the cells.
    """
    quantities = [IterationTime(thing) if isinstance(thing, Cell) else thing for thing in things]
    drawn = predictions(quantities, calibration.sampled_worlds(count, seed))
    return intervals_of(drawn, np.full(len(quantities), calibration.model_error))


def intervals_of(drawn: Numbers, error: Numbers) -> Intervals:
    """The intervals of draws, one column for each quantity, widened by a relative error each."""
    from scipy.special import ndtri

    normal = ndtri((np.arange(NOISE_POINTS) + 0.5) / NOISE_POINTS)
    widened = drawn * np.exp(normal[:, None] * error)[:, None, :]
    found = np.quantile(widened.reshape(-1, drawn.shape[1]), [TAILS[0], 0.5, TAILS[1]], axis=0)
    return Intervals(median=found[1], low=found[0], high=found[2])


def coverage(rows: Iterable[Row]) -> float:
    """The share of rows whose observed value is within their interval.

    Rows without an interval do not count. Raises InputError when no row has one.
    """
    inside = [row.low <= row.observed <= row.high for row in rows if not math.isnan(row.low)]
    require(bool(inside), "no row has an interval; cross_validate with samples=200 adds them")
    return sum(inside) / len(inside)


FITTED = "fitted"


@dataclass(frozen=True)
class ErrorSummary:
    """Mean and median absolute relative error of one forecast over the rows with one label.

    ``count`` rows were predicted, of those ``rows`` there are.
    """

    forecast: str
    label: object
    rows: int
    count: int
    mean: float
    median: float


@dataclass(frozen=True)
class Ablation:
    """What the mean error becomes without one effect: as fitted, and when the rest is refitted."""

    effect: str
    error: float
    error_without: float
    error_refitted: float

    @property
    def growth(self) -> float:
        """How much the mean absolute relative error grows, refitted if that was asked for."""
        without = self.error_without if math.isnan(self.error_refitted) else self.error_refitted
        return without - self.error


@dataclass(frozen=True)
class Fold:
    """What is left out, and what is fitted, when one value of a label is not to be known."""

    left_out: str
    tested: tuple[Observation, ...]
    fitted: tuple[Observation, ...]


def folds_of(
    observations: Sequence[Observation],
    by: str,
    *,
    keep_shared: bool = False,
    parts: int | None = None,
    seed: int = 0,
) -> list[Fold]:
    """One fold for every value of the label; no group is both tested and fitted.

    Some groups hold several values of the label: a cell within one node repeats itself on all
    networks. Such a group is left out whole, also of folds that test a part of it. With
    ``keep_shared`` it is fitted always and never tested. Observations without the label are
    fitted always, unless their group is left out. With ``parts`` the values are dealt at random
    into so many folds.
    """
    dealt = _dealt(label_values(observations, by), by, parts, seed)
    values_of: dict[str, set[object]] = {}
    for observation in observations:
        value = getattr(observation.labels, by)
        values_of.setdefault(observation.labels.group, set()).add(value)
    folds = []
    for name, values in dealt:
        out = {
            group
            for group, there in values_of.items()
            if there & values and not (keep_shared and len(there) > 1)
        }
        tested = tuple(
            observation
            for observation in observations
            if observation.labels.group in out and getattr(observation.labels, by) in values
        )
        if tested:
            fitted = tuple(o for o in observations if o.labels.group not in out)
            folds.append(Fold(name, tested, fitted))
    return folds


def _dealt(
    values: Sequence[object], by: str, parts: int | None, seed: int
) -> list[tuple[str, set[object]]]:
    if parts is None:
        return [(f"{by} {value}", {value}) for value in values]
    require_whole(2, parts=parts)
    order = np.random.default_rng(seed).permutation(len(values))
    dealt = [{values[i] for i in order[part::parts]} for part in range(parts)]
    return [(f"{by} part {n} of {parts}", found) for n, found in enumerate(dealt, 1) if found]


def cross_validate(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    by: str = "model",
    *,
    trivial: Mapping[str, TrivialForecast] | None = None,
    keep_shared: bool = False,
    parts: int | None = None,
    robust: bool = False,
    starts: int = 1,
    samples: int = 0,
    seed: int = 0,
    progress: Callable[[Iterable[Fold]], Iterable[Fold]] = iter,
) -> tuple[Row, ...]:
    """Rows of observations beside what a fit without their value of the label predicts.

    ``by`` is model, network, method, gpus or group; see `folds_of` for ``keep_shared`` and
    ``parts``. The trivial forecasts get rows of their own and see what the fit sees. With
    ``samples`` the fitted rows have 90 % intervals: from so many draws, the model error that the
    other folds show, and the spread of the observation. ``progress`` may wrap the folds to report
    on them. Raises InputError when nothing is left to be fitted.
    """
    rows: list[Row] = []
    drawn_of: dict[int, Numbers] = {}
    for fold in progress(folds_of(observations, by, keep_shared=keep_shared, parts=parts)):
        require(bool(fold.fitted), f"without {fold.left_out} no observation is left to be fitted")
        found = calibrate_parameters(
            fold.fitted, parameters, robust=robust, starts=starts, seed=seed
        )
        worlds = [found.world, *(found.sampled_worlds(samples, seed) if samples else [])]
        predicted = predictions(fold.tested, worlds)
        for column, observation in enumerate(fold.tested):
            if samples:
                drawn_of[len(rows)] = predicted[1:, column]
            rows.append(row_of(observation, float(predicted[0, column]), FITTED, fold.left_out))
            rows += [
                row_of(observation, forecast(observation, fold.fitted), name, fold.left_out)
                for name, forecast in (trivial or {}).items()
            ]
    return tuple(
        _with_interval(row, drawn_of[i], rows) if i in drawn_of else row
        for i, row in enumerate(rows)
    )


def _with_interval(row: Row, drawn: Numbers, rows: Sequence[Row]) -> Row:
    fitted = [other for other in rows if other.forecast == FITTED]
    others = [other for other in fitted if other.left_out != row.left_out] or fitted
    error = math.hypot(unexplained(others), row.spread)
    found = intervals_of(drawn[:, None], np.array([error]))
    return replace(row, low=float(found.low[0]), high=float(found.high[0]))


def error_summary(rows: Iterable[Row], by: str | None = None) -> list[ErrorSummary]:
    """Errors by forecast, and by the values of a label if one is given.

    Rows that a forecast could not predict are counted and left out.
    """
    if by is not None and by not in (*LABELS, "left_out"):
        raise UnknownName("label", by, (*LABELS, "left_out"))
    errors: dict[tuple[str, object], list[float]] = {}
    for row in rows:
        label = None if by is None else getattr(row, by)
        errors.setdefault((row.forecast, label), []).append(abs(row.relative_error))
    summaries = []
    for (forecast, label), found in errors.items():
        known = [error for error in found if not math.isnan(error)]
        mean, median = (
            (float(np.mean(known)), float(np.median(known))) if known else (math.nan,) * 2
        )
        summaries.append(ErrorSummary(forecast, label, len(found), len(known), mean, median))
    return summaries


def ablation(
    calibration: Calibration, effects: Sequence[str] | None = None, *, refit: bool = False
) -> list[Ablation]:
    """What happens to the mean error without each effect, the most important effect first.

    An effect is taken away from all clusters: no latency, no limit, no factor. ``effects`` are by
    default those that were fitted. With ``refit`` the other parameters are fitted again, so that
    they may do its work.
    """
    if effects is None:
        effects = list(dict.fromkeys(p.effect for p in calibration.parameters))
    for effect in effects:
        if effect not in UNITS:
            raise UnknownName("effect", effect, UNITS)
    observed = np.array([observation.value for observation in calibration.observations])
    worlds = [replace(calibration.world, without=(*calibration.without, e)) for e in effects]
    predicted = predictions(calibration.observations, worlds)
    errors = np.abs(predicted / observed - 1).mean(axis=1)
    found = [
        Ablation(
            effect,
            calibration.mean_error,
            float(error),
            _error_refitted(calibration, effect) if refit else math.nan,
        )
        for effect, error in zip(effects, errors, strict=True)
    ]
    return sorted(found, key=lambda row: -row.growth)


def _error_refitted(calibration: Calibration, effect: str) -> float:
    rest = [p for p in calibration.parameters if p.effect != effect]
    without = (*calibration.without, effect)
    if not rest:
        return math.nan
    found = calibrate_parameters(
        calibration.observations, rest, robust=calibration.robust, without=without
    )
    return found.mean_error
