"""Whether a process still runs."""

import psutil


def is_running(pid: int) -> bool:
    """Whether a process is there and not dead: process 1 takes note of dead ones when it likes."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
