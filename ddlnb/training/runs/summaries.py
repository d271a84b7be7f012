"""What curves say: final quality with intervals over seeds, costs to a target, and orderings.

A cell holds the runs of the same settings, one per seed. Tables are joined from many files, so that
nothing may rely on a single learning rate, or on a single run per seed: runs are grouped by cell,
and tables that mix settings are refused.

An ordering is the statement of a paper that one method learns better than another. It holds where
the loss of the one method is below that of the other by the mean difference between runs of the
same seed, and the 95 % interval of that mean excludes zero; it is contradicted where it is above,
likewise; otherwise these seeds leave it undecided. Where runs diverged there is no mean: the
ordering holds, or is contradicted, if every pair says so
(`ddlnb.calibration.statistics.paired_comparison`). Every verdict errs with a probability of 5 % on
its own, so that some of many err: ``p_holm`` bounds the probability of one as extreme anywhere in
the table if no methods differed (Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.calibration.statistics import holm, mean_interval, paired_comparison
from ddlnb.errors import InputError, require, require_known
from ddlnb.training.method import training_method

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
                f"and runs of other steps, code, clocks or tasks of the same name (curves.csv of a "
                f"folder has a column `run`)",
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

    That includes the average of models that it may take (`ddlnb.training.runs.train`). Raises
    UnknownName, and InputError for curves without the columns.
    """
    require_known("cost", cost, COSTS)
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
    (rows,) = np.nonzero((run["test_loss"] <= target).to_numpy() & ~has_diverged(run))
    if not len(rows):
        return math.inf, math.inf
    row = rows[0]
    require(
        run["step"].iloc[row] > 0,
        f"target {target:g} is reached before training; choose a lower loss",
    )
    return float(costs[row - 1]) if row else 0.0, float(costs[row])


def has_diverged(run: pd.DataFrame) -> np.ndarray:
    """Return for every row whether the run has diverged there, so that it is about no model."""
    if "diverged" not in run:
        return np.zeros(len(run), dtype=bool)
    return np.asarray(run["diverged"].to_numpy(dtype=bool))


def require_target(target: float | None) -> None:
    """Raise InputError for a target loss that is given and is no finite number."""
    require(target is None or math.isfinite(target), f"target {target} must be a finite loss")


def summary(curves: pd.DataFrame, target: float | None = None) -> pd.DataFrame:
    """Return one row per method and setting, over its seeds.

    ``test_loss`` and ``test_accuracy`` are means at the end, followed by the half widths of their
    95 % t-intervals; runs that diverged are counted in ``diverged`` and have infinite loss and no
    accuracy. ``bytes`` is the mean of what is `spent` in the end, and so is ``seconds``, where the
    curves have them (NaN without a clock). With a ``target`` loss,
    ``reached`` counts the runs that got there, and ``steps_to_target``, ``bytes_to_target`` and
    ``seconds_to_target`` are medians over all seeds, in which a run that did not get there counts
    as infinite.
    """
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
        if set(COSTS["seconds"]) <= set(ends):
            row["seconds"] = float(spent(ends, "seconds").mean())
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


@dataclass(frozen=True)
class Ordering:
    """The statement that ``better`` reaches a lower loss than ``worse`` after equal steps."""

    better: str
    worse: str
    why: str
    source: str


