"""A calibration as frames: what was fitted, what is left over, how well it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pandas as pd

from ddlnb.calibration.baselines import TRIVIAL_FORECASTS
from ddlnb.calibration.fit import Calibration
from ddlnb.calibration.observations import Observation, Row
from ddlnb.calibration.parameters import Parameter
from ddlnb.calibration.validation import ablation, cross_validate, error_summary

if TYPE_CHECKING:
    from ddlnb.calibration.baselines import TrivialForecast


def rows_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per observation and prediction of it."""
    return pd.DataFrame([asdict(row) for row in rows])


def validation_frame(
    observations: Sequence[Observation],
    parameters: Sequence[Parameter],
    by: Sequence[str],
    *,
    trivial: Mapping[str, TrivialForecast] = TRIVIAL_FORECASTS,
    robust: bool = False,
) -> pd.DataFrame:
    """Errors of predicting what was left out, ours beside the trivial forecasts.

    One row for every label by which is left out and every forecast; ``predicted`` of ``rows``
    observations could be predicted.
    """
    found = []
    for label in by:
        rows = cross_validate(observations, parameters, label, trivial=trivial, robust=robust)
        for summary in error_summary(rows):
            found.append(
                {
                    "left out": label,
                    "forecast": summary.forecast,
                    "rows": summary.rows,
                    "predicted": summary.count,
                    "mean error": summary.mean,
                    "median error": summary.median,
                }
            )
    return pd.DataFrame(found)


def ablation_frame(calibration: Calibration) -> pd.DataFrame:
    """What the mean error becomes without each effect, the most important first; no refit."""
    return pd.DataFrame(
        [
            {
                "without": one.effect,
                "mean error": one.error_without,
                "with it": one.error,
                "grows by": one.growth,
            }
            for one in ablation(calibration)
        ]
    )
