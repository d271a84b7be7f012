"""This machine, simulated and measured: a calibrated model forecasts runs that are then made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ddlnb.calibration.calibrate import Calibrated
from ddlnb.calibration.calibrated_model import load_sentence
from ddlnb.calibration.comparison import (
    error_sentence,
    error_table as error_table,
    forecast_errors,
    measure_and_forecast,
)
from ddlnb.survey.items import Findings, findings
from ddlnb.units import counted


def forecast_then_measure(
    result: Calibrated,
    folder: str | Path,
    *,
    models: Sequence[str],
    iterations: int,
    repetitions: int,
) -> pd.DataFrame:
    """Return measurements of all methods and forecasts by the calibrated model, as tidy rows.

    Runs are kept in the folder; a second call makes those that are missing.
    """
    return measure_and_forecast(
        result.clusters, folder, models=models, iterations=iterations, repetitions=repetitions
    )


def twin_findings(rows: pd.DataFrame, folder: str | Path) -> Findings:
    """Return how far forecasts are off, for every model and number of workers, and the load.

    ``folder`` is that of the runs, which keeps how busy the machine was with other work.
    """
    errors = forecast_errors(rows)
    parts = errors.groupby(["model", "gpus"], sort=False)
    return findings(
        *(
            f"{model}, {counted(gpus, 'worker')}: {error_sentence(part)}"
            for (model, gpus), part in parts
        ),
        load_sentence(folder),
    )
