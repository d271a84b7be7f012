"""Loops that numba compiles: once per installation, since it keeps them on disk, and it is said.

Compiling the event loop takes some ten seconds, longer than most answers. So the first of our loops
that a process has to compile says on a terminal what the seconds are for.
"""

from __future__ import annotations

import sys
from functools import partial
from multiprocessing import parent_process
from typing import Any

from numba import njit
from numba.core import event as events

NOTICE = "ddlnb compiles its loops, once after an installation; this takes up to half a minute."

# Without the interpreter's lock, so that threads play at the same time.
compiled = partial(njit, cache=True, nogil=True)


class _Notice(events.Listener):
    """Prints NOTICE once, at the first loop of ours that is not in numba's cache."""

    def __init__(self) -> None:
        self.is_said = parent_process() is not None  # children of a pool leave it to their parent

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__ or ""
        if not self.is_said and module.startswith("ddlnb.") and sys.stderr.isatty():
            self.is_said = True
            sys.stderr.write(f"{NOTICE}\n")

    def on_end(self, event: Any) -> None:
        """Say nothing: the answer follows."""


events.register("numba:compile", _Notice())
