"""Which method learns better than which: orderings that papers state, judged on curves.

An ordering holds where the loss of the one method is below that of the other in the mean of
differences between runs of the same seed, and the 95 % t-interval of that mean leaves out zero; it
is contradicted where it is above, likewise; otherwise nothing can be said with these seeds. Where
runs diverged there is no mean: the ordering holds, or is contradicted, if every pair is that way.

Every verdict errs with a chance of 5 % on its own. Among many some err: `p_holm` is the chance, at
most, of one as extreme anywhere in the table if no method differed (Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlnb.errors import require
from ddlnb.results.statistics import holm, t_interval, t_test
from ddlnb.training.method import training_method
from ddlnb.training.runs.by_cell import Runs, final_loss, final_losses, runs_by

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

    ``seeds`` is how many pairs were compared; `paired_verdict` says what of them is found, and
    ``p_holm`` is its ``p_value`` corrected for the number of rows. Raises InputError if the curves
    allow to judge none, and for cells of several settings.
    """
    import pandas as pd

    cells = runs_by(curves, "method", "workers")
    rows = []
    for one in orderings:
        better, worse = str(training_method(one.better)), str(training_method(one.worse))
        for workers in sorted({workers for _, workers in cells}):
            pair = [cells.get((name, workers), {}) for name in (better, worse)]
            if len(_common(*pair)) > 1:
                rows.append(
                    {"better": better, "worse": worse, "workers": workers}
                    | paired_verdict(*pair_of(*pair))
                    | {"why": one.why, "source": one.source}
                )
    require(bool(rows), "the curves have no two methods of an ordering with two seeds in common")
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("p_value") + 1, "p_holm", holm(table["p_value"].to_numpy()))
    return table


def _common(better: Runs, worse: Runs) -> list[int]:
    return sorted(set(better) & set(worse))


def reached(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per method and number of workers: its rate and its final loss over the seeds.

    ``test_loss`` is the mean, infinite if a run diverged, with the ``half_width`` of its 95 %
    t-interval; ``diverged`` counts runs. Raises InputError for cells of several settings.
    """
    import pandas as pd

    rows = []
    for (method, workers), runs in runs_by(curves, "method", "workers").items():
        losses = final_losses(runs)
        mean, half = t_interval(losses)
        rate = next(iter(runs.values()))["learning_rate"].iloc[0]
        diverged = int(np.isinf(losses).sum())
        rows.append((method, workers, rate, mean, half, diverged, len(runs)))
    names = ["test_loss", "half_width", "diverged", "seeds"]
    return pd.DataFrame(rows, columns=["method", "workers", "learning_rate", *names])


def pair_of(better: Runs, worse: Runs) -> tuple[np.ndarray, np.ndarray]:
    """The final losses of both, of the seeds that both have. Raises InputError if none."""
    seeds = _common(better, worse)
    require(bool(seeds), "two methods that are compared have no seed in common; run the same seeds")
    one, other = (np.array([final_loss(runs[seed]) for seed in seeds]) for runs in (better, worse))
    return one, other


def paired_verdict(better: np.ndarray, worse: np.ndarray) -> dict[str, object]:
    """What pairs of final losses say; a loss is infinite where the run diverged.

    ``difference`` is the mean of the worse side's loss minus the better one's, ``half_width`` that
    of its 95 % t-interval. A run that diverged is worse than any that did not, and pairs in which
    both did are left out of the difference: where a run did, it is infinite or NaN, there is no
    interval, and the ``verdict`` needs all pairs strictly one way. ``p_value`` is that of the
    paired t-test, or then of the sign test. ``better_diverged`` and ``worse_diverged`` count runs.
    """
    lost = {
        "better_diverged": int(np.isinf(better).sum()),
        "worse_diverged": int(np.isinf(worse).sum()),
    }
    both = np.isinf(better) & np.isinf(worse)
    differences = np.subtract(worse, better, out=np.zeros(len(better)), where=~both)
    if any(lost.values()):
        decisive = differences[~both].tolist()
        mean, half = sum(decisive) / len(decisive) if decisive else math.nan, math.nan
        above, below = bool((differences > 0).all()), bool((differences < 0).all())
        p_value = 0.5 ** (len(differences) - 1) if above or below else 1.0
    else:
        mean, half = t_interval(differences)
        above, below = mean - half > 0, mean + half < 0
        p_value = t_test(differences)
    verdict = HOLDS if above else CONTRADICTED if below else OPEN
    said = {"difference": mean, "half_width": half, "verdict": verdict, "p_value": p_value}
    return {"seeds": len(better), **said, **lost}


def diverged_text(judged: Mapping[str, Any]) -> str:
    """How many runs of a `paired_verdict` diverged, in words; empty if none did."""
    counts = [judged["better_diverged"], judged["worse_diverged"]]
    if not any(counts):
        return ""
    return f"{counts[0]} and {counts[1]} of {judged['seeds']} runs diverged"
