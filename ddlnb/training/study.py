"""Many runs: methods, workers and seeds, each method at a learning rate of its own.

Every finished run is a file, written whole, so that a study which was stopped goes on where it was.
Learning rates are tuned with the same small budget for every method: RATE_FACTORS around the
optimizer's first guess, half the steps, one seed that is not used again; while the best rate is at
an end of the rates tried, one more is tried beyond it, up to EXTENSIONS more. The rate with the
least final test loss is taken, the smaller one of equals.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import ResultsError, require, require_whole
from ddlnb.files import write_atomically
from ddlnb.training.clock import Clock
from ddlnb.training.learning_task import LearningTask
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.optimizers import default_rate
from ddlnb.training.parallel_runs import in_parallel
from ddlnb.training.runs import final_loss
from ddlnb.training.splits import get_split
from ddlnb.training.summaries import summary
from ddlnb.training.tasks import LEARNING_TASKS, get_learning_task
from ddlnb.training.train import train

if TYPE_CHECKING:
    import pandas as pd

RATE_SPACING = 3.0
RATE_FACTORS = (RATE_SPACING**-2, RATE_SPACING**-1, 1.0, RATE_SPACING)
EXTENSIONS = 4
TUNING_SEED = 1_000_003
TUNING_SHARE = 0.5  # of the steps
OPTIONS = ("local_batch", "optimizer", "schedule", "split", "clock", "evaluate_every")


@dataclass(frozen=True)
class Run:
    """The arguments of one call of `train`; ``method`` as text."""

    task: LearningTask
    method: str
    workers: int
    steps: int
    lr: float
    seed: int
    local_batch: int | None = None
    optimizer: str = "sgd"
    schedule: str = "constant"
    split: str = "iid"
    clock: Clock | None = None
    evaluate_every: int | None = None

    def curve(self) -> pd.DataFrame:
        """What `train` returns."""
        return train(**{one.name: getattr(self, one.name) for one in fields(self)})

    @property
    def key(self) -> str:
        """A name for the run's file: equal for equal arguments, also in another process."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        # Catalogued tasks go by name; what a caller makes has no name to rely on.
        catalogued = LEARNING_TASKS.get(self.task.name) == self.task
        plain["task"] = self.task.name if catalogued else _fingerprint(self.task)
        plain["clock"] = None if self.clock is None else _fingerprint(self.clock)
        text = json.dumps(plain, sort_keys=True)
        return f"{self.task.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _fingerprint(thing: object) -> str:
    try:
        return hashlib.sha256(pickle.dumps(thing)).hexdigest()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        require(
            False,
            f"{thing!r} cannot travel to other processes ({error}); make it of functions of a "
            f"module and functools.partial",
        )
        raise


