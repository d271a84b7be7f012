"""The bar of a reproduction: it names what is running, and knows the time left from kept times."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from ddlnb.progress import bar
from ddlnb.units import counted


class Progress:
    """A bar on stderr, or in a notebook, that counts the seconds which runs are expected to take.

    ``seconds`` are expected by name. Runs begin and end in any order and from any thread.
    """

    def __init__(self, seconds: Mapping[str, float], kept: int, show: bool):
        self._seconds, self._lock = seconds, threading.Lock()
        self._running: list[str] = []
        self._ended = 0
        form = "{desc} |{bar}| {percentage:3.0f} %, {elapsed} so far, {remaining} to go"
        self._bar = bar(
            total=sum(seconds.values()),
            desc=f"{counted(len(seconds), 'notebook')}, {kept} kept",
            progress=show and bool(seconds),
            bar_format=form,
        )

    def begin(self, name: str) -> None:
        """Name a run that begins."""
        with self._lock:
            self._running.append(name)
            self._describe()

    def end(self, name: str) -> None:
        """Count a run that has ended."""
        with self._lock:
            self._running.remove(name)
            self._ended += 1
            left = self._bar.total - self._bar.n  # rounding must not lead beyond the end
            self._bar.update(min(self._seconds[name], left))
            self._describe()

    def _describe(self) -> None:
        self._bar.set_description_str(described(self._ended, len(self._seconds), self._running))

    def __enter__(self) -> Progress:
        """Return the bar."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def described(ended: int, runs: int, running: Sequence[str]) -> str:
    """Return how many runs have ended and which ones go on.

    >>> described(3, 36, ["sec3_1_1_large_batch", "table1_attributes"])
    '3 of 36 done, running sec3_1_1_large_batch and table1_attributes'
    """
    now = f", running {' and '.join(running)}" if running else ""
    return f"{ended} of {runs} done{now}"
