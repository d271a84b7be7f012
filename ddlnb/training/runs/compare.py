"""Compare methods by many runs: numbers of workers and seeds, each at a learning rate of its own.

The rate of every method is found by the same rule. First a scan: SCANNED times the optimizer's
first guess, with one seed and half the steps. While the best rate is at an end of those tried, one
more is tried beyond it, up to EXTENSIONS more; then half and twice the best. The best of all is
confirmed with all the steps and two seeds. If a run is not stable, the rate is halved, up to
HALVINGS times. Losses are those of training samples that are held out
(`ddlnb.training.tasks.task`), and the seeds are used for nothing else. That takes 4.5 runs of full
length for most methods, and not more than 14.5.

A run is stable if it did not diverge and ends with nine tenths of what it had gained at its best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import pandas as pd

from ddlnb.errors import require
from ddlnb.files import require_writable
from ddlnb.progress import Show
from ddlnb.registry import several
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.runner import Runner, default_jobs
from ddlnb.training.runs.summaries import final_loss, summary
from ddlnb.training.runs.train import made_by
from ddlnb.training.settings import LOCKSTEP, TrainingSettings, training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.task import LearningTask, validation_task

# Of a gradient, with its share of everything else, as measured on a core of 2026. What a task of
# other names takes is not known.
GRADIENT_SECONDS = {
    **{"digits": 1.6e-3, "text": 1.2e-3, "quadratic": 0.4e-3, "logistic": 0.5e-3},
    **{"letters": 16e-3, "code": 9e-3},
}
TUNING_RUNS = 4.5  # of full length, for most methods


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
    task = get_learning_task(task)
    chosen = {str(method): method for method in map(training_method, several(methods))}
    require(bool(chosen), "a comparison needs at least one method")
    seeds = list(range(seeds)) if isinstance(seeds, Integral) else _once(seeds)
    require(bool(seeds), "a comparison needs at least one seed")
    require("seed" not in settings, "a comparison takes several seeds; give seeds, not seed")
    reserved = sorted(set(seeds) & set(TUNING_SEEDS))
    require(not reserved, f"seeds {reserved} are those for tuning; take others")
    require(not (tune and lr is not None), f"tune finds learning rates; leave out lr {lr}")
    rates = None if lr is None else _once(lr)
    cells = [
        training_settings(task, method, workers=count, **settings)
        for method in chosen.values()
        for count in _once(workers)
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


def _once(given: Any) -> list[Any]:
    """Return what was given, one or several, each value once: twice is no further sample."""
    return list(dict.fromkeys(several(given)))


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


# Learning rates.


SPACING = 4.0
SCANNED = (1 / SPACING, 1.0, SPACING)
EXTENSIONS = 4
HALVINGS = 4
SCAN_SHARE = 0.5  # of the steps
TUNING_SEEDS = (1_000_003, 1_000_033)
KEPT_GAIN = 0.9
SCAN, CONFIRM = "scan", "confirm"


@dataclass
class Search:
    """The rates tried for one cell, whose own rate is the first guess, and their losses.

    ``scanned`` holds a loss by rate, ``confirmed`` the mean loss over both seeds; infinite where a
    run diverged or was not stable.
    """

    cell: TrainingSettings
    scanned: dict[float, float] = field(default_factory=dict)
    confirmed: dict[float, float] = field(default_factory=dict)
    refined: bool = False

    def next_scanned(self) -> list[float]:
        """Return the rates to scan next; none when the scan is over.

        Where every rate diverged, the best is the smallest one, so that smaller ones are tried.
        """
        if not self.scanned:
            return [self.cell.lr * factor for factor in SCANNED]
        if self.refined:
            return []
        best = _best(self.scanned)
        if len(self.scanned) < len(SCANNED) + EXTENSIONS:
            if best == min(self.scanned):
                return [best / SPACING]
            if best == max(self.scanned):
                return [best * SPACING]
        self.refined = True
        return [best / 2, best * 2]

    def next_confirmed(self) -> list[float]:
        """Return the rate to confirm next; none when one is stable or enough were tried."""
        if not self.confirmed:
            return [_best(self.scanned)]
        if self.stable or len(self.confirmed) > HALVINGS:
            return []
        return [min(self.confirmed) / 2]

    @property
    def best(self) -> float:
        """The rate that was confirmed last: the only stable one, or the smallest of all."""
        return min(self.confirmed)

    @property
    def stable(self) -> bool:
        """Whether that rate is stable."""
        return math.isfinite(self.confirmed[self.best])

    def frame(self) -> pd.DataFrame:
        """Return one row per rate and stage; a scanned rate is ``stable`` if it did not diverge."""
        cell = self.cell
        stages = ((SCAN, self.scanned, TUNING_SEEDS[:1]), (CONFIRM, self.confirmed, TUNING_SEEDS))
        rows = [
            {
                "task": cell.task.name,
                "method": str(cell.method),
                "workers": cell.workers,
                "optimizer": str(cell.optimizer),
                "stage": stage,
                "steps": _steps(cell, stage),
                "seeds": len(seeds),
                "learning_rate": rate,
                "validation_loss": loss,
                "stable": math.isfinite(loss),
                "chosen": stage == CONFIRM and rate == self.best,
                "made_by": made_by(cell.task),
            }
            for stage, losses, seeds in stages
            for rate, loss in sorted(losses.items())
        ]
        return pd.DataFrame(rows)


def tuned(cells: Sequence[TrainingSettings], runner: Runner) -> list[Search]:
    """Return the finished search of every cell; runs are kept as "tuning", results as "rates".

    Raises InputError for tasks with too few samples, and for a warm-up of more than half the steps.
    """
    for cell in cells:
        cell.schedule.require_fits(_steps(cell, SCAN), "the search for a rate, with half of them,")
    searches = [Search(cell) for cell in cells]
    while waiting := [(one, rate) for one in searches for rate in one.next_scanned()]:
        for search, rate, [curve] in _tried(waiting, SCAN, TUNING_SEEDS[:1], runner):
            search.scanned[rate] = final_loss(curve)
    while waiting := [(one, rate) for one in searches for rate in one.next_confirmed()]:
        for search, rate, curves in _tried(waiting, CONFIRM, TUNING_SEEDS, runner):
            losses = [final_loss(curve) if is_stable(curve) else math.inf for curve in curves]
            search.confirmed[rate] = sum(losses) / len(losses)
    for search in searches:
        runner.save(search.frame(), search.cell, "rates")
    return searches


def is_stable(curve: pd.DataFrame) -> bool:
    """Return whether a run kept what it had gained, by the rule above."""
    losses = curve["test_loss"].to_numpy(dtype=float)
    if not math.isfinite(final_loss(curve)):
        return False
    first, least, last = losses[0], losses.min(), losses[-1]
    return bool(last - least <= (1 - KEPT_GAIN) * (first - least))


def _tried(
    waiting: Sequence[tuple[Search, float]], stage: str, seeds: Sequence[int], runner: Runner
) -> list[tuple[Search, float, list[pd.DataFrame]]]:
    """Return every search and rate that waits, with the curves of its seeds."""
    runs = [
        replace(
            search.cell,
            task=validation_task(search.cell.task),
            steps=_steps(search.cell, stage),
            lr=rate,
            seed=seed,
        )
        for search, rate in waiting
        for seed in seeds
    ]
    curves = runner.curves(runs, "tuning")
    several = len(seeds)
    return [
        (search, rate, curves[several * number : several * (number + 1)])
        for number, (search, rate) in enumerate(waiting)
    ]


def _steps(cell: TrainingSettings, stage: str) -> int:
    return max(1, round(SCAN_SHARE * cell.steps)) if stage == SCAN else cell.steps


def _best(losses: dict[float, float]) -> float:
    """Return the rate with the least loss, the smaller one of equals."""
    return min(sorted(losses), key=losses.__getitem__)
