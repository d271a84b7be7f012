"""What crashed sessions left on this machine: found by their tokens, and removed.

A session is a set of started ranks, or a process with a temporary folder. The reaper of ranks (see
reaper.py) cleans up even after an owner that was killed; where it was killed as well, or there was
none, the next command sweeps.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddlnb.files import abandoned, is_abandoned
from ddlnb.launch import reaper

SHARED_MEMORY = Path("/dev/shm")
END_SECONDS = 5.0  # in which killed processes end
_NAME = re.compile(r"ddlnb[-_]([0-9a-f]{12})")  # of folders and shared memory: the token's start


@dataclass(frozen=True)
class Leftover:
    """One thing that no living session owns; ``session`` is the start of its token."""

    session: str
    kind: str  # "process", "folder" or "shared memory"
    name: str
    process: psutil.Process | None = None
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def find(temporary: str | Path | None = None) -> list[Leftover]:
    """Return processes, temporary folders and shared memory of sessions that are over.

    A session lives as long as its owner, which holds a lock in its folder; one that an owner on
    another machine may have claimed counts as living.
    """
    found, living = [], set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            variables = process.environ()
            folder = Path(variables.get("IPYTHONDIR", ""))
            named = reaper.TOKEN_VARIABLE in variables and _NAME.search(folder.name)
            words = " ".join(process.cmdline())[:60]  # none if it is just ending
            if named and words and not reaper.has_ended(process):
                if not is_abandoned(folder):
                    living.add(named[1])
                else:
                    found.append(Leftover(named[1], "process", f"{process.pid} ({words})", process))
    for session, kind, path in _named(Path(temporary or tempfile.gettempdir())):
        if kind == "folder" and not is_abandoned(path):
            living.add(session)
        elif session not in living:
            found.append(Leftover(session, kind, str(path), path=path))
    return found


def sweep() -> list[Leftover]:
    """Remove and return what sessions left whose owner died here: the kernel has its lock free."""
    dead = {named[1] for folder in abandoned() if (named := _NAME.search(folder.name))}
    return remove(one for one in find() if one.session in dead) if dead else []


def remove(leftovers: Iterable[Leftover]) -> list[Leftover]:
    """Remove them and return those that are gone; what belongs to another user may stay."""
    listed = sorted(leftovers, key=lambda leftover: leftover.kind != "process")  # processes first
    processes = [leftover.process for leftover in listed if leftover.process is not None]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + END_SECONDS
    while not all(map(reaper.has_ended, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    for leftover in listed:
        with contextlib.suppress(OSError):
            if leftover.path is not None and leftover.path.is_dir():
                shutil.rmtree(leftover.path)
            elif leftover.path is not None:
                leftover.path.unlink()
    return [
        leftover
        for leftover in listed
        if (leftover.process is None or reaper.has_ended(leftover.process))
        and (leftover.path is None or not leftover.path.exists())
    ]


def _named(temporary: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield session, kind and path of this user's folders and shared memory named after one."""
    for kind, place in (("folder", temporary), ("shared memory", SHARED_MEMORY)):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            with contextlib.suppress(OSError):
                is_ours = path.lstat().st_uid == os.geteuid()
                if is_ours and (session := _NAME.search(path.name)):
                    yield session[1], kind, path
