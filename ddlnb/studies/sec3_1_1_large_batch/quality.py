"""How good the models of large batches are in the end, recipe by recipe."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddlnb.results.statistics import mean_interval
from ddlnb.studies.findings import with_half_widths
from ddlnb.studies.sec3_1_1_large_batch.recipes import TUNED
from ddlnb.training.runs.by_cell import final_losses, runs_by
from ddlnb.training.schedules import LinearScaling, get_schedule


def quality(curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per recipe and batch, over its seeds, at the end of training.

    Columns: steps, learning_rate (the largest that is reached), seeds, diverged, and test_loss and
    test_accuracy with the half widths of 95 % t-intervals. A run that diverged has an infinite loss
    and the accuracy that it had then.
    """
    rows = []
    for (recipe, batch), part in curves.groupby(["recipe", "batch"], sort=False):
        last = ends(part)
        row: dict[str, Any] = {
            "recipe": recipe,
            "batch": batch,
            "steps": int(part["step"].max()),
            "learning_rate": float(last["learning_rate"].iloc[0]) * _top(last["schedule"].iloc[0]),
            "seeds": len(last),
            "diverged": int(last["diverged"].sum()),
        }
        for measure in ("test_loss", "test_accuracy"):
            found = mean_interval(last[measure].to_numpy(dtype=float))
            row |= {measure: found.estimate, f"{measure}_half_width": found.half_width}
        rows.append(row)
    return pd.DataFrame(rows).assign(source="measured in lockstep")


def quality_table(found: pd.DataFrame) -> pd.DataFrame:
    """Return `quality` by recipe and batch, each measure with its interval, to be read."""
    table = found.set_index(["recipe", "batch"]) if "recipe" in found else found
    shown = table[["steps", "learning_rate", "seeds", "diverged"]].round(4)
    shown = shown.rename(columns={"learning_rate": "learning rate"})
    for measure in ("test_loss", "test_accuracy"):
        shown[measure.replace("_", " ")] = with_half_widths(table, measure)
    return shown


def tuned_sgd_rate(found: pd.DataFrame, batch: int) -> float:
    """Return the learning rate that tuning found for SGD at this batch, from `quality`."""
    rates = found.set_index(["recipe", "batch"])["learning_rate"]
    return float(rates[TUNED.name, batch])


def ends(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of every seed of one cell, with an infinite loss if it diverged."""
    [found] = runs_by(runs, "recipe", "batch").values()
    last = pd.concat([run.tail(1) for run in found.values()])
    return last.assign(test_loss=final_losses(found))


def _top(schedule: str) -> float:
    """Return the largest factor of a schedule."""
    chosen = get_schedule(schedule)
    return chosen.times if isinstance(chosen, LinearScaling) else 1.0
