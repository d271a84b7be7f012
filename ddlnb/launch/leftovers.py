"""What crashed sessions left on this machine: found by their tokens, and removed.

A session is a set of started ranks, or a process with a temporary folder. The reaper of ranks (see
reaper.py) cleans up even after an owner that was killed; where it was killed as well, or there was
none, the next command sweeps. What may be another machine's is removed on request only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from ddlnb.files import OWNER, abandoned, is_abandoned
from ddlnb.launch import reaper

SHARED_MEMORY = Path("/dev/shm")
END_SECONDS = 5.0  # in which killed processes end
START_SECONDS = 600.0  # so young, a folder that names no owner may belong to ranks that start
_NAME = re.compile(r"ddlnb[-_]([0-9a-f]{12})")  # of folders and shared memory: the token's start
_TOKEN = re.compile(r"[0-9a-f]{32}$")
_SHORT = 12


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

    A session lives if its reaper does, or if one of its processes is connected to a process that is
    not one of them: to its owner, here or on another machine.
    """
    sessions, reaped = _sessions()
    connected = {token for token, members in sessions.items() if _is_connected(members)}
    living = {token[:_SHORT] for token in reaped | connected}
    found = [
        Leftover(token[:_SHORT], "process", f"{member.pid} ({_command(member)})", process=member)
        for token, members in sessions.items()
        if token[:_SHORT] not in living
        for member in members
    ]
    for session, kind, path in _named(Path(temporary or tempfile.gettempdir())):
        if session not in living and not (kind == "folder" and _may_be_used(path)):
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


def _sessions() -> tuple[dict[str, list[psutil.Process]], set[str]]:
    """Return processes by their token, and the tokens that a living reaper takes care of."""
    members, reaped = defaultdict(list), set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            token = process.environ().get(reaper.TOKEN_VARIABLE, "")
            if _TOKEN.match(token) and process.status() != psutil.STATUS_ZOMBIE:
                members[token].append(process)
                continue
            for word, following in pairwise(process.cmdline()):
                if Path(word).name == Path(reaper.__file__).name and _TOKEN.match(following):
                    reaped.add(following)
    return dict(members), reaped


def _is_connected(members: list[psutil.Process]) -> bool:
    """Return whether one of them is connected to a process that is none of them."""
    near, far = set(), set()
    for member in members:
        with contextlib.suppress(psutil.Error):
            for line in member.net_connections("tcp"):
                if line.status == psutil.CONN_ESTABLISHED:
                    near.add(line.laddr)
                    far.add(line.raddr)
    return bool(far - near)


def _named(temporary: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield session, kind and path of this user's folders and shared memory named after one."""
    for kind, place in (("folder", temporary), ("shared memory", SHARED_MEMORY)):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            with contextlib.suppress(OSError):
                is_ours = path.lstat().st_uid == os.geteuid() and (
                    path.is_dir() or kind != "folder"
                )
                if is_ours and (session := _NAME.search(path.name)):
                    yield session[1], kind, path


def _may_be_used(folder: Path) -> bool:
    """Return whether an owner may live, also on another machine that shares this folder."""
    with contextlib.suppress(OSError):
        is_old = time.time() - folder.stat().st_mtime > START_SECONDS
        return not is_abandoned(folder) if (folder / OWNER).exists() else not is_old
    return True  # it is just being removed


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return " ".join([Path(words[0]).name, *words[1:]])[:60] if words else process.name()
    return "?"
