"""Reading a trace, whichever tool wrote it."""

from __future__ import annotations

from pathlib import Path

from ddlnb.errors import InputError
from ddlnb.traces.jobs.table import Job, read_job

KNOWN = "a job's table of operations (.csv or .csv.gz)"


def read_trace(path: str | Path) -> Job:
    """Return what a trace file holds, as the tool that wrote it deserves.

    A table of all operations of a job becomes a ``Job``, which ``ddlnb.what_if`` replays. Times are
    seconds. Raises InputError for a file that cannot be read or that none of these tools wrote.

    >>> import ddlnb
    >>> ddlnb.read_trace("data/published/traces/bytedance-trace-ST.csv.gz")
    Job('bytedance-trace-ST', 6,784 operations, 32 iterations, 2 data-parallel ranks x 4 stages)
    """
    path = Path(path)
    if path.name.removesuffix(".gz").endswith(".csv"):
        return read_job(path)
    raise InputError(f"{str(path)!r} is no trace that is known; give {KNOWN}")
