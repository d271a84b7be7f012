"""Compare methods by many runs: numbers of workers and seeds, each at a learning rate of its own.

`ddlnb.training.runs.tuning` says how a rate is found, and how many runs that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import require
from ddlnb.files import require_writable
from ddlnb.progress import Show
from ddlnb.registry import several
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.runner import Runner, default_jobs
from ddlnb.training.runs.summaries import summary
from ddlnb.training.runs.tuning import CONFIRM, TUNING_SEEDS, tuned
from ddlnb.training.settings import LOCKSTEP, TrainingSettings, training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.task import LearningTask

if TYPE_CHECKING:
    import pandas as pd


# Of a gradient, with its share of everything else, as measured on a core of 2026. What a task of
# other names takes is not known.
GRADIENT_SECONDS = {"digits": 1.6e-3, "text": 1.2e-3, "quadratic": 0.4e-3, "logistic": 0.5e-3}
TUNING_RUNS = 4.5  # of full length, for most methods (`ddlnb.training.runs.tuning`)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Curves, one row per evaluation of every run, and tuning, one row per rate tried."""

    curves: pd.DataFrame
    tuning: pd.DataFrame

    def summary(self, target: float | None = None) -> pd.DataFrame:
        """Return one row per method and setting, as `ddlnb.training.runs.summaries.summary` does.

        After tuning there are ``rates_tried``, the number of them, and ``rate_stable``, false if
        none of those that were confirmed was.
        """
        found = summary(self.curves, target)
        if self.tuning.empty:
            return found
        cells = self.tuning.groupby(["method", "workers"])
        tried = cells["learning_rate"].nunique().rename("rates_tried")
        confirmed = self.tuning[self.tuning["stage"] == CONFIRM].groupby(["method", "workers"])
        stable = confirmed["stable"].any().rename("rate_stable")
        return found.join(tried, on=tried.index.names).join(stable, on=stable.index.names)


def compare(
    task: str | LearningTask,
    methods: str | TrainingMethod | Sequence[str | TrainingMethod],
    *,
    seeds: int | Sequence[int] = 5,
    workers: int | Sequence[int] = 8,
    lr: float | Sequence[float] | None = None,
    tune: bool = False,
    folder: str | Path | None = None,
    jobs: int | None = None,
    progress: Show = None,
    before: Callable[[float | None], object] | None = None,
    **settings: Any,
) -> Comparison:
    """Return the curves of every method, number of workers, learning rate and seed.

    ``seeds`` is their number, counted from 0, or the seeds themselves; the other ``settings`` are
    those of `ddlnb.train`. With ``tune`` every method and number of workers gets a rate of its own,
    else all get ``lr`` or, without it, the optimizer's first guess. Runs are kept in ``folder``,
    where the same call goes on after an interruption; its curves.csv and tuning.csv then hold all
    that is kept there, runs of other calls included. Without a folder nothing is kept. ``jobs``
    processes of one thread each make the runs; by default there is one per core. ``before`` is
    called with the seconds that all runs may take here, if that can be told, before the first one.

    ``curves`` of the result has the rows of `ddlnb.train` for every run, ``tuning`` one per rate
    tried, and ``summary()`` one per method and setting, with means over the seeds.

    Raises UnknownName and InputError before anything runs, and ResultsError for a folder whose
    files were damaged.

    >>> import ddlnb
    >>> found = ddlnb.compare(  # doctest: +SKIP
    ...     "quadratic", ["bsp", "local(8)"], seeds=2, workers=4, steps=16, jobs=1
    ... )
    >>> found.summary()[["method", "seeds", "bytes"]].values.tolist()  # doctest: +SKIP
    [['bsp on A2A', 2, 3840.0], ['local(8) on A2A', 2, 480.0]]
    """
    import pandas as pd

    task = get_learning_task(task)
    chosen = {str(method): method for method in map(training_method, several(methods))}
    require(bool(chosen), "a comparison needs at least one method")
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    require(bool(seeds), "a comparison needs at least one seed")
    require("seed" not in settings, "a comparison takes several seeds; give seeds, not seed")
    reserved = sorted(set(seeds) & set(TUNING_SEEDS))
    require(not reserved, f"seeds {reserved} are those for tuning; take others")
    require(not (tune and lr is not None), f"tune finds learning rates; leave out {lr}")
    rates = None if lr is None else several(lr)
    cells = [
        training_settings(task, method, workers=count, **settings)
        for method in chosen.values()
        for count in several(workers)
    ]
    require(bool(cells), "a comparison needs at least one number of workers")
    asked = [
        [cell] if rates is None else [replace(cell, lr=rate) for rate in rates] for cell in cells
    ]
    require(
        bool(asked[0]), "a comparison needs at least one learning rate, or none for the default"
    )
    for of_cell in asked:
        for one in of_cell:
            for seed in (min(seeds), max(seeds)):
                replace(one, seed=seed)  # refuses what cannot run
    if cells[0].executor != LOCKSTEP:
        require(jobs in (None, 1), f"runs on real processes go one by one; leave out jobs {jobs}")
        jobs = 1
    if folder is not None:
        require_writable(folder)
    runner = Runner(None if folder is None else Path(folder), jobs, progress)
    if before is not None:
        before(estimated_seconds(cells, len(asked[0]) * len(seeds), tune=tune, jobs=jobs))

    tuning = pd.DataFrame()
    if tune:
        searches = tuned(cells, runner)
        asked = [[replace(search.cell, lr=search.best)] for search in searches]
        tuning = pd.concat([search.frame() for search in searches], ignore_index=True)
    runs = [replace(one, seed=seed) for of_cell in asked for one in of_cell for seed in seeds]
    curves = pd.concat(runner.curves(runs, "runs"), ignore_index=True)
    runner.write_all("runs", "curves.csv")
    runner.write_all("rates", "tuning.csv")
    return Comparison(curves, tuning)


def estimated_seconds(
    cells: Sequence[TrainingSettings], runs: int, *, tune: bool = False, jobs: int | None = None
) -> float | None:
    """Return about the seconds of that many runs of every cell, after tuning if it is asked for.

    None on real processes, whose seconds are not those of this process, and for unknown tasks.
    """
    if any(one.executor != LOCKSTEP or one.task.name not in GRADIENT_SECONDS for one in cells):
        return None
    run = sum(one.steps * one.workers * GRADIENT_SECONDS[one.task.name] for one in cells)
    return (runs + tune * TUNING_RUNS) * run / (jobs or default_jobs())
