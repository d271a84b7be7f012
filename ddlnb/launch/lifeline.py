"""Ranks on other machines: they end with their owner, and neighbours are numbered in a row.

Where the reaper (see reaper.py) cannot reach, every rank holds a lifeline: a connection to its
owner over which nothing is ever sent. It breaks when the owner lets go, and when it dies; then the
rank ends at once, also in the midst of a collective, and takes its folder with it.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")

# A machine that loses its power closes no connection: asked every so often, it does not answer.
_PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, times


class Lifeline:
    """The owner's end of the lifelines of its ranks.

    Connections are never accepted: the system keeps them in the queue, and breaks them all when
    the listener is closed, which a death does too.
    """

    def __init__(self, host: str, count: int):
        self._listener = socket.create_server((host, 0), backlog=count)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as hold() takes them."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Let go: every rank that holds on ends. Safe to call twice."""
        self._listener.close()


def hold(folder: str, host: str, port: int) -> tuple[str, int]:
    """Make this process end with its owner; the name of its machine, and its number in the job.

    Called once in every rank. OSError if the owner cannot be reached. The number is that of a
    Slurm task, which counts machine by machine, and 0 where there is none.
    """
    line = socket.create_connection((host, port), timeout=30)
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        with suppress(AttributeError, OSError):  # not on every system
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    threading.Thread(target=_end_with_owner, args=(line, folder), daemon=True).start()
    return platform.node(), int(os.environ.get("SLURM_PROCID", 0))


def _end_with_owner(line: socket.socket, folder: str) -> None:
    with suppress(OSError):
        line.recv(1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def neighbours_together(items: Sequence[Item], slots: Sequence[tuple[str, int]]) -> list[Item]:
    """Return the items machine by machine, by their numbers there; machines as they came first.

    Ranks are numbered in the order of this list: a ring then leaves each machine once, and
    ranks of one machine take different GPUs.

    >>> neighbours_together("abcd", [("n1", 3), ("n2", 2), ("n1", 1), ("n2", 0)])
    ['d', 'b', 'c', 'a']
    """
    first: dict[str, int] = {}
    for machine, number in slots:
        first[machine] = min(number, first.get(machine, number))
    came = list(first)
    keys = [(first[machine], came.index(machine), number) for machine, number in slots]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]
