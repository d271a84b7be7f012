"""Many runs: methods, workers and seeds, each method at a learning rate of its own.

How a rate is found, and what that takes, is said in `ddlnb.training.runs.tuning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import require, require_whole
from ddlnb.files import require_writable
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.optimizers import default_rate, get_optimizer
from ddlnb.training.runs.kept_runs import Run, Runner
from ddlnb.training.runs.summaries import summary
from ddlnb.training.runs.train import LOCKSTEP
from ddlnb.training.runs.tuning import CONFIRM, TUNING_SEEDS, tuned
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.splits import get_split
from ddlnb.training.tasks.task import LearningTask

if TYPE_CHECKING:
    import pandas as pd

OPTIONS = (
    *("local_batch", "optimizer", "schedule", "split", "clock", "evaluate_every"),
    "executor",
)


@dataclass(frozen=True, eq=False)
class StudyResult:
    """``curves``: one row per evaluation of every run. ``tuning``: one row per rate tried."""

    curves: pd.DataFrame
    tuning: pd.DataFrame

    def summary(self, target: float | None = None) -> pd.DataFrame:
        """One row per method and setting: see `summaries.summary`.

        After tuning with ``rates_tried``, how many there were, and ``rate_stable``, false if none
        of those that were confirmed was.
        """
        found = summary(self.curves, target)
        if self.tuning.empty:
            return found
        cells = self.tuning.groupby(["method", "workers"])
        tried = cells["learning_rate"].nunique().rename("rates_tried")
        confirmed = self.tuning[self.tuning["stage"] == CONFIRM].groupby(["method", "workers"])
        stable = confirmed["stable"].any().rename("rate_stable")
        return found.join(tried, on=tried.index.names).join(stable, on=stable.index.names)


def study(
    task: str | LearningTask,
    methods: Sequence[str | TrainingMethod],
    *,
    seeds: int | Sequence[int] = 5,
    workers: int | Sequence[int] = 8,
    steps: int = 300,
    lr: float | Sequence[float] | None = None,
    tune: bool = False,
    folder: str | Path | None = None,
    jobs: int | None = None,
    progress: bool = False,
    **options: Any,
) -> StudyResult:
    """The curves of every method, number of workers, learning rate and seed.

    ``seeds`` is how many, from 0, or which; ``options`` are those of `train` that OPTIONS names.
    With ``tune`` every method and number of workers gets a rate of its own (see above), else all
    get ``lr`` or, without it, the optimizer's first guess. Runs are kept in ``folder``, where the
    same call goes on after an interruption; without one nothing is kept. Its curves.csv and
    tuning.csv then hold all that is kept there, of other calls, too. ``jobs`` processes run
    them, each with one thread; by default as many as there are cores. Raises UnknownName and
    InputError, before anything runs, and ResultsError for a folder whose files were damaged.
    """
    import pandas as pd

    task = get_learning_task(task)
    chosen = [str(training_method(method)) for method in methods]
    require(bool(chosen), "a study needs at least one method")
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    require(bool(seeds), "a study needs at least one seed")
    ours = sorted(set(seeds) & set(TUNING_SEEDS))
    require(not ours, f"seeds {ours} are those for tuning; take others")
    require(not (tune and lr is not None), f"tune finds learning rates; leave out {lr}")
    counts = [workers] if isinstance(workers, int) else list(workers)
    require_whole(steps=steps)
    unknown = sorted(set(options) - set(OPTIONS))
    require(not unknown, f"unknown options {unknown}; choose among {', '.join(OPTIONS)}")
    for name, get in {"split": get_split, "optimizer": get_optimizer}.items():
        if name in options:
            options[name] = str(get(options[name]))
    if options.get("executor", LOCKSTEP) != LOCKSTEP:
        require(jobs in (None, 1), f"runs on real processes go one by one; leave out jobs {jobs}")
        jobs = 1
    if folder is not None:
        require_writable(folder)
    runner = Runner(None if folder is None else Path(folder), jobs, progress)

    base = default_rate(task, options.get("optimizer", "sgd"))
    cells = [
        Run(task, method, count, steps, base, 0, **options)
        for method in dict.fromkeys(chosen)
        for count in counts
    ]
    asked = [base] if lr is None else [lr] if isinstance(lr, int | float) else list(lr)
    for cell, rate, seed in product(cells, asked, (min(seeds), max(seeds))):
        replace(cell, lr=rate, seed=seed).check()
    rates: dict[int, list[float]]
    if tune:
        searches = tuned(cells, runner)
        rates = {index: [search.best] for index, search in enumerate(searches)}
        tuning = pd.concat([search.frame() for search in searches], ignore_index=True)
    else:
        rates = dict.fromkeys(range(len(cells)), asked)
        tuning = pd.DataFrame()
    runs = [
        replace(cell, lr=rate, seed=seed)
        for index, cell in enumerate(cells)
        for rate in rates[index]
        for seed in seeds
    ]
    curves = pd.concat(runner.curves(runs, "runs"), ignore_index=True)
    runner.write_all("runs", "curves.csv")
    runner.write_all("rates", "tuning.csv")
    return StudyResult(curves, tuning)
