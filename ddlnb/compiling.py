"""Loops that numba compiles: once per installation, since it keeps them on disk, and it is said.

Compiling the event loop takes some ten seconds, longer than most answers. So the first of our loops
that a process has to compile says on a terminal what the seconds are for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import parent_process
from typing import Any, TypeVar
from warnings import warn

from numba import njit
from numba.core import event as events

F = TypeVar("F", bound=Callable[..., Any])
UNKEPT = (
    "compiled loops are kept nowhere, and every command compiles them: set NUMBA_CACHE_DIR to a "
    "folder that takes files"
)
NOTICE = "ddlnb compiles its loops, once after an installation; this takes up to half a minute."


def compiled(**options: Any) -> Callable[[F], F]:
    """Return a decorator of loops: without the interpreter's lock, so that threads play at once.

    Where neither the package nor HOME takes a file, as in a container that may only be read, they
    are compiled in every process, and it is said.
    """

    def decorated(loop: F) -> F:
        try:
            return njit(cache=True, nogil=True, **options)(loop)  # type: ignore[no-any-return]
        except RuntimeError:  # no place to keep it
            warn(UNKEPT, stacklevel=1)
            return njit(nogil=True, **options)(loop)  # type: ignore[no-any-return]

    return decorated


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
