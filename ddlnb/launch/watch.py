"""One run of a function on all ranks, watched from outside until it ends or fails."""

from __future__ import annotations

import contextlib
import pickle
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

from ddlnb.errors import RankError
from ddlnb.launch.processes import RankProcesses
from ddlnb.launch.rank import Failure, stack_file

GRACE_SECONDS = 2.0  # after the first failure, for what the other ranks may add to the message
LOOK_SECONDS = 0.2  # between two looks at the processes; answers are noticed at once
STACK_LINES = 6
STACK_SECONDS = 0.2  # that a rank has to write down where it is
TRACEBACK_LINES = 8


class Watch:
    """Waits for the answers of all ranks, and never in a call that only the slowest can end."""

    def __init__(self, processes: RankProcesses, answers: list, timeout_seconds: float):
        self._processes = processes
        self._answers = answers
        self._timeout_seconds = timeout_seconds
        self._start = time.monotonic()
        self._results: dict[int, bytes] = {}
        self._failures: dict[int, Failure] = {}  # in the order in which they were seen

    def results(self) -> list:
        """Return what the ranks returned. Raises one RankError if any of them did not."""
        deadline = self._start + self._timeout_seconds
        while self._silent() and (left := deadline - time.monotonic()) > 0:
            first = not self._failures
            self._look(min(LOOK_SECONDS, left))
            if self._failures and first:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if len(self._results) < len(self._answers):
            network = self._processes.network
            apart = network.why_apart() if network is not None else ""
            summary = f"{self._summary()}; {apart}" if apart else self._summary()
            raise RankError("\n".join([summary, *self._details()]))
        return [pickle.loads(self._results[rank]) for rank in range(len(self._answers))]

    def _silent(self) -> list[int]:
        ranks = range(len(self._answers))
        return [r for r in ranks if r not in self._results and r not in self._failures]

    def _look(self, seconds: float) -> None:
        """Take the answers that arrive; if none does, see which processes are gone."""
        silent = self._silent()
        done, _ = wait([self._answers[rank] for rank in silent], seconds, FIRST_COMPLETED)
        for rank in silent:
            if self._answers[rank] in done:
                outcome = _outcome(self._answers[rank])
                if isinstance(outcome, Failure):
                    self._failures[rank] = outcome
                else:
                    self._results[rank] = outcome
            elif not done and (reason := self._processes.lost(rank)):
                self._failures[rank] = Failure(reason, died=True)

    @property
    def _cause(self) -> int | None:
        """The rank whose failure explains the others'; None if all are merely silent.

        A death is the cause of what the neighbours said, even if they said it before.
        """
        return min(self._failures, key=lambda r: not self._failures[r].died, default=None)

    def _summary(self) -> str:
        """Return what happened, in one line that stands alone."""
        total, cause = len(self._answers), self._cause
        if cause is None:
            return (
                f"{len(self._silent())} of {total} ranks did not answer within "
                f"{self._timeout_seconds} s; allow more with timeout_seconds "
                f"(--timeout on the command line)"
            )
        first = str(self._failures[cause]).splitlines()[0]
        return f"{len(self._failures)} of {total} ranks failed, first rank {cause}: {first}"

    def _details(self) -> Iterator[str]:
        """Yield what became of each rank, and where the first failure was, line by line."""
        seconds, silent = time.monotonic() - self._start, self._silent()
        stacks = _stacks(self._processes, silent)
        for rank in range(len(self._answers)):
            if rank in silent:
                held = "stopped, " if self._processes.is_stopped(rank) else ""
                yield f"  rank {rank}: {held}no answer after {seconds:.1f} s"
                yield from (f"    {line}" for line in stacks.get(rank, []))
            else:
                yield f"  rank {rank}: {self._failures.get(rank, 'done')}"
        if self._cause is not None and (lines := self._failures[self._cause].traceback):
            yield f"rank {self._cause} said:"
            yield from lines[-TRACEBACK_LINES:]


def _outcome(answer: Any) -> bytes | Failure:
    """Return what a finished call says; for a rank that it lost, ipyparallel itself answers."""
    try:
        return answer.get()
    except Exception as error:
        name = getattr(error, "ename", type(error).__name__)
        if name == "EngineError":
            return Failure("process died", died=True)
        return Failure(f"{name}: {error}")


def _stacks(processes: RankProcesses, silent: list[int]) -> dict[int, list[str]]:
    """Return where in Python the silent ranks are, innermost first, if they can still say so."""
    asked = [rank for rank in silent if not processes.is_stopped(rank)]
    for rank in asked:
        processes.signal(rank, signal.SIGUSR1)
    if asked:
        time.sleep(STACK_SECONDS)
    stacks = {}
    for rank in asked:
        with contextlib.suppress(OSError):
            file = processes.folder / stack_file(processes.pids[rank])
            lines = file.read_text().splitlines()[1:]
            own = [i for i, line in enumerate(lines) if line.endswith(" in call")]
            stacks[rank] = [line.strip() for line in lines[: own[0] if own else None]]
            stacks[rank] = stacks[rank][:STACK_LINES]
    return stacks
