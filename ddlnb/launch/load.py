"""The load that others put on this machine, before and while something is timed on it.

What shares its cores with others takes longer than alone, and unevenly so. A result that was timed
says how busy the cores were with other work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

BEFORE_SECONDS = 1.0  # for which the machine is watched before the work begins
LOOK_SECONDS = 0.5  # between two looks at the processes: what a rank takes in its last is not seen
BUSY = 0.1  # of the cores: with more, times are those of a machine under load

WORK = ("user", "nice", "system")  # interrupts serve our messages as well as those of others


@dataclass(frozen=True)
class Load:
    """Shares of all cores, from 0 to 1: what others took ``before`` and ``during``, and the host.

    ``stolen`` is what the host of a virtual machine took from it meanwhile. ``during`` leaves out
    this process and those that it started.
    """

    before: float
    during: float
    stolen: float

    @property
    def is_busy(self) -> bool:
        """Whether others took so much that times are those of a machine under load."""
        return max(self.before, self.during + self.stolen) > BUSY

    def __str__(self) -> str:
        taken = (
            f"Other processes took {self.during:.0%} of the cores meanwhile, and {self.before:.0%} "
            f"before"
        )
        host = f"; the host took {self.stolen:.0%}" if self.stolen > BUSY / 10 else ""
        verdict = "times are those of a machine under load" if self.is_busy else "it was quiet"
        return f"{taken}{host}: {verdict}."


@dataclass
class LoadWatch:
    """A watch that goes on: ``load`` is what it has seen until now, or until it ended."""

    before: float
    _seconds: float = field(default_factory=lambda: _now())
    _start: dict[str, float] = field(default_factory=lambda: _machine_seconds())
    _first: dict[int, float] = field(default_factory=lambda: _our_seconds())
    _last: dict[int, float] = field(default_factory=dict)
    _ended: Load | None = None

    @property
    def load(self) -> Load:
        """The load since the watch began."""
        if self._ended is not None:
            return self._ended
        self.look()
        capacity = (_now() - self._seconds) * _cores()
        now = _machine_seconds()
        work = sum(now[kind] - self._start[kind] for kind in WORK)
        others = max(0.0, work - sum(self._last.values()))
        stolen = now["steal"] - self._start["steal"]
        return Load(self.before, min(1.0, others / capacity), min(1.0, stolen / capacity))

    def look(self) -> None:
        """Note what our processes have taken since the watch began."""
        for pid, seconds in _our_seconds().items():
            self._last[pid] = max(self._last.get(pid, 0.0), seconds - self._first.get(pid, 0.0))

    def end(self) -> None:
        """Look for the last time; ``load`` stays as it is then."""
        self._ended = self.load


@contextmanager
def watched_load() -> Iterator[LoadWatch]:
    """Watch the machine for a second, then while the body runs.

    >>> with watched_load() as watch:
    ...     total = sum(range(1000))
    >>> 0 <= watch.load.before <= 1 and 0 <= watch.load.during <= 1
    True
    """
    quiet = LoadWatch(0.0)
    time.sleep(BEFORE_SECONDS)
    watch = LoadWatch(quiet.load.during)
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            watch.look()

    looking = threading.Thread(target=look, name="load", daemon=True)
    looking.start()
    try:
        yield watch
    finally:
        over.set()
        looking.join()
        watch.end()


def _now() -> float:
    return time.perf_counter()


def _machine_seconds() -> dict[str, float]:
    """Return the seconds of all cores by what they did; steal is there on Linux only."""
    times = psutil.cpu_times()
    return {kind: getattr(times, kind, 0.0) for kind in (*WORK, "steal")}


def _our_seconds() -> dict[int, float]:
    """Return the seconds that this process and those below it have taken, by process."""
    me = psutil.Process()
    found = {}
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _cores() -> int:
    return psutil.cpu_count() or 1
