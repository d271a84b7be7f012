"""Run independent pieces of work on all cores: in order, with a bar, ended at once by Ctrl-C.

joblib is not used, because its worker processes outlive a parent that was killed (for minutes, with
joblib 1.5), and because it starts them however short the work is.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, TypeVar

from ddlnb.errors import require, require_whole
from ddlnb.progress import Show, bar
from ddlnb.provenance import cores

T = TypeVar("T")
JOBS_VARIABLE = "DDLNB_JOBS"
START_SECONDS = 6.0  # until new processes work: they load torch


def in_parallel(
    function: Callable[..., T],
    work: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    progress: Show = None,
    what: str = "runs",
) -> list[T]:
    """Return the results of calling the function with each of the tuples, in their order.

    One job runs in this process, several in new ones; by default there is one per core, or as many
    as the variable DDLNB_JOBS says, as in notebooks that `ddlnb reproduce` runs side by side. Since
    new processes need START_SECONDS to begin, work is done here until a piece shows that they would
    save more. The first error, or Ctrl-C, ends all of them and is raised. Raises InputError for a
    number of jobs that is not whole and positive.
    """
    jobs = default_jobs() if jobs is None else jobs
    require_whole(jobs=jobs)
    with bar(total=len(work), unit="run", desc=what, progress=progress if work else False) as runs:
        results = []
        for arguments in work:
            start = time.perf_counter()
            results.append(function(*arguments))
            runs.update()
            left = len(work) - len(results)
            saved = (time.perf_counter() - start) * (left - math.ceil(left / jobs))
            if jobs > 1 and saved > START_SECONDS:
                break
        rest = work[len(results) :]
        if rest:
            results += _in_processes(function, rest, min(jobs, len(rest)), runs.update)
        return results


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
    advance: Callable[[], object],
) -> list[T]:
    # Forked children of a process with threads, such as torch's, may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:  # from the first submission on, which starts processes: else they would do all the work
        futures = [pool.submit(function, *arguments) for arguments in work]
        for _ in _finished(futures):
            advance()
        return [future.result() for future in futures]
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finished(futures: Sequence[Future]) -> Iterator[Future]:
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()  # raises what the function raised
            yield future


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is killed; otherwise it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
