"""Summarise curves: final quality with intervals over seeds, and steps and bytes to a target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import UnknownName, require
from ddlnb.results.statistics import mean_interval
from ddlnb.training.runs.by_cell import SETTINGS, final_losses, runs_by

if TYPE_CHECKING:
    import pandas as pd

COSTS = {  # the columns of a curve that add up to each cost; bytes pass a worker's link, both ways
    "step": ["step"],
    "bytes": [
        *("bytes_sent", "averaging_bytes_sent"),
        *("bytes_received", "averaging_bytes_received"),
    ],
    "seconds": ["seconds", "averaging_seconds"],
}


def spent(curves: pd.DataFrame, cost: str) -> pd.Series:
    """Return what the model of every row has cost, in one of COSTS.

    That includes the average of models that it may take (`ddlnb.training.runs.averaging`). Raises
    UnknownName, and InputError for curves without the columns.
    """
    if cost not in COSTS:
        raise UnknownName("cost", cost, COSTS)
    missing = [name for name in COSTS[cost] if name not in curves]
    require(not missing, f"curves lack the columns {missing}; make them with ddlnb train")
    return curves[COSTS[cost]].sum(axis=1, skipna=False)


def to_target(run: pd.DataFrame, target: float, cost: str = "step") -> float:
    """Return what is `spent` at the first row of a run whose test loss is at most the target.

    It is infinite if there is no such row: the run is censored. Raises InputError for a target that
    is no finite number, or that is reached before training.
    """
    return target_bracket(run, target, cost)[1]


def target_bracket(run: pd.DataFrame, target: float, cost: str = "step") -> tuple[float, float]:
    """Return what is `spent` at the last row above the target and at the first row at it.

    The run got there in between, since models are evaluated only now and then.
    """
    require_target(target)
    costs = spent(run, cost).to_numpy(dtype=float)
    (rows,) = np.nonzero(run["test_loss"].to_numpy() <= target)
    if not len(rows):
        return math.inf, math.inf
    row = rows[0]
    require(
        run["step"].iloc[row] > 0,
        f"target {target:g} is reached before training; choose a lower loss",
    )
    return float(costs[row - 1]) if row else 0.0, float(costs[row])


def require_target(target: float | None) -> None:
    """Raise InputError for a target loss that is given and is no finite number."""
    require(target is None or math.isfinite(target), f"target {target} must be a finite loss")


def summary(curves: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """Return one row per method and setting, over its seeds.

    ``test_loss`` and ``test_accuracy`` are means at the end, followed by the half widths of their
    95 % t-intervals; runs that diverged are counted in ``diverged`` and have infinite loss and no
    accuracy. ``bytes`` is the mean of what is `spent` in the end. With a ``target`` loss,
    ``reached`` counts the runs that got there, and ``steps_to_target``, ``bytes_to_target`` and
    ``seconds_to_target`` are medians over all seeds, in which a run that did not get there counts
    as infinite.
    """
    import pandas as pd

    rows = []
    for names, by_seed in runs_by(curves, *SETTINGS).items():
        runs = list(by_seed.values())
        ends = pd.DataFrame([run.iloc[-1] for run in runs])
        diverged = ends["diverged"].to_numpy(dtype=bool)
        loss = mean_interval(final_losses(by_seed))
        accuracy = mean_interval(ends["test_accuracy"].to_numpy(dtype=float)[~diverged])
        row = dict(zip(SETTINGS, names, strict=True)) | {
            "seeds": len(runs),
            "diverged": int(diverged.sum()),
            "test_loss": loss.estimate,
            "test_loss_half_width": loss.half_width,
            "test_accuracy": accuracy.estimate,
            "test_accuracy_half_width": accuracy.half_width,
            "bytes": float(spent(ends, "bytes").mean()),
        }
        if target is not None:
            steps, bytes_, seconds = (
                np.array([to_target(run, target, cost) for run in runs]) for cost in COSTS
            )
            row |= {
                "reached": int(np.isfinite(steps).sum()),
                "steps_to_target": float(np.median(steps)),
                "bytes_to_target": float(np.median(bytes_)),
                "seconds_to_target": float(np.median(seconds)),
            }
        rows.append(row)
    return pd.DataFrame(rows)
