"""Runs as values, and runs that are kept: every finished one is a file, written whole.

A study that was stopped goes on where it was. The name of a file is a hash of the arguments and of
the code that made it (`ddlnb.training.runs.code_digest`), so that a run of other code is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError, require_whole
from ddlnb.files import write_atomically
from ddlnb.training.executors.clock import Clock
from ddlnb.training.job import learning_job
from ddlnb.training.runs.code_digest import fingerprint, made_by
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.runs.train import require_executor, train
from ddlnb.training.tasks.catalogue import LEARNING_TASKS
from ddlnb.training.tasks.task import LearningTask

if TYPE_CHECKING:
    import pandas as pd


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
    executor: str = "lockstep"

    def check(self) -> None:
        """Raise what can be said before it runs: UnknownName, InputError, MissingPart."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        clock, executor = settings.pop("clock"), settings.pop("executor")
        if (every := settings.pop("evaluate_every")) is not None:
            require_whole(evaluate_every=every)
        require_executor(executor, learning_job(**settings).method, clock)

    def curve(self) -> pd.DataFrame:
        """What `train` returns."""
        return train(**{one.name: getattr(self, one.name) for one in fields(self)})

    @property
    def key(self) -> str:
        """A name for the run's file: equal for equal arguments and code, in any process."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        # Catalogued tasks go by name; what a caller makes has no name to rely on.
        catalogued = LEARNING_TASKS.get(self.task.name) == self.task
        plain["task"] = self.task.name if catalogued else fingerprint(self.task)
        plain["clock"] = None if self.clock is None else fingerprint(self.clock)
        text = json.dumps(plain | {"made_by": made_by()}, sort_keys=True)
        return f"{self.task.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass
class Runner:
    """Runs what has not been run, in other processes, and keeps it, if there is a folder."""

    folder: Path | None = None
    jobs: int | None = None
    progress: bool = False

    def curves(self, runs: Sequence[Run], what: str) -> list[pd.DataFrame]:
        """The curves of the runs, in their order; ``what`` names them, and their folder."""
        paths = [self._path(what, run) for run in runs]
        found: list[pd.DataFrame | None] = [
            _read(path) if path is not None and path.exists() else None for path in paths
        ]
        missing = [index for index, curve in enumerate(found) if curve is None]
        work = [(runs[index], paths[index]) for index in missing]
        done = in_parallel(run_and_keep, work, self.jobs, self.progress, what)
        for index, text in zip(missing, done, strict=True):
            found[index] = _parsed(text)
        return [curve for curve in found if curve is not None]

    def keep(self, table: pd.DataFrame, run: Run, what: str) -> None:
        """Keep a table that belongs to the run."""
        if (path := self._path(what, run)) is not None:
            write_atomically(path, _written(table))

    def write_all(self, what: str, name: str) -> None:
        """Write all that is kept under ``what``, of this call and others, as one CSV."""
        import pandas as pd

        if self.folder is None:
            return
        kept = [_read(path) for path in sorted((self.folder / what).glob("*.json"))]
        if kept:
            text = pd.concat(kept, ignore_index=True).to_csv(index=False)
            write_atomically(self.folder / name, text)

    def _path(self, what: str, run: Run) -> Path | None:
        return None if self.folder is None else self.folder / what / f"{run.key}.json"


def run_and_keep(run: Run, path: Path | None) -> str:
    """The columns of a run's curve as JSON, which are also what the file then holds."""
    text = _written(run.curve())
    if path is not None:
        write_atomically(path, text)
    return text


def _written(table: pd.DataFrame) -> str:
    return json.dumps(table.to_dict("list"))  # unlike CSV it gives back the same bits


def _parsed(text: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(json.loads(text))


def _read(path: Path) -> pd.DataFrame:
    try:
        table = _parsed(path.read_text())
        table.iloc[-1][["task", "method", "learning_rate"]]
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ResultsError(
            f"{path} cannot be read as a kept run ({error}); remove it to run it again"
        ) from error
    return table
