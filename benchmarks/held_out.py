"""How well the survey's testbed is predicted where it was not fitted, and by trivial forecasts.

    python -m benchmarks.held_out [--by gpus --by model ...] [--csv FILE] [--kept]

One value of the label is left out at a time: all of the figure's other cells are fitted, one to two
minutes each, and those left out are predicted. With ``--kept`` that of an earlier run is shown.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.command import command
from ddlnb.calibration.clusters import MOST_MODEL_ERROR, Calibration, calibrate_parameters
from ddlnb.calibration.observations import (
    LABELS,
    IterationTime,
    Observation,
    predictions,
    row_of,
)
from ddlnb.calibration.parameters import Parameter
from ddlnb.calibration.validation import FITTED, TRIVIAL_FORECASTS, TrivialForecast
from ddlnb.errors import require, require_known
from ddlnb.files import write_atomically
from ddlnb.progress import Show, bar
from ddlnb.survey.calibration import held_out_table
from ddlnb.survey.testbed import HELD_OUT, cell_observations, quoted_observations, survey_setup

DRAWS = 100  # of the parameters and the model error, for an interval
BY = ("gpus", "model", "network", "method")


def label_values(observations: Sequence[Observation], by: str) -> list:
    """Return the different values of a label, sorted, without None. Raises UnknownName."""
    require_known("label", by, LABELS)
    values = {getattr(observation.labels, by) for observation in observations} - {None}
    require(bool(values), f"no observation has a label {by!r}; choose another of {LABELS}")
    return sorted(values)


class Fold(NamedTuple):
    """The observations to predict and those to fit when one value of a label is left out."""

    left_out: str
    tested: tuple[Observation, ...]
    fitted: tuple[Observation, ...]


def folds_of(observations: Sequence[Observation], by: str) -> list[Fold]:
    """Return one fold for every value of the label; no group is both tested and fitted.

    A group that holds several values of the label is of none of them, as a cell within one node,
    which repeats itself on all networks, uses no network: it is always fitted. So are observations
    without the label, and the rates of one GPU: who asks about a model has its rate.
    """
    folds, values, values_of = [], label_values(observations, by), defaultdict(set)
    for one in observations:
        values_of[one.labels.group].add(getattr(one.labels, by))
    for value in values:
        of_value = {group for group, of in values_of.items() if of == {value}}
        tested = tuple(
            one for one in observations if one.labels.group in of_value and one.labels.gpus != 1
        )
        groups = {one.labels.group for one in tested}
        fitted = tuple(one for one in observations if one.labels.group not in groups)
        if tested:
            folds.append(Fold(f"{by} {value}", tested, fitted))
    return folds


def intervals(
    found: Calibration, tested: Sequence[Observation], model_error: float
) -> list[tuple[float, float]]:
    """Return a 90 % interval of every prediction, as forecasts have it.

    The parameters are drawn together from what the fit left, the model error is at least this one,
    and larger with more workers than were fitted.
    """
    fitted = found.parameter_values
    drawn = [fitted.at(row, fitted) for row in found.posterior.samples(DRAWS).tolist()]
    seconds = predictions([one.quantity for one in tested], drawn)
    seen = max((one.labels.gpus or 0 for one in found.observations), default=0)
    error = min(max(found.model_error, model_error), MOST_MODEL_ERROR)
    errors = [
        replace(one.quantity.cell.cluster, model_error=error, fitted_workers=seen).error
        if isinstance(one.quantity, IterationTime)
        else error
        for one in tested
    ]
    normal = np.random.default_rng(0).standard_normal(seconds.shape)
    low, high = np.quantile(seconds * np.exp(np.array(errors) * normal), (0.05, 0.95), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def cross_validate(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    by: str = "model",
    *,
    trivial: Mapping[str, TrivialForecast] | None = None,
    robust: bool = False,
    model_error: float = 0.0,
    progress: Show = None,
) -> list[dict[str, Any]]:
    """Predict every observation by a fit to those with other values of the label ``by``.

    ``by`` is model, network, method, gpus or group. The trivial forecasts get rows of their own and
    see what the fit sees. ``robust`` is that of `calibrate_parameters`, ``model_error`` the least
    that intervals count with. Raises InputError when
    nothing is left to be fitted.
    """
    rows = []
    for fold in bar(folds_of(observations, by), desc=by, unit="fit", progress=progress):
        require(bool(fold.fitted), f"without {fold.left_out} no observation is left to be fitted")
        found = calibrate_parameters(
            fold.fitted, parameters, robust=robust, by_sides=True, thorough=False
        )
        quantities = [observation.quantity for observation in fold.tested]
        (predicted,) = predictions(quantities, [found.parameter_values])
        within = intervals(found, fold.tested, model_error)
        for observation, value, around in zip(fold.tested, predicted.tolist(), within, strict=True):
            rows.append(row_of(observation, value, FITTED, fold.left_out, around))
            rows += [
                row_of(observation, forecast(observation, fold.fitted), name, fold.left_out)
                for name, forecast in (trivial or {}).items()
            ]
    return rows


def held_out(by: Sequence[str]) -> pd.DataFrame:
    """Return a row per cell left out and forecast."""
    setup = survey_setup()
    observations = [*quoted_observations(setup.clusters), *cell_observations()]
    kinds = {
        "trivial": TRIVIAL_FORECASTS,
        "robust": True,
        "model_error": setup.model_error,
        "progress": True,
    }
    found = (cross_validate(observations, setup.parameters, label, **kinds) for label in by)
    return pd.DataFrame([row for rows in found for row in rows if row["method"] is not None])


def main(*, by: Sequence[Literal[*BY]] = BY, csv: Path = HELD_OUT, kept: bool = False) -> None:
    """Print mean and median errors, of the rows that are --kept or of new ones, which then are."""
    if not kept:
        write_atomically(csv, held_out(by).to_csv(index=False, float_format="%.6g"))
    print(held_out_table(csv).to_string())


if __name__ == "__main__":
    command(main)
