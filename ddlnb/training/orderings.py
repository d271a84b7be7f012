"""Which method learns better than which: orderings that papers state, judged on curves.

An ordering holds where the loss of the one method is below that of the other in the mean of
differences between runs of the same seed, and the 95 % t-interval of that mean leaves out zero; it
is contradicted where it is above, likewise; otherwise nothing can be said with these seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import require
from ddlnb.training.method import training_method
from ddlnb.training.summaries import t_interval

if TYPE_CHECKING:
    import pandas as pd

HOLDS, CONTRADICTED, OPEN = "holds", "contradicted", "undecided"


@dataclass(frozen=True)
class Ordering:
    """``better`` is said to reach a lower loss than ``worse`` after as many steps."""

    better: str
    worse: str
    why: str
    source: str


_ALL = (
    ("bsp", "local(16)", "averaging more often", "survey 3.1.2, A22"),
    ("local(4)", "local(16)", "averaging more often", "survey 3.1.2, A22"),
    ("bsp on PS", "asp", "no stale updates", "survey 3.1.2, Table 1"),
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
    """Every method that the orderings speak of, once."""
    named = [name for one in orderings for name in (one.better, one.worse)]
    return list(dict.fromkeys(named))


def judged(curves: pd.DataFrame, orderings: Sequence[Ordering] = ORDERINGS) -> pd.DataFrame:
    """One row per ordering and number of workers that the curves allow to judge.

    ``difference`` is the mean over seeds of the worse method's final test loss minus the better
    one's, ``half_width`` that of its 95 % t-interval, ``seeds`` how many were compared. A run
    that diverged is worse than any that did not: ``difference`` is then infinite, or NaN where as
    many of both did, and an ordering is decided only if all of the one and none of the other did.
    Raises InputError if the curves allow to judge none.
    """
    import pandas as pd

    ends = curves.sort_values("step").groupby(["method", "workers", "seed"], sort=True).tail(1)
    losses = ends.set_index(["method", "workers", "seed"])["test_loss"].where(
        ~ends.set_index(["method", "workers", "seed"])["diverged"], math.inf
    )
    losses = losses.sort_index()
    require(losses.index.is_unique, "curves have several runs of a method, workers and seed")
    rows = []
    for one in orderings:
        better, worse = str(training_method(one.better)), str(training_method(one.worse))
        for workers in sorted(set(curves["workers"])):
            pair = [_of(losses, name, workers) for name in (better, worse)]
            seeds = sorted(set(pair[0]) & set(pair[1]))
            if len(seeds) > 1:
                lost = np.array([[mine[seed] for seed in seeds] for mine in pair])
                rows.append(
                    {"better": better, "worse": worse, "workers": workers, "seeds": len(seeds)}
                    | paired_verdict(lost[0], lost[1])
                    | {"why": one.why, "source": one.source}
                )
    require(bool(rows), "the curves have no two methods of an ordering with two seeds in common")
    return pd.DataFrame(rows)


def _of(losses: pd.Series, method: str, workers: int) -> dict[int, float]:
    if (method, workers) not in losses.index.droplevel("seed"):
        return {}
    return losses.loc[method, workers].to_dict()


def paired_verdict(better: np.ndarray, worse: np.ndarray) -> dict[str, object]:
    """``difference``, ``half_width`` and ``verdict``, as of `judged`, of final losses by seed."""
    if np.isfinite(better).all() and np.isfinite(worse).all():
        mean, half = t_interval(worse - better)
        verdict = HOLDS if mean - half > 0 else CONTRADICTED if mean + half < 0 else OPEN
        return {"difference": mean, "half_width": half, "verdict": verdict}
    lost = int(np.isinf(worse).sum()) - int(np.isinf(better).sum())
    all_or_none = abs(lost) == len(better)
    verdict = OPEN if not all_or_none else HOLDS if lost > 0 else CONTRADICTED
    difference = math.copysign(math.inf, lost) if lost else math.nan
    return {"difference": difference, "half_width": math.nan, "verdict": verdict}
