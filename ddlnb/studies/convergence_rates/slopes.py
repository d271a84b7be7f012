"""Slopes of measured rates in logarithms, with intervals over runs, and whether theory has them.

A rate O(1/sqrt(nT)) is a line of slope -1/2 against log T and against log n. The rule: theory is
agreed with where the whole 95 % interval of the slope lies within TOLERANCE of -1/2, and disagreed
with where all of it lies outside; where the interval crosses that border nothing can be said with
these runs. Terms that theory adds to the leading one bend the line at any finite T, and the rule
makes no allowance for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import require
from ddlnb.results.statistics import t_interval
from ddlnb.studies.convergence_rates.rates import AT_MEAN, AT_WORKERS
from ddlnb.training.method import training_method
from ddlnb.training.synchronisation.local import LocalSGD

if TYPE_CHECKING:
    import pandas as pd

LEADING = -0.5
TOLERANCE = 0.1
AGREES, DISAGREES, OPEN = "agrees", "disagrees", "undecided"


@dataclass(frozen=True)
class Rate:
    """What theory says of a method, and how we know: [k] is not re-read, [P] is a primary paper."""

    method: str
    rate: str
    tag: str


RATES = (
    Rate("bsp", "O(1/sqrt(nT))", "[k]"),
    Rate("local(4)", "O(1/sqrt(nT)) while H <= T^(1/4)/n^(3/4)", "[k]"),
    Rate("local(16)", "O(1/sqrt(nT)) while H <= T^(1/4)/n^(3/4)", "[k]"),
    Rate("bsp + qsgd(1)", "O(sqrt(1+w)/sqrt(nT))", "[k]"),
    Rate("bsp + top-k(0.1) + feedback", "O(1/sqrt(nT)) + O(1/(delta^2 T))", "[k]"),
    Rate("d-psgd(ring)", "O(1/sqrt(nT) + n/(rho^2 T))", "[P CHOCO s.2]"),
    Rate("choco(ring, 0.3) + top-k(0.2)", "O(1/sqrt(nT) + n/(rho^4 delta^2 T))",
         "[P CHOCO Thm 4.1]"),
)  # fmt: skip


def log_slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The slope of the least-squares line of log y against log x. Raises InputError.

    >>> round(log_slope([1, 4, 16], [8.0, 4.0, 2.0]), 6)
    -0.5
    """
    one, other = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    require(len(set(one.tolist())) > 1, f"{list(x)} make no slope; give two numbers or more")
    positive = np.isfinite(other).all() and (other > 0).all() and (one > 0).all()
    require(bool(positive), f"logarithms need finite numbers above 0, and there are {list(y)}")
    return float(np.polyfit(np.log(one), np.log(other), 1)[0])


def slope_interval(x: Sequence[float], runs: np.ndarray) -> tuple[float, float]:
    """The mean slope over the runs, (runs, len(x)), and the half width of its 95 % t-interval."""
    return t_interval(np.array([log_slope(x, run) for run in runs]))


def verdict(slope: float, half_width: float, theory: float = LEADING) -> str:
    """By the rule above.

    >>> verdict(-0.52, 0.03), verdict(-0.8, 0.05), verdict(-0.58, 0.05)
    ('agrees', 'disagrees', 'undecided')
    """
    away = abs(slope - theory)
    if math.isnan(half_width):
        return OPEN
    if away + half_width <= TOLERANCE:
        return AGREES
    return DISAGREES if away - half_width > TOLERANCE else OPEN


def rate_slopes(table: pd.DataFrame, rates: Sequence[Rate] = RATES) -> pd.DataFrame:
    """A row per problem, method, what it is against (T or n) and where gradients are taken.

    ``table`` is that of `rate_study`. Columns: problem, method, against, gradient, slope,
    half_width, low, high, theory, verdict, promised, rate, tag. ``promised`` is false where a
    period of local SGD is longer than `local_steps_allowed` in some cell, so that theory is silent.
    Raises InputError for a table that varies nothing.
    """
    import pandas as pd

    known = {str(training_method(one.method)): one for one in rates}
    rows = []
    for (problem, method), part in table.groupby(["problem", "method"], sort=False):
        stated = known.get(str(method))
        for against, held in (("steps", "workers"), ("workers", "steps")):
            swept = _sweep(part, against, held)
            for measure in (AT_MEAN, AT_WORKERS):
                wide = swept.pivot(index="run", columns=against, values=measure)
                slope, half = slope_interval(wide.columns.tolist(), wide.to_numpy())
                rows.append(
                    {
                        "problem": problem,
                        "method": method,
                        "against": against,
                        "gradient": measure,
                        "slope": slope,
                        "half_width": half,
                        "low": slope - half,
                        "high": slope + half,
                        "theory": LEADING,
                        "verdict": verdict(slope, half),
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
    """The rows in which ``against``, steps or workers, varies and the other does not."""
    return _sweep(part, against, "workers" if against == "steps" else "steps")


def _sweep(part: pd.DataFrame, against: str, held: str) -> pd.DataFrame:
    counts = part.groupby(held)[against].nunique()
    require(bool(counts.max() > 1), f"{against} do not vary in this table; make it by rate_study")
    return part[part[held] == counts.idxmax()]


def local_steps_allowed(steps: int, workers: int) -> float:
    """The most local steps H for which theory promises local SGD the rate: T^(1/4)/n^(3/4) [k].

    >>> round(local_steps_allowed(4096, 4), 2)
    2.83
    """
    return steps**0.25 / workers**0.75
