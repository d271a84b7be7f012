"""What this machine can carry: for how many ranks it has room, and how busy others keep it.

Too many ranks are refused before any starts. What shares its cores with others takes longer than
alone, and unevenly so: a result that was timed says how busy the cores were with other work.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddlnb.errors import InputError, require
from ddlnb.launch.options import LaunchOptions, is_here

# Private memory of a rank that trains small-conv, the smallest model of the catalogue: measured as
# psutil's USS with torch 2 on the CPUs of a Linux x86-64 machine. Larger models take more.
RANK_BYTES = 270 << 20
RANK_THREADS = 10  # of such a rank, counted by psutil; limits on processes count threads

_CGROUP = Path("/sys/fs/cgroup")


def require_room(count: int, launcher: str, address: str) -> None:
    """Raise InputError if the ranks are to start on this machine and cannot all fit.

    With MPI they are on this machine if they meet at one of its loopback addresses.
    """
    if not is_here(launcher, address) or count <= (most := most_ranks()):
        return
    raise InputError(
        f"{count:,} ranks do not fit on this machine: with {available_bytes() / 1e9:.3g} GB of "
        f"free memory and {os.cpu_count()} cores it has room for {most:,} at about "
        f"{RANK_BYTES / 1e6:.0f} MB each; take fewer workers, or start them on several machines "
        f"with launcher 'ssh' or 'slurm'"
    )


def fitting_workers(
    counts: Sequence[int], site: LaunchOptions, device: str = "cpu"
) -> tuple[list[int], str]:
    """Return the numbers of workers that the site has room for, and a sentence on the others.

    Workers that start on this machine want a core each, or a GPU each with device "cuda"; those
    of an emulated network, which share the cores, the memory of a rank. What other machines have
    is not known here, and nothing is left out. The sentence is empty if nothing is. Raises
    InputError if the site has room for none of them.
    """
    if not is_here(site.launcher, site.host):
        return list(counts), ""
    most, what = _places(site, device)
    kept = [count for count in counts if count <= most]
    left = [str(count) for count in counts if count > most]
    if not left:
        return kept, ""
    listed = " and ".join(filter(None, (", ".join(left[:-1]), left[-1])))
    sentence = (
        f"{listed} workers are left out: this machine has {what}; start workers on several "
        f"machines with launcher 'ssh' or 'slurm'"
    )
    require(bool(kept), f"nothing is left to measure: {sentence}")
    return kept, f"{sentence}."


def _places(site: LaunchOptions, device: str) -> tuple[int, str]:
    """Return how many workers this machine has a place for, and in words what the places are."""
    if device == "cuda":
        import torch

        most, place = torch.cuda.device_count(), "GPU"
    elif site.is_emulated:
        return (most := most_ranks()), f"memory for {most:,} processes"
    else:
        most, place = os.cpu_count() or 1, "core"
    return most, f"{most:,} {place}{'s' * (most != 1)}, and a measurement takes one per worker"


def most_ranks() -> int:
    """Return how many more ranks the free memory and the limits on threads leave room for."""
    by_threads = [left // RANK_THREADS for left in _threads_left()]
    return max(0, min([available_bytes() // RANK_BYTES, *by_threads]))


def available_bytes() -> int:
    """Return the free memory: of the machine, or of the container that this process is in.

    What a container keeps of files can be given up at once, so it counts as free.
    """
    limits = [psutil.virtual_memory().available]
    for most, stat, used in (
        ("memory.max", "memory.stat", "anon"),  # cgroups of version 2, then of version 1
        ("memory/memory.limit_in_bytes", "memory/memory.stat", "total_rss"),
    ):
        with suppress(OSError, ValueError, KeyError):  # no cgroups, or "max"
            words = (_CGROUP / stat).read_text().split()
            counts = dict(zip(words[::2], words[1::2], strict=True))
            limits.append(_number(_CGROUP / most) - int(counts[used]))
    return min(limits)


def _threads_left() -> Iterator[int]:
    """Yield how many threads each limit on them leaves, where the system has one."""
    for most in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"):
        with suppress(OSError, ValueError):
            yield _number(Path(most)) - _threads()
    with suppress(AttributeError, OSError, psutil.Error):  # psutil has it on Linux only
        own, me = psutil.Process().rlimit(psutil.RLIMIT_NPROC)[0], os.geteuid()
        if own != psutil.RLIM_INFINITY and me != 0:  # root is not held to it
            yield own - _threads(me)
    for folder in (_CGROUP, _CGROUP / "pids"):
        with suppress(OSError, ValueError):
            yield _number(folder / "pids.max") - _number(folder / "pids.current")


def _threads(user: int | None = None) -> int:
    """Return the threads of all processes, or of those of a user."""
    total = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if user in (None, process.uids().effective):
                total += process.num_threads()
    return total


def _number(path: Path) -> int:
    return int(path.read_text())


BEFORE_SECONDS = 1.0  # for which the machine is watched before the work begins
LOOK_SECONDS = 0.5  # between two looks at the processes: what a rank takes in its last is not seen
BUSY = 0.1  # of the cores: with more, times are those of a machine under load
MOST_LOST = 0.95  # of the cores: with so much, forecasts say next to nothing anyway

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

    @property
    def spread(self) -> float:
        """The relative standard deviation of later seconds from those that were timed.

        Who lost a share s of the cores took 1 / (1 - s) times as long as on a quiet machine. What
        others take later is known of nobody: anything from nothing to as much, so that logarithms
        of seconds are spread evenly over -ln(1 - s), with that over the root of 12 as deviation.

        >>> round(Load(0.0, 0.02, 0.0).spread, 3), round(Load(0.0, 0.8, 0.0).spread, 2)
        (0.006, 0.46)
        """
        return -math.log(1 - min(self.during + self.stolen, MOST_LOST)) / math.sqrt(12)

    def __str__(self) -> str:
        taken = (
            f"Other processes took {self.during:.0%} of the cores meanwhile, and {self.before:.0%} "
            f"before"
        )
        host = f"; the host took {self.stolen:.0%}" if self.stolen > BUSY / 10 else ""
        verdict = "times are those of a machine under load" if self.is_busy else "it was quiet"
        return f"{taken}{host}: {verdict}."


class LoadWatch:
    """A watch that goes on: ``load`` is what it has seen until now, or until it ended."""

    def __init__(self, before: float):
        self.before = before
        self._begin = time.perf_counter()
        self._start, self._first = _machine_seconds(), _our_seconds()
        self._last: dict[int, float] = {}
        self._ended: Load | None = None

    @property
    def load(self) -> Load:
        """The load since the watch began."""
        if self._ended is not None:
            return self._ended
        self.look()
        capacity = (time.perf_counter() - self._begin) * (psutil.cpu_count() or 1)
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
