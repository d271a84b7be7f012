"""Nothing left behind: ends the processes and removes the folder of a set of ranks.

Run as a process of its own, beside the owner of the ranks, so that it outlives an owner that is
killed. It waits until its standard input ends, or its parent is another one than the owner; then
it kills every process of this user that carries the token in its environment.

It imports nothing of ddlnb: it has to be up before the first rank is.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

TOKEN_VARIABLE = "DDLNB_SESSION"
ALL_ENDED = b"ended\n"  # what an owner writes that starts nothing more

# An owner that dies between fork and exec leaves a process that gets its environment a moment
# later: the sweep is over only when nobody was found for this long.
QUIET_SECONDS = 1.0
LOOK_SECONDS = 0.5
CANCEL_SECONDS = 15.0  # for a queue that does not answer


def carriers(token: str) -> list[psutil.Process]:
    """Return the live processes that carry the token, wherever they were started from."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if carries(process, token) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def has_ended(process: psutil.Process) -> bool:
    """Return whether it runs no more: a dead one stays until its parent takes note of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def carries(process: psutil.Process, token: str) -> bool:
    """Return whether the process carries this token. Raises psutil.Error if it is not ours."""
    return process.environ().get(TOKEN_VARIABLE) == token


def clean(
    token: str,
    folder: str | os.PathLike,
    quiet_seconds: float = 0,
    cancel: Sequence[str] = (),
) -> None:
    """Kill every carrier until none is seen for quiet_seconds; then remove the folder.

    ``cancel`` is a command that takes back what a queue holds, before and after: the first time to
    end what runs, the second for a job that was submitted at the moment of the owner's death.
    """
    _run(cancel)
    quiet_until = time.monotonic() + quiet_seconds
    while (found := carriers(token)) or time.monotonic() < quiet_until:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if found:
            quiet_until = time.monotonic() + quiet_seconds
        time.sleep(0.02)
    _run(cancel if quiet_seconds else ())
    for place in (shared_memory(folder), folder):
        shutil.rmtree(place, ignore_errors=True)


def shared_memory(folder: str | os.PathLike) -> Path:
    """Return the folder of shared memory that goes with the folder of a set of ranks."""
    return Path("/dev/shm", Path(folder).name)


def _run(command: Sequence[str]) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if command:
            subprocess.run(command, capture_output=True, timeout=CANCEL_SECONDS, check=False)


def wait_for_owner(owner_pid: int) -> bool:
    """Return when the owner is done or gone: True if it said that it ended everything itself."""
    while True:
        readable, _, _ = select.select([0], [], [], LOOK_SECONDS)
        if readable:
            return os.read(0, len(ALL_ENDED)) == ALL_ENDED
        # A forked child of the owner may hold the other end of the pipe open after its death.
        if os.getppid() != owner_pid:
            return False


def main(token: str, owner_pid: int, folder: str, *cancel: str) -> None:
    """Wait for the owner, then clean up after it."""
    clean(token, folder, 0 if wait_for_owner(owner_pid) else QUIET_SECONDS, cancel)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
