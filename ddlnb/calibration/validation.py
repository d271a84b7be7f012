"""Measure how well a fit predicts what it has not seen, and what each effect contributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.calibration.baselines import TrivialForecast
from ddlnb.calibration.fit import calibrate_parameters
from ddlnb.calibration.observations import Observation, Row, label_values, row_of
from ddlnb.calibration.parameters import Parameter, ParameterValues
from ddlnb.calibration.quantities import predictions
from ddlnb.clusters.effects import UNITS
from ddlnb.errors import UnknownName, require
from ddlnb.progress import Show, bar

FITTED = "fitted"  # the name of our own forecast beside the trivial ones


@dataclass(frozen=True)
class Ablation:
    """The mean absolute relative error of a fit, and what it becomes without one effect."""

    effect: str
    error: float
    error_without: float

    @property
    def growth(self) -> float:
        """Return how much the mean absolute relative error grows."""
        return self.error_without - self.error


@dataclass(frozen=True)
class Fold:
    """The observations to predict and those to fit when one value of a label is left out."""

    left_out: str
    tested: tuple[Observation, ...]
    fitted: tuple[Observation, ...]


def folds_of(observations: Sequence[Observation], by: str) -> list[Fold]:
    """Return one fold for every value of the label; no group is both tested and fitted.

    A group that holds several values of the label, as a cell within one node repeats itself on all
    networks, is left out whole, also of folds that test a part of it. Observations without the
    label are always fitted, unless their group is left out.
    """
    folds = []
    for value in label_values(observations, by):
        tested = tuple(one for one in observations if getattr(one.labels, by) == value)
        groups = {one.labels.group for one in tested}
        fitted = tuple(one for one in observations if one.labels.group not in groups)
        folds.append(Fold(f"{by} {value}", tested, fitted))
    return folds


def cross_validate(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    by: str = "model",
    *,
    trivial: Mapping[str, TrivialForecast] | None = None,
    robust: bool = False,
    progress: Show = None,
) -> tuple[Row, ...]:
    """Predict every observation by a fit to those with other values of the label ``by``.

    ``by`` is model, network, method, gpus or group. The trivial forecasts get rows of their own and
    see what the fit sees. ``robust`` is that of `calibrate_parameters`. Raises InputError when
    nothing is left to be fitted.
    """
    rows: list[Row] = []
    for fold in bar(folds_of(observations, by), desc=by, unit="fit", progress=progress):
        require(bool(fold.fitted), f"without {fold.left_out} no observation is left to be fitted")
        found = calibrate_parameters(fold.fitted, parameters, robust=robust)
        quantities = [observation.quantity for observation in fold.tested]
        (predicted,) = predictions(quantities, [found.parameter_values])
        for observation, value in zip(fold.tested, predicted.tolist(), strict=True):
            rows.append(row_of(observation, value, FITTED, fold.left_out))
            rows += [
                row_of(observation, forecast(observation, fold.fitted), name, fold.left_out)
                for name, forecast in (trivial or {}).items()
            ]
    return tuple(rows)


def ablation(
    observations: Sequence[Observation],
    values: ParameterValues,
    effects: Sequence[str] | None = None,
) -> list[Ablation]:
    """Return the mean error without each effect, the most important effect first.

    An effect is taken away from all clusters: no latency, no limit, no factor. The other values
    stay as they are. ``effects`` are by default those of the parameters. Errors are those of
    iterations by a method if any were observed.
    """
    if effects is None:
        effects = list(dict.fromkeys(one.effect for one in values.parameters))
    for effect in effects:
        if effect not in UNITS:
            raise UnknownName("effect", effect, UNITS)
    changed = [values, *(replace(values, without=(effect,)) for effect in effects)]
    counted = [one for one in observations if one.labels.method is not None] or list(observations)
    predicted = predictions([observation.quantity for observation in counted], changed)
    observed = np.array([observation.value for observation in counted])
    with_all, *errors = np.abs(predicted / observed - 1).mean(axis=1).tolist()
    found = [
        Ablation(effect, with_all, error) for effect, error in zip(effects, errors, strict=True)
    ]
    return sorted(found, key=lambda one: -one.growth)
