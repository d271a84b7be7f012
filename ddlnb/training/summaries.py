"""What curves say: final quality with intervals over seeds, and steps and bytes to a target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import require

if TYPE_CHECKING:
    import pandas as pd

RUN = [
    *("task", "method", "workers", "local_batch", "split", "optimizer", "schedule"),
    *("learning_rate", "executor"),
]
CONFIDENCE = 0.95
COSTS = ("step", "bytes_sent", "seconds")


def t_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The mean, and the half width of its t-interval: NaN for fewer than two finite values.

    >>> mean, half = t_interval(np.array([1.0, 2.0, 3.0]))
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    from scipy.stats import t

    count, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    if count < 2 or not np.isfinite(values).all():
        return mean, math.nan
    quantile = t.ppf((1 + confidence) / 2, count - 1)
    return mean, float(quantile * np.std(values, ddof=1) / math.sqrt(count))


def to_target(curve: pd.DataFrame, target: float, cost: str = "step") -> float:
    """The cost at the first row of one run whose test loss is at most the target.

    ``cost`` is one of COSTS. Infinite if there is no such row: the run is censored.
    """
    require(cost in COSTS, f"cost {cost!r} must be one of {', '.join(COSTS)}")
    reached = curve.loc[curve["test_loss"] <= target, cost]
    return float(reached.iloc[0]) if len(reached) else math.inf


def summary(curves: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """One row per method and setting, over its seeds.

    ``test_loss`` and ``test_accuracy`` are means at the end with the half widths of 95 %
    t-intervals behind them; runs that diverged are counted in ``diverged`` and have infinite loss
    and no accuracy. With a ``target`` loss: ``reached`` counts the runs that got there, and
    ``steps_to_target``, ``bytes_to_target`` and ``seconds_to_target`` are medians over all seeds,
    in which a run that did not get there is infinite.
    """
    import pandas as pd

    require(not curves.empty, "there are no curves to summarise")
    rows = []
    for names, of_cell in curves.groupby(RUN, sort=False, dropna=False):
        runs = [run.sort_values("step") for _, run in of_cell.groupby("seed", sort=True)]
        ends = pd.DataFrame([run.iloc[-1] for run in runs])
        diverged = ends["diverged"].to_numpy(dtype=bool)
        losses = np.where(diverged, math.inf, ends["test_loss"].to_numpy(dtype=float))
        loss, loss_half = t_interval(losses)
        accuracy, accuracy_half = t_interval(ends["test_accuracy"].to_numpy(dtype=float)[~diverged])
        row = dict(zip(RUN, names, strict=True)) | {
            "seeds": len(runs),
            "diverged": int(diverged.sum()),
            "test_loss": loss,
            "test_loss_half_width": loss_half,
            "test_accuracy": accuracy,
            "test_accuracy_half_width": accuracy_half,
            "bytes_sent": float(ends["bytes_sent"].mean()),
        }
        if target is not None:
            steps, sent, seconds = (
                np.array([to_target(run, target, cost) for run in runs]) for cost in COSTS
            )
            row |= {
                "reached": int(np.isfinite(steps).sum()),
                "steps_to_target": float(np.median(steps)),
                "bytes_to_target": float(np.median(sent)),
                "seconds_to_target": float(np.median(seconds)),
            }
        rows.append(row)
    return pd.DataFrame(rows)
