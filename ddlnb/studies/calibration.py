"""The calibration of the survey's testbed: what is left over, and how well it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from ddlnb.calibration.baselines import TRIVIAL_FORECASTS
from ddlnb.calibration.calibrate import Calibrated
from ddlnb.calibration.validation import ablation, cross_validate, error_summary
from ddlnb.studies.findings import Findings, findings


def residual_rows(result: Calibrated) -> pd.DataFrame:
    """Return a row per observation and its prediction, which `ddlnb.figures.residuals` draws."""
    return pd.DataFrame([asdict(row) for row in result.calibration.rows])


def residual_table(result: Calibrated) -> pd.DataFrame:
    """Return observed and predicted values, and the relative error of each prediction."""
    rows = residual_rows(result)
    error = (100 * rows["relative_error"]).round(1)
    table = rows[["group", "observed", "predicted"]].assign(**{"error (%)": error})
    return table.set_index("group").map("{:.4g}".format)


def validation_table(result: Calibrated, by: Sequence[str]) -> pd.DataFrame:
    """Return the errors of predicting what was left out, ours beside the trivial forecasts.

    There is a row for every label by which is left out and every forecast; ``predicted`` of
    ``rows`` observations could be predicted.
    """
    found = result.calibration
    return pd.DataFrame(
        [
            {
                "left out": label,
                "forecast": one.forecast,
                "rows": one.rows,
                "predicted": one.count,
                "mean error (%)": round(100 * one.mean, 1),
                "median error (%)": round(100 * one.median, 1),
            }
            for label in by
            for one in error_summary(
                cross_validate(
                    found.observations, found.parameters, label, trivial=TRIVIAL_FORECASTS
                )
            )
        ]
    ).set_index(["left out", "forecast"])


def ablation_table(result: Calibrated) -> pd.DataFrame:
    """Return the mean error without each effect, not refitted, the most important effect first."""
    return pd.DataFrame(
        [
            {
                "without": one.effect,
                "mean error (%)": round(100 * one.error_without, 2),
                "with it (%)": round(100 * one.error, 2),
                "growth (%)": round(100 * one.growth, 2),
            }
            for one in ablation(result.calibration)
        ]
    ).set_index("without")


def fit_findings(result: Calibrated) -> Findings:
    """Return how close the fit is, and how many parameters the data identifies."""
    found, rows = result.calibration, result.parameter_rows()
    by_data = [row["parameter"] for row in rows if row["identified by"] == "the data"]
    return findings(
        f"The mean error over {len(found.rows)} observations is {found.mean_error:.1%}.",
        f"The data identifies {len(by_data)} of {len(rows)} parameters: {', '.join(by_data)}.",
    )
