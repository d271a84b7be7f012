"""The calibration of the survey's testbed: what is left over, and how well it predicts.

The fit itself is kept in data, with the predictions of what was left out of it; making either again
takes minutes (`ddlnb calibrate survey --write`, `python -m benchmarks.held_out`).
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from ddlnb.calibration.observations import Observation, predictions, row_of
from ddlnb.calibration.testbed import (
    CLUSTERS,
    HELD_OUT,
    cell_observations,
    fitted_values,
    quoted_observations,
    survey_setup,
)
from ddlnb.calibration.validation import FITTED, TRIVIAL_FORECASTS, ablation
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNITS
from ddlnb.clusters.file import get_cluster
from ddlnb.results.checks import SUSPICIOUS, check
from ddlnb.results.published import FIG4_CELLS
from ddlnb.survey.findings import Findings, findings

TAILS = (0.05, 0.95)  # of a 90 % interval


@cache
def observed() -> tuple[Observation, ...]:
    """Return what is fitted: single messages that the text quotes, and cells of Fig. 4."""
    return (*quoted_observations(survey_setup().clusters), *cell_observations())


def fitted_clusters() -> list[Cluster]:
    """Return the survey's clusters, whose intervals `ddlnb.figures.parameter_intervals` draws."""
    return [get_cluster(name) for name in CLUSTERS.values()]


def parameter_table() -> pd.DataFrame:
    """Return the value, the 90 % interval and the prior of every parameter, with units."""
    fitted, *drawn = fitted_values()
    low, high = np.quantile([one.values for one in drawn], TAILS, axis=0)
    rows = []
    for index, parameter in enumerate(fitted.parameters):
        show = UNITS[parameter.effect].show
        rows.append(
            {
                "effect": parameter.effect,
                "of": " ".join(parameter.of) or "all",
                "by": " ".join(parameter.methods) or "all",
                "value": show(fitted.values[index]),
                "90 % interval": f"{show(low[index])} to {show(high[index])}",
                "prior": show(parameter.prior),
            }
        )
    return pd.DataFrame(rows).set_index(["effect", "of", "by"])


def residual_rows() -> pd.DataFrame:
    """Return a row per observation and its prediction, which `ddlnb.figures.residuals` draws."""
    (predicted,) = predictions([one.quantity for one in observed()], [fitted_values()[0]])
    pairs = zip(observed(), predicted.tolist(), strict=True)
    return pd.DataFrame([asdict(row_of(one, value, FITTED)) for one, value in pairs])


def residual_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the errors in % of the throughput that the fit gives cells, by method.

    A negative one means that the fit is too slow. Those with four GPUs are averages of the three
    rows that repeat one configuration.
    """
    cells = rows[rows["gpus"] > 1].astype({"gpus": int})
    cells = cells.assign(
        network=cells["network"].where(cells["gpus"] > 4, "in one node"),
        error=100 * (1 / (1 + cells["relative_error"]) - 1),
    )
    table = cells.pivot_table(
        index=["gpus", "model", "network"], columns="method", values="error", aggfunc="mean"
    )
    return table.round(1)


def suspicious_table() -> pd.DataFrame:
    """Return what `ddlnb.check` says of the published cells that are left out of the fit."""
    found = check(FIG4_CELLS)
    return found.loc[found["severity"] == SUSPICIOUS, ["rule", "cells", "message"]]


def held_out_table(path: Path = HELD_OUT) -> pd.DataFrame:
    """Return the errors of predicting what was left out, ours beside the trivial forecasts.

    There is a row for every label by which is left out and every forecast; ``predicted`` of
    ``rows`` cells could be predicted. The rows are kept by `python -m benchmarks.held_out`.
    """
    rows = pd.read_csv(path)
    rows["error"] = 100 * rows["relative_error"].abs()
    label = rows["left_out"].str.split().str[0].rename("left out")
    grouped = rows.groupby([label, "forecast"], sort=False)["error"]
    table = grouped.agg(rows="size", predicted="count", mean="mean", median="median", worst="max")
    return table.round(1).rename(
        columns={name: f"{name} error (%)" for name in ("mean", "median", "worst")}
    )


def fit_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of the fit beside those of the trivial forecasts, which see every cell."""
    cells = [one for one in observed() if one.labels.gpus and one.labels.gpus > 1]
    errors = {FITTED: rows.loc[rows["gpus"] > 1, "relative_error"].to_numpy()}
    for name, forecast in TRIVIAL_FORECASTS.items():
        values = np.array([forecast(one, observed()) / one.value - 1 for one in cells])
        errors[name] = values[np.isfinite(values)]
    return pd.DataFrame(
        {
            name: {
                "cells": len(found),
                "mean error (%)": round(100 * float(np.abs(found).mean()), 2),
                "median error (%)": round(100 * float(np.median(np.abs(found))), 2),
            }
            for name, found in errors.items()
        }
    ).T.astype({"cells": int})


def ablation_table() -> pd.DataFrame:
    """Return the mean error without each effect, not refitted, the most important effect first."""
    return pd.DataFrame(
        [
            {
                "without": one.effect,
                "mean error (%)": round(100 * one.error_without, 2),
                "with it (%)": round(100 * one.error, 2),
                "growth (%)": round(100 * one.growth, 2),
            }
            for one in ablation(observed(), fitted_values()[0])
        ]
    ).set_index("without")


def fit_findings(rows: pd.DataFrame) -> Findings:
    """Return how close the fit is to the cells, and how close to those that it did not see."""
    errors = rows.loc[rows["gpus"] > 1, "relative_error"].abs()
    by_size = errors.groupby(rows["gpus"]).mean()
    sizes = ", ".join(f"{error:.1%} with {gpus:.0f} GPUs" for gpus, error in by_size.items())
    left_out = held_out_table()["mean error (%)"].unstack()
    ours, trivial = left_out[FITTED], left_out.drop(columns=FITTED).min(axis=1)
    return findings(
        f"{len(survey_setup().parameters)} parameters explain {len(errors)} cells with a mean "
        f"error of {errors.mean():.1%} and a median of {errors.median():.1%} ({sizes}).",
        *(
            f"Cells left out by {label} are predicted with a mean error of {ours[label]:.1f} %, "
            f"by the best trivial forecast with {trivial[label]:.1f} %."
            for label in ours.index
        ),
    )
