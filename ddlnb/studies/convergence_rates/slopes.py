"""Slopes of measured rates in logarithms, with intervals over runs, and whether theory has them.

A rate O(1/sqrt(nT)) is a line of slope -1/2 against log T and against log n. The rule: a slope
agrees with theory where its whole 95 % interval lies within TOLERANCE of -1/2, and disagrees where
all of it lies outside; where the interval crosses that border, these runs cannot decide. Terms that
theory adds to the leading one bend the line at any finite T, and the rule makes no allowance for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import require
from ddlnb.results.statistics import Interval, mean_interval
from ddlnb.studies.convergence_rates.rates import AT_MEAN, AT_WORKERS
from ddlnb.studies.convergence_rates.theory import LEADING, RATES, local_steps_allowed
from ddlnb.studies.findings import Findings, findings
from ddlnb.training.method import training_method
from ddlnb.training.synchronisation.local import LocalSGD

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.1  # around LEADING, within which a slope agrees with theory
AGREES, DISAGREES, OPEN = "agrees", "disagrees", "undecided"


def log_slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Return the slope of the least-squares line of log y against log x. Raises InputError.

    >>> round(log_slope([1, 4, 16], [8.0, 4.0, 2.0]), 6)
    -0.5
    """
    one, other = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    require(len(set(one.tolist())) > 1, f"{list(x)} make no slope; give two numbers or more")
    positive = np.isfinite(other).all() and (other > 0).all() and (one > 0).all()
    require(bool(positive), f"logarithms need finite numbers above 0, and there are {list(y)}")
    return float(np.polyfit(np.log(one), np.log(other), 1)[0])


def slope_interval(x: Sequence[float], runs: np.ndarray) -> Interval:
    """Return the mean slope over the runs, (runs, len(x)), with its 95 % t-interval."""
    return mean_interval(np.array([log_slope(x, run) for run in runs]))


def verdict(slope: Interval) -> str:
    """Judge a slope by the rule above.

    >>> verdict(Interval(-0.52, -0.55, -0.49)), verdict(Interval(-0.8, -0.85, -0.75))
    ('agrees', 'disagrees')
    """
    found = slope.within(LEADING - TOLERANCE, LEADING + TOLERANCE)
    return found.worded(AGREES, DISAGREES, OPEN)


def rate_slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per problem, method, what it is against (T or n) and where gradients are taken.

    ``table`` is that of `rate_study`. Columns: problem, method, against, gradient, slope,
    half_width, low, high, theory, verdict, promised, rate, tag. ``promised`` is false where a
    period of local SGD is longer than `local_steps_allowed` in some cell, so that theory is silent.
    Raises InputError for a table that varies nothing.
    """
    import pandas as pd

    known = {str(training_method(one.method)): one for one in RATES}
    rows = []
    for (problem, method), part in table.groupby(["problem", "method"], sort=False):
        stated = known.get(str(method))
        for against, held in (("steps", "workers"), ("workers", "steps")):
            swept = _sweep(part, against, held)
            for measure in (AT_MEAN, AT_WORKERS):
                wide = swept.pivot(index="run", columns=against, values=measure)
                slope = slope_interval(wide.columns.tolist(), wide.to_numpy())
                rows.append(
                    {
                        "problem": problem,
                        "method": method,
                        "against": against,
                        "gradient": measure,
                        "slope": slope.estimate,
                        "half_width": slope.half_width,
                        "low": slope.low,
                        "high": slope.high,
                        "theory": LEADING,
                        "verdict": verdict(slope),
                        "promised": _promised(str(method), swept),
                        "rate": stated.rate if stated else "",
                        "tag": stated.tag if stated else "",
                    }
                )
    return pd.DataFrame(rows)


def _promised(method: str, swept: pd.DataFrame) -> bool:
    synchronisation = training_method(method).synchronisation
    if not isinstance(synchronisation, LocalSGD):
        return True
    cells = zip(swept["steps"], swept["workers"], strict=True)
    return all(synchronisation.period <= local_steps_allowed(*cell) for cell in cells)


def sweep(part: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return the rows in which ``against``, steps or workers, varies and the other does not."""
    return _sweep(part, against, "workers" if against == "steps" else "steps")


def _sweep(part: pd.DataFrame, against: str, held: str) -> pd.DataFrame:
    counts = part.groupby(held)[against].nunique()
    require(bool(counts.max() > 1), f"{against} do not vary in this table; make it by rate_study")
    return part[part[held] == counts.idxmax()]


def slope_table(slopes: pd.DataFrame) -> pd.DataFrame:
    """Return `rate_slopes` to read, by problem, method, and what the slope is of."""
    import pandas as pd

    table = slopes.set_index(["problem", "method", "gradient", "against"])
    return pd.DataFrame(
        {
            "slope": table["slope"].round(3),
            "±": table["half_width"].round(3),
            "verdict": table["verdict"],
            "promised": table["promised"].map({True: "yes", False: "no"}),
            "theory": table["rate"],
            "known": table["tag"],
        }
    )


def slope_findings(slopes: pd.DataFrame) -> Findings:
    """Return how often theory is agreed with, and where it is not."""
    names = {AT_MEAN: "At the mean model", AT_WORKERS: "At the workers' models"}
    return findings(*(_counted(names[at], slopes[slopes["gradient"] == at]) for at in names))


def _counted(where: str, part: pd.DataFrame) -> str:
    agrees, undecided = ((part["verdict"] == word).sum() for word in (AGREES, OPEN))
    against = part[part["verdict"] == DISAGREES]
    named = ", ".join(f"{row.method} against {row.against}" for row in against.itertuples())
    return (
        f"{where}, {agrees} of {len(part)} slopes agree with theory and {undecided} are undecided; "
        f"{len(against)} disagree{f': {named}' if named else ''}."
    )