@dataclass(frozen=True, eq=False)
class StudyResult:
    """``curves``: one row per evaluation of every run. ``tuning``: one row per rate tried."""

    curves: pd.DataFrame
    tuning: pd.DataFrame

    def summary(self, target: float | None = None) -> pd.DataFrame:
        """One row per method and setting: see `summaries.summary`."""
        return summary(self.curves, target)


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
    same call goes on after an interruption; without one nothing is kept. ``jobs`` processes run
    them, each with one thread; by default as many as there are cores. Raises UnknownName and
    InputError, and ResultsError for a folder whose files were damaged.
    """
    import pandas as pd

    task = get_learning_task(task)
    chosen = [str(training_method(method)) for method in methods]
    require(bool(chosen), "a study needs at least one method")
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    require(bool(seeds), "a study needs at least one seed")
    require(TUNING_SEED not in seeds, f"seed {TUNING_SEED} is the one for tuning; take another")
    require(not (tune and lr is not None), f"tune finds learning rates; leave out {lr}")
    counts = [workers] if isinstance(workers, int) else list(workers)
    require_whole(steps=steps)
    unknown = sorted(set(options) - set(OPTIONS))
    require(not unknown, f"unknown options {unknown}; choose among {', '.join(OPTIONS)}")
    options["split"] = str(get_split(options.get("split", "iid")))
    runner = _Runner(None if folder is None else Path(folder), jobs, progress)

    base = default_rate(task, options.get("optimizer", "sgd"))
    cells = [
        Run(task, method, count, steps, base, 0, **options)
        for method in dict.fromkeys(chosen)
        for count in counts
    ]
    rates: dict[int, list[float]]
    if tune:
        searches = _tuned(cells, base, runner)
        rates = {index: [search.best] for index, search in enumerate(searches)}
        tuning = pd.concat([search.frame() for search in searches], ignore_index=True)
    else:
        asked = [base] if lr is None else [lr] if isinstance(lr, int | float) else list(lr)
        rates = dict.fromkeys(range(len(cells)), asked)
        tuning = pd.DataFrame()
    runs = [
        replace(cell, lr=rate, seed=seed)
        for index, cell in enumerate(cells)
        for rate in rates[index]
        for seed in seeds
    ]
    curves = pd.concat(runner.curves(runs, "runs"), ignore_index=True)
    if runner.folder is not None:
        write_atomically(runner.folder / "curves.csv", curves.to_csv(index=False))
        write_atomically(runner.folder / "tuning.csv", tuning.to_csv(index=False))
    return StudyResult(curves, tuning)


@dataclass
class _Search:
    """The rates tried for one method, and what came out."""

    cell: Run
    losses: dict[float, float] = field(default_factory=dict)  # final test loss; inf if diverged

    @property
    def best(self) -> float:
        """The rate with the least loss."""
        return min(sorted(self.losses), key=self.losses.__getitem__)

    def next(self) -> float | None:
        """A rate beyond the end at which the best one is; None when there is nothing to look for.

        Where every rate diverged, the best is the smallest one, so that smaller ones are tried.
        """
        if len(self.losses) >= len(RATE_FACTORS) + EXTENSIONS:
            return None
        if self.best == min(self.losses):
            return self.best / RATE_SPACING
        return self.best * RATE_SPACING if self.best == max(self.losses) else None

    def frame(self) -> pd.DataFrame:
        """One row per rate tried."""
        import pandas as pd

        cell = self.cell
        rows = [
            {
                "task": cell.task.name,
                "method": cell.method,
                "workers": cell.workers,
                "optimizer": cell.optimizer,
                "steps": cell.steps,
                "seed": cell.seed,
                "learning_rate": rate,
                "test_loss": loss,
                "chosen": rate == self.best,
            }
            for rate, loss in sorted(self.losses.items())
        ]
        return pd.DataFrame(rows)


def _tuned(cells: Iterable[Run], base: float, runner: _Runner) -> list[_Search]:
    searches = [
        _Search(replace(cell, steps=max(1, round(TUNING_SHARE * cell.steps)), seed=TUNING_SEED))
        for cell in cells
    ]
    waiting = [(search, base * factor) for search in searches for factor in RATE_FACTORS]
    while waiting:
        runs = [replace(search.cell, lr=rate) for search, rate in waiting]
        for (search, rate), curve in zip(waiting, runner.curves(runs, "tuning"), strict=True):
            search.losses[rate] = final_loss(curve)
        further = [(search, search.next()) for search in searches]
        waiting = [(search, rate) for search, rate in further if rate is not None]
    return searches


def tuned_rate(run: Run) -> tuple[float, pd.DataFrame]:
    """The rate found for these settings, its own being the first guess, and one row per rate tried.

    All in this process, and nothing is kept.
    """
    [search] = _tuned([run], run.lr, _Runner(None, 1, False))
    return search.best, search.frame()


@dataclass
class _Runner:
    """Runs what has not been run, in other processes, and keeps it."""

    folder: Path | None
    jobs: int | None
    progress: bool

    def curves(self, runs: Sequence[Run], what: str) -> list[pd.DataFrame]:
        """The curves of the runs, in their order."""
        paths = [self.folder and self.folder / "runs" / f"{run.key}.json" for run in runs]
        found: list[pd.DataFrame | None] = [
            _read(path) if path is not None and path.exists() else None for path in paths
        ]
        missing = [index for index, curve in enumerate(found) if curve is None]
        work = [(runs[index], paths[index]) for index in missing]
        done = in_parallel(run_and_keep, work, self.jobs, self.progress, what)
        for index, text in zip(missing, done, strict=True):
            found[index] = _parsed(text)
        return [curve for curve in found if curve is not None]


def run_and_keep(run: Run, path: Path | None) -> str:
    """The columns of a run's curve as JSON, which are also what the file then holds."""
    text = json.dumps(run.curve().to_dict("list"))  # unlike CSV it gives back the same bits
    if path is not None:
        write_atomically(path, text)
    return text


def _parsed(text: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(json.loads(text))


def _read(path: Path) -> pd.DataFrame:
    try:
        curve = _parsed(path.read_text())
        curve.iloc[-1][["test_loss", "diverged"]]
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ResultsError(
            f"{path} cannot be read as a curve ({error}); remove it to run it again"
        ) from error
    return curve
