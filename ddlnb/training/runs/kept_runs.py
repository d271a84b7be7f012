"""Keep finished runs: each is a file, written whole, so that a comparison goes on where it stopped.

The name of a file is a hash of the settings and of the code that made it
(`ddlnb.training.runs.code_digest`), so that a run of other code is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError
from ddlnb.files import write_atomically
from ddlnb.progress import Show
from ddlnb.training.runs.code_digest import fingerprint, made_by
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.runs.train import run
from ddlnb.training.settings import TrainingSettings
from ddlnb.training.tasks.catalogue import LEARNING_TASKS

if TYPE_CHECKING:
    import pandas as pd


def key(settings: TrainingSettings) -> str:
    """Return the name of the run's file: equal for equal settings and code, in any process."""
    task, clock = settings.task, settings.clock
    # Catalogued tasks go by name; what a caller makes has no name to rely on.
    catalogued = LEARNING_TASKS.get(task.name) == task
    # Classes of the package are part of made_by; those that a user registered are not.
    choices = (settings.method.synchronisation, settings.method.compressor)
    kinds = [type(one) for one in choices if one is not None]
    outside = [fingerprint(kind) for kind in kinds if not kind.__module__.startswith("ddlnb.")]
    plain = settings.columns() | {
        "task": task.name if catalogued else fingerprint(task),
        "steps": settings.steps,
        "evaluate_every": settings.every,
        "clock": None if clock is None else fingerprint(clock),
        "made_by": made_by(),
        **({"outside": outside} if outside else {}),
    }
    text = json.dumps(plain, sort_keys=True)
    return f"{task.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass
class Runner:
    """Makes the runs that are missing, in other processes, and keeps them if there is a folder."""

    folder: Path | None = None
    jobs: int | None = None
    progress: Show = None

    def curves(self, runs: Sequence[TrainingSettings], what: str) -> list[pd.DataFrame]:
        """Return the curves of the runs, in their order; ``what`` names them, and their folder."""
        paths = [self._path(what, one) for one in runs]
        found: list[pd.DataFrame | None] = [
            _read(path) if path is not None and path.exists() else None for path in paths
        ]
        missing = [index for index, curve in enumerate(found) if curve is None]
        work = [(runs[index], paths[index]) for index in missing]
        done = in_parallel(run_and_keep, work, self.jobs, self.progress, what)
        for index, text in zip(missing, done, strict=True):
            found[index] = _parsed(text)
        return [curve for curve in found if curve is not None]

    def keep(self, table: pd.DataFrame, cell: TrainingSettings, what: str) -> None:
        """Keep a table that belongs to these settings."""
        if (path := self._path(what, cell)) is not None:
            write_atomically(path, _written(table))

    def write_all(self, what: str, name: str) -> None:
        """Write all that is kept under ``what``, of this call and others, as one CSV file."""
        import pandas as pd

        if self.folder is None:
            return
        kept = [_read(path) for path in sorted((self.folder / what).glob("*.json"))]
        if kept:
            text = pd.concat(kept, ignore_index=True).to_csv(index=False)
            write_atomically(self.folder / name, text)

    def _path(self, what: str, settings: TrainingSettings) -> Path | None:
        return None if self.folder is None else self.folder / what / f"{key(settings)}.json"


def run_and_keep(settings: TrainingSettings, path: Path | None) -> str:
    """Return the columns of the run's curve as JSON, which is also what the file then holds."""
    text = _written(run(settings))
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