_ALL = (
    ("bsp", "local(16)", "averaging more often", "survey 3.1.2, A22"),
    ("local(4)", "local(16)", "averaging more often", "survey 3.1.2, A22"),
    ("bsp on PS", "asp", "no stale updates", "survey 3.1.2, Table 1"),
    ("bsp on PS", "ssp(2)", "no stale updates", "survey 3.1.2, Table 1"),
    ("ssp(2)", "asp", "staleness has a bound", "survey 3.1.2, Table 1"),
    ("bsp on PS", "r2sp", "no stale updates", "survey 3.1.2, Table 1"),
    ("r2sp", "asp", "staleness has a bound", "Chen et al. 2019"),
    ("bsp", "bsp + signsgd", "a sign forgets magnitudes", "survey 3.1.3"),
    ("bsp + ef-sign + feedback", "bsp + signsgd", "error feedback", "Karimireddy et al. 2019"),
    ("bsp + ef-sign + feedback", "bsp + ef-sign", "error feedback", "Karimireddy et al. 2019"),
    ("bsp + qsgd(127)", "bsp + qsgd(7)", "more levels", "Koloskova et al. 2019, Table 1"),
    ("bsp + qsgd(7)", "bsp + qsgd(1)", "more levels", "Koloskova et al. 2019, Table 1"),
    ("bsp", "bsp + terngrad", "no added variance", "survey 3.1.3"),
    ("bsp + top-k(0.01) + feedback", "bsp + top-k(0.01)", "error feedback", "Stich et al. 2018"),
    ("bsp + top-k(0.01) + feedback", "bsp + random-k(0.01) + feedback",
     "the largest entries hold most of the norm", "Stich et al. 2018"),
    ("bsp + top-k(0.1) + feedback", "bsp + top-k(0.01) + feedback", "more entries", "survey 3.1.3"),
    ("bsp + top-k(0.01) + feedback", "bsp + gtop-k(0.01) + feedback",
     "gTop-k sends fewer entries", "Shi et al. 2019"),
    ("bsp + powersgd(4) + feedback", "bsp + powersgd(1) + feedback", "a higher rank",
     "Vogels et al. 2019"),
    ("bsp + top-k(0.01) + feedback", "bsp + top-k(0.01) + feedback + whole-model",
     "bounds layer by layer are never worse", "Dutta et al. 2020 found exceptions"),
    ("d-psgd(complete)", "d-psgd(ring)", "a larger spectral gap", "Lian et al. 2017"),
    ("choco(ring) + top-k(0.01)", "dcd-psgd(ring) + top-k(0.01)", "CHOCO stands any compression",
     "Koloskova et al. 2019, Table 1"),
    ("choco(ring) + qsgd(7, 49)", "ecd-psgd(ring) + qsgd(7, 49)", "CHOCO stands any compression",
     "Koloskova et al. 2019, Table 1"),
)  # fmt: skip
ORDERINGS = tuple(Ordering(*row) for row in _ALL)


def methods_of(orderings: Sequence[Ordering] = ORDERINGS) -> list[str]:
    """Return every method that the orderings name, once."""
    named = [name for one in orderings for name in (one.better, one.worse)]
    return list(dict.fromkeys(named))


def judged(curves: pd.DataFrame, orderings: Sequence[Ordering] = ORDERINGS) -> pd.DataFrame:
    """Return one row per ordering and number of workers that the curves can judge.

    ``seeds`` is the number of pairs compared; the columns that follow are those of
    `ddlnb.calibration.statistics.PairedComparison`, with ``p_holm``, its ``p_value`` corrected for
    the number of rows. Raises InputError if the curves can judge no ordering, and for cells of
    several settings.
    """
    cells = runs_by(curves, "method", "workers")
    rows = []
    for one in orderings:
        better, worse = str(training_method(one.better)), str(training_method(one.worse))
        for workers in sorted({workers for _, workers in cells}):
            pair = [cells.get((name, workers), {}) for name in (better, worse)]
            if len(_common(*pair)) > 1:
                rows.append(
                    {"better": better, "worse": worse, "workers": workers}
                    | paired_comparison(*pair_of(*pair)).columns()
                    | {"why": one.why, "source": one.source}
                )
    require(bool(rows), "the curves have no two methods of an ordering with two seeds in common")
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("p_value") + 1, "p_holm", holm(table["p_value"].to_numpy()))
    return table


def _common(better: Runs, worse: Runs) -> list[int]:
    return sorted(set(better) & set(worse))


def pair_of(better: Runs, worse: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return the final losses of both, of the seeds that both have; InputError if there is none."""
    seeds = _common(better, worse)
    require(bool(seeds), "the two methods have no seed in common; run the same seeds of both")
    one, other = (np.array([final_loss(runs[seed]) for seed in seeds]) for runs in (better, worse))
    return one, other
