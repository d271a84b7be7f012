"""Loops that numba compiles: once per installation, since it keeps them on disk, and it is said.

Compiling the event loop takes some ten seconds, longer than most answers. So the first of our loops
that a process has to compile says on a terminal what the seconds are for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from typing import Any, TypeVar
from warnings import warn

from numba import njit
from numba.core import event as events
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])
UNKEPT = (
    "compiled loops are kept nowhere, and every command compiles them: set NUMBA_CACHE_DIR to a "
    "folder that takes files"
)
NOTICE = "ddlnb compiles its loops, once after an installation; this takes up to half a minute."


def compiled(**options: Any) -> Callable[[F], F]:
    """Return a decorator of loops: without the interpreter's lock, so that threads play at once.

    Where neither the package nor HOME takes a file, as in a container that may only be read or on a
    full disk, they are compiled in every process, and it is said.
    """

    def decorated(loop: F) -> F:
        found = njit(nogil=True, **options)(loop)
        try:
            found._cache = _Kept(loop)
        except RuntimeError:  # no place to keep it
            warn(UNKEPT, stacklevel=1)
        return found  # type: ignore[no-any-return]

    return decorated


class _Kept(FunctionCache):  # type: ignore[misc]
    """Numba's files of a compiled loop, which is compiled again where they are damaged."""

    def load_overload(self, *asked: Any) -> Any:
        try:
            return super().load_overload(*asked)
        except Exception:  # of a file that a crash or a full disk has cut off, anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, *made: Any) -> None:
        try:
            super().save_overload(*made)
        except Exception:  # no room, or a damaged file that cannot be replaced
            warn(UNKEPT, stacklevel=1)


class _Notice(events.Listener):
    """Prints NOTICE once, at the first loop of ours that is not in numba's cache."""

    def __init__(self) -> None:
        self.is_said = parent_process() is not None  # children of a pool leave it to their parent

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__ or ""
        if not self.is_said and module.startswith("ddlnb.") and sys.stderr and sys.stderr.isatty():
            self.is_said = True
            sys.stderr.write(f"{NOTICE}\n")

    def on_end(self, event: Any) -> None:
        """Say nothing: the answer follows."""


events.register("numba:compile", _Notice())
