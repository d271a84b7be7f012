"""Faults of files: the disk is full while rows are written, a results file is cut off."""

import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ddlnb.errors import DdlnbError, ResultsError
from tests.faults.injection import inject, no_hang, resume, see
from tests.faults.outcome import GRACE_SECONDS, Outcome
from tests.faults.processes import PATIENT_SECONDS
from tests.faults.stage import Stage
from tests.faults.sweep import Onlooker, Sweep

PAGE = 4096
DISK_PAGES = 64


def disk_full(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """The disk of the results has a page or none left; resumed when there is room again.

    Who may not mount a disk gets a limit on the size of files instead.
    """
    spare = int(chance.random() < 0.25)
    own_disk = os.geteuid() == 0
    outcome.detail = f"{spare} pages left" if own_disk else "limit on file sizes"
    with _disk(folder) if own_disk else contextlib.nullcontext():
        fill, empty = _filler(folder, spare) if own_disk else _limit(chance.randrange(600))
        return inject(
            *(stage, Sweep(folder, timeout_seconds=PATIENT_SECONDS), outcome, chance),
            ranks=stage.ranks(),
            act=fill,
            undo=empty,
            errors=(ResultsError,),
            may_go_on=own_disk and spare > 0,
        )


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    size = f"size={DISK_PAGES * PAGE}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _filler(folder: Path, spare: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Fills the disk but for the spare pages; frees them again."""
    path = folder / "filler"

    def fill() -> None:
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(PAGE))
        os.truncate(path, path.stat().st_size - spare * PAGE)

    return fill, lambda: path.unlink(missing_ok=True)


def _limit(size: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Lets no file of this process grow beyond the bytes; lifts that again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1])), lift


def truncated(stage: Stage, folder: Path, chance: random.Random, outcome: Outcome) -> Outcome:
    """A file is cut at a random byte: in a running sweep, or between two calls.

    The table is made anew from the runs. Cut runs are refused and left alone, until the user puts
    a copy back.
    """
    sweep = Sweep(folder, timeout_seconds=PATIENT_SECONDS)
    of_runs, between = chance.random() < 0.7, chance.random() < 0.5
    cut = _Cut(sweep.runs if of_runs else sweep.out, chance.random(), outcome)
    errors = (ResultsError,) if of_runs else ()
    if not between:
        # A write under way replaces the file that was cut: then it goes on, and nothing is lost.
        return inject(
            *(stage, sweep, outcome, chance),
            ranks=stage.ranks(),
            act=cut.make,
            undo=cut.restore,
            errors=errors,
            may_go_on=True,
        )
    ranks = stage.ranks()
    sweep.run(ranks, repetitions=1)
    onlooker = Onlooker(sweep)
    onlooker.look()
    cut.make()
    start = time.monotonic()
    with no_hang() as hung:
        try:
            sweep.run(ranks)
        except DdlnbError as error:
            see(outcome, error, errors)
    outcome.seconds = time.monotonic() - start
    outcome.allowed = (1 if outcome.error else sweep.total) * PATIENT_SECONDS + GRACE_SECONDS
    outcome.hung = int(bool(hung))
    onlooker.stop()
    if of_runs and not outcome.error:
        outcome.wrong += "no error was seen; "
    cut.restore()
    outcome.left = "; ".join(stage.left())
    resume(sweep, outcome, ranks)
    outcome.lost = onlooker.lost()
    return outcome


class _Cut:
    """Cuts a file; puts it back, if the user was told, as a user would from a copy."""

    def __init__(self, path: Path, share: float, outcome: Outcome):
        self._path, self._share, self._outcome = path, share, outcome
        self._whole, self._rest = b"", b""

    def make(self) -> None:
        """Cut the file, once it is there."""
        while not self._path.exists():
            time.sleep(0.01)
        self._whole = self._path.read_bytes()
        self._rest = self._whole[: int(self._share * len(self._whole))]
        os.truncate(self._path, len(self._rest))
        self._outcome.detail = f"{self._path.name} at byte {len(self._rest)} of {len(self._whole)}"

    def restore(self) -> None:
        """Put the copy back; what the error was about must not have been touched."""
        if not self._outcome.error:
            return
        if self._path.read_bytes() != self._rest:
            self._outcome.wrong += "the cut file was overwritten; "
        self._path.write_bytes(self._whole)
