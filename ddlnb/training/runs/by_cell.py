"""Group the runs of a table of curves by cell, and refuse tables that mix settings.

A cell holds the runs of the same settings, one per seed. Tables are joined from many files, so that
nothing may rely on a single learning rate, or on a single run per seed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

SETTINGS = (
    *("task", "method", "workers", "local_batch", "split", "optimizer", "schedule"),
    *("learning_rate", "executor", "made_by"),
)
NUMBERS = (
    *("workers", "seed", "step", "test_loss", "consensus_distance", "bytes_sent"),
    *("bytes_received", "seconds"),
)
WHOLE = ("workers", "seed", "step")

Runs = dict[int, "pd.DataFrame"]  # by seed; rows by step


def runs_by(curves: pd.DataFrame, *names: str) -> dict[tuple, Runs]:
    """Return the runs of every cell by the values of these columns, in the order of the table.

    Raises InputError for curves that lack columns or hold text where numbers belong, for a cell
    in which another of SETTINGS varies, and for a seed with more than one run.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": "bsp", "seed": 3, "step": [5, 0], "test_loss": [1.0, 2.0]})
    >>> runs_by(table, "method")[("bsp",)][3]["step"].tolist()
    [0, 5]
    """
    _require_columns(curves, (*names, "seed", "step", "test_loss"))
    found = {}
    for cell, part in curves.groupby(list(names), sort=False, dropna=False):
        of_cell = ", ".join(f"{name} {value}" for name, value in zip(names, cell, strict=True))
        _require_one_setting(part, names, of_cell)
        runs: Runs = {}
        for seed, run in part.groupby("seed", sort=True):
            require(
                run["step"].is_unique,
                f"curves of {of_cell} have a step of seed {seed} more than once; leave out copies "
                f"and runs on other clocks or tasks of the same name",
            )
            runs[int(seed)] = run.sort_values("step")
        found[cell] = runs
    return found


def final_loss(run: pd.DataFrame) -> float:
    """Return the test loss in the last row of one run; it is infinite if the run diverged."""
    last = run.iloc[-1]
    loss = float(last["test_loss"])
    return math.inf if last["diverged"] or math.isnan(loss) else loss


def final_losses(runs: Runs) -> np.ndarray:
    """Return the final losses of a cell, in the order of its seeds."""
    return np.array([final_loss(run) for run in runs.values()])


def _require_columns(curves: pd.DataFrame, needed: tuple[str, ...]) -> None:
    from pandas.api.types import is_numeric_dtype

    missing = [name for name in needed if name not in curves]
    require(not missing, f"curves lack the columns {missing}; make them with ddlnb train")
    require(not curves.empty, "there are no curves; make them with ddlnb train")
    for name in NUMBERS:
        if name in curves and not is_numeric_dtype(curves[name]):
            text = next(value for value in curves[name] if isinstance(value, str))
            raise InputError(f"column {name!r} of the curves has {text!r}, which is no number")
    empty = [name for name in (*needed, *WHOLE) if name in curves and curves[name].isna().any()]
    empty = [name for name in empty if name != "test_loss"]  # of a run that diverged
    require(
        not empty,
        f"column {empty and empty[0]!r} of the curves has empty cells; make them with ddlnb train",
    )


def _require_one_setting(part: pd.DataFrame, names: tuple[str, ...], of_cell: str) -> None:
    held = [name for name in SETTINGS if name in part and name not in names]
    varying = {name: part[name].unique() for name in held}
    varying = {name: values for name, values in varying.items() if len(values) > 1}
    if varying:
        shown = "; ".join(
            f"{name} {' and '.join(map(str, values))}" for name, values in varying.items()
        )
        raise InputError(
            f"curves of {of_cell} vary in {', '.join(varying)} ({shown}); keep one, since runs of "
            f"several settings are no sample of one method"
        )
