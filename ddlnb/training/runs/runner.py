"""Make runs on all cores or other machines, and save them: a comparison goes on where it stopped.

Runs are independent pieces of work: done in order, with a bar, ended at once by Ctrl-C. joblib is
not used, because its worker processes outlive a parent that was killed (for minutes, with joblib
1.5), and because it starts them however short the work is.

A finished run is a file, written whole. Its name is a hash of the settings and of the code that
made it (`ddlnb.training.runs.train`), so that a run of other code is made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlnb.errors import (
    RankError,
    ResultsError,
    reason_of,
    require,
    require_whole,
)
from ddlnb.files import JOBS_VARIABLE, cores, write_atomically
from ddlnb.progress import Show, bar
from ddlnb.reading import json_of, read_text, reading
from ddlnb.training.runs.fingerprint import fingerprint
from ddlnb.training.runs.train import made_by, run
from ddlnb.training.settings import TrainingSettings
from ddlnb.training.tasks.catalogue import LEARNING_TASKS
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.rank import RankContext
    from ddlnb.launch.ranks import Ranks

T = TypeVar("T")
Kept = Callable[[int, Any], object]
A_WEEK = 7 * 86_400.0  # nobody knows how long a piece of work takes on other machines
START_SECONDS = 6.0  # until new processes work: they load torch


def in_parallel(
    function: Callable[..., T],
    work: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    progress: Show = None,
    what: str = "runs",
    kept: Kept | None = None,
) -> list[T]:
    """Return the results of calling the function with each of the tuples, in their order.

    ``kept`` is called here with the number and the result of each piece as soon as it is there.
    After `hand_to`, the ranks that it was given do the work, in waves of a piece each. Without, one
    job runs in this process, several in new ones; by default there is one per core, or as many
    as the variable DDLNB_JOBS says, as in notebooks that `ddlnb survey reproduce` runs side by
    side. Since new processes need START_SECONDS to begin, work is done here until a piece shows
    that they would save more. The first error, or Ctrl-C, ends all of them and is raised. Raises
    InputError for a number of jobs that is not whole and positive.
    """
    jobs = default_jobs() if jobs is None else jobs
    require_whole(jobs=jobs)

    def done(number: int, result: T) -> None:
        if kept is not None:
            kept(number, result)
        runs.update()

    with bar(total=len(work), unit="run", desc=what, progress=progress if work else False) as runs:
        if _handed_to:
            return _on_ranks(_handed_to[-1], function, work, done)
        results: list[T] = []
        for arguments in work:
            start = time.perf_counter()
            results.append(function(*arguments))
            done(len(results) - 1, results[-1])
            left = len(work) - len(results)
            saved = (time.perf_counter() - start) * (left - math.ceil(left / jobs))
            if jobs > 1 and saved > START_SECONDS:
                break
        begun = len(results)
        if rest := work[begun:]:
            later = partial(_later, done, begun)
            results += _in_processes(function, rest, min(jobs, len(rest)), later)
        return results


def _later(done: Kept, begun: int, number: int, result: Any) -> None:
    done(begun + number, result)


_handed_to: list[Ranks] = []


def hand_to(ranks: Ranks | None) -> None:
    """Hand all work of `in_parallel` to these ranks from now on; None: to this machine's cores.

    What was handed work before is closed.
    """
    while _handed_to:
        _handed_to.pop().close()
    _handed_to.extend([] if ranks is None else [ranks])


def _on_ranks(
    ranks: Ranks, function: Callable[..., T], work: Sequence[tuple[Any, ...]], done: Kept
) -> list[T]:
    """Return the results of as many pieces at a time as there are ranks."""
    results: list[T] = []
    for first in range(0, len(work), ranks.count):
        pieces = work[first : first + ranks.count]
        wave = ranks.run(_piece, function, pieces, count=len(pieces), timeout_seconds=A_WEEK)
        for place, (result, failure) in enumerate(wave):
            results.append(result)
            if not failure:
                done(first + place, result)
        if failed := [f"rank {place}: {said}" for place, (_, said) in enumerate(wave) if said]:
            raise RankError(f"{counted(len(failed), 'piece')} of work failed, {failed[0]}")
    return results


def _piece(context: RankContext, function: Callable[..., T], pieces: Sequence[Any]) -> Any:
    """Return the result of this rank's piece, or what went wrong: others of the wave are kept."""
    try:
        return function(*pieces[context.rank]), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {reason_of(error)}"


