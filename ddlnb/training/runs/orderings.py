"""Which method learns better than which: orderings that papers state, judged on curves.

An ordering holds where the loss of the one method is below that of the other by the mean difference
between runs of the same seed, and the 95 % interval of that mean excludes zero; it is contradicted
where it is above, likewise; otherwise these seeds leave it undecided. Where runs diverged there is
no mean: the ordering holds, or is contradicted, if every pair says so
(`ddlnb.results.statistics.paired_comparison`).

Every verdict errs with a probability of 5 % on its own, so that some of many err: ``p_holm`` bounds
the probability of one as extreme anywhere in the table if no methods differed (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import require
from ddlnb.results.statistics import holm, mean_interval, paired_comparison
from ddlnb.training.method import training_method
from ddlnb.training.runs.by_cell import Runs, final_loss, final_losses, runs_by

if TYPE_CHECKING:
    import pandas as pd


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
    `ddlnb.results.statistics.PairedComparison`, with ``p_holm``, its ``p_value`` corrected for the
    number of rows. Raises InputError if the curves can judge no ordering, and for cells of several
    settings.
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
                    | paired_comparison(*pair_of(*pair)).columns()
                    | {"why": one.why, "source": one.source}
                )
    require(bool(rows), "the curves have no two methods of an ordering with two seeds in common")
    table = pd.DataFrame(rows)
    table.insert(table.columns.get_loc("p_value") + 1, "p_holm", holm(table["p_value"].to_numpy()))
    return table


def _common(better: Runs, worse: Runs) -> list[int]:
    return sorted(set(better) & set(worse))


def reached(curves: pd.DataFrame) -> pd.DataFrame:
    """Return one row per method and number of workers: its rate, and its final loss over the seeds.

    ``test_loss`` is the mean, infinite if a run diverged, with the ``half_width`` of its 95 %
    t-interval; ``diverged`` counts runs. Raises InputError for cells of several settings.
    """
    import pandas as pd

    rows = []
    for (method, workers), runs in runs_by(curves, "method", "workers").items():
        losses = final_losses(runs)
        loss = mean_interval(losses)
        rate = next(iter(runs.values()))["learning_rate"].iloc[0]
        diverged = int(np.isinf(losses).sum())
        rows.append((method, workers, rate, loss.estimate, loss.half_width, diverged, len(runs)))
    names = ["test_loss", "half_width", "diverged", "seeds"]
    return pd.DataFrame(rows, columns=["method", "workers", "learning_rate", *names])


def pair_of(better: Runs, worse: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Return the final losses of both, of the seeds that both have; InputError if there is none."""
    seeds = _common(better, worse)
    require(bool(seeds), "the two methods have no seed in common; run the same seeds of both")
    one, other = (np.array([final_loss(runs[seed]) for seed in seeds]) for runs in (better, worse))
    return one, other
