"""A lock on a results file: two measurements at once would run all twice, and time each other.

The kernel holds the lock, on a file beside the results, and drops it when its process ends, however
it ends: what a dead process held is free.
"""

from __future__ import annotations

import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ddlnb.errors import NotWritten, ResultsError


@contextmanager
def held(path: str | Path | None) -> Iterator[None]:
    """Keep other processes from measuring into the same file; None is no file.

    Raises ResultsError that names who holds it. Where the file system knows no locks, a warning
    says so.
    """
    if path is None:
        yield
        return
    beside = lock_path(path)
    lock = _taken(beside, Path(path))
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)  # while it is locked: nobody can hold one that is gone
        os.close(lock)


def lock_path(path: str | Path) -> Path:
    """Return the path of the file that is locked while somebody measures into this one."""
    return Path(path).with_name(f".{Path(path).name}.lock")


def _taken(beside: Path, path: Path) -> int:
    """Return the open lock file, which now says that this process holds it."""
    while True:
        try:
            lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise NotWritten(f"{beside} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 1000, 0).decode(errors="replace").strip()
            os.close(lock)
            raise ResultsError(
                f"{path} is being written by {holder or 'another process'}; wait until it has "
                f"ended, or write into another file"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{beside} cannot be locked ({error.strerror}): start no second measurement into "
                f"{path.name}",
                UserWarning,
                stacklevel=4,
            )
        if _is_at(lock, beside):
            os.ftruncate(lock, 0)
            os.pwrite(lock, _this_process().encode(), 0)
            return lock
        os.close(lock)  # whoever held it removed it after we had opened it


def _is_at(lock: int, beside: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), beside.stat())
    except FileNotFoundError:
        return False


def _this_process() -> str:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}\n"