def default_jobs() -> int:
    """Return the value of DDLNB_JOBS, by default the number of cores. Raises InputError."""
    said = os.environ.get(JOBS_VARIABLE, "")
    require(
        not said or (said.isdecimal() and int(said) > 0),
        f"{JOBS_VARIABLE} {said!r} must be a whole number of jobs, at least 1",
    )
    return int(said) if said else cores()


def _in_processes(
    function: Callable[..., T],
    work: Sequence[tuple[Any, ...]],
    jobs: int,
    done: Kept,
) -> list[T]:
    # Forked children of a process with threads, such as torch's, may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:  # from the first submission on, which starts processes: else they would do all the work
        futures = [pool.submit(function, *arguments) for arguments in work]
        number = {future: place for place, future in enumerate(futures)}
        for future in as_completed(futures):
            done(number[future], future.result())  # which raises what the function raised
        return [future.result() for future in futures]
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# Saved runs.


def key(settings: TrainingSettings) -> str:
    """Return the name of the run's file: equal for equal settings and code, in any process."""
    task, clock = settings.task, settings.clock
    # Catalogued tasks go by name; what a caller makes has no name to rely on.
    catalogued = LEARNING_TASKS.get(task.name) == task
    # Classes of the package are part of made_by; those that a user registered are not.
    method = settings.method
    of_method = (method.synchronisation, method.compressor)
    choices = (*of_method, settings.optimizer, settings.schedule, settings.split)
    kinds = [type(one) for one in choices if one is not None]
    outside = [fingerprint(kind) for kind in kinds if not kind.__module__.startswith("ddlnb.")]
    plain = settings.columns() | {
        "task": task.name if catalogued else fingerprint(task),
        "steps": settings.steps,
        "evaluate_every": settings.every,
        "clock": None if clock is None else fingerprint(clock),
        "made_by": made_by(task),
        **({"outside": outside} if outside else {}),
    }
    text = json.dumps(plain, sort_keys=True)
    return f"{task.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass
class Runner:
    """Makes the runs that are missing, in other processes, and saves them if there is a folder."""

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
        work = [(runs[index],) for index in missing]

        def keep(number: int, text: str) -> None:
            if (path := paths[missing[number]]) is not None:
                write_atomically(path, text)

        made = in_parallel(run_as_text, work, self.jobs, self.progress, what, keep)
        for index, text in zip(missing, made, strict=True):
            found[index] = _parsed(text)
        return [curve for curve in found if curve is not None]

    def save(self, table: pd.DataFrame, cell: TrainingSettings, what: str) -> None:
        """Save a table that belongs to these settings."""
        if (path := self._path(what, cell)) is not None:
            write_atomically(path, _written(table))

    def write_all(self, what: str, name: str) -> None:
        """Write all that is saved under ``what``, of this call and others, as one CSV file."""
        import pandas as pd

        if self.folder is None:
            return
        files = sorted((self.folder / what).glob("*.json"))
        kept = [_read(path).assign(run=path.stem) for path in files]
        if kept:
            text = pd.concat(kept, ignore_index=True).to_csv(index=False)
            write_atomically(self.folder / name, text)

    def _path(self, what: str, settings: TrainingSettings) -> Path | None:
        return None if self.folder is None else self.folder / what / f"{key(settings)}.json"


def run_as_text(settings: TrainingSettings) -> str:
    """Return the columns of the run's curve as JSON, which is also what its file holds."""
    return _written(run(settings))


def _written(table: pd.DataFrame) -> str:
    return json.dumps(table.to_dict("list"))  # unlike CSV it gives back the same bits


def _parsed(text: str, place: object = "a run") -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(json_of(text, place, "move it away to run it again", ResultsError))


def _read(path: Path) -> pd.DataFrame:
    with reading(f"saved run {path}", "move it away to run it again", ResultsError):
        table = _parsed(read_text(path), path)
        table.iloc[-1][["task", "method", "learning_rate"]]
    return table
