"""A fault injected into a sweep of this process, and what the user is told."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddlnb.errors import DdlnbError
from ddlnb.launch.ranks import Ranks
from tests.faults.outcome import GRACE_SECONDS, START_SECONDS, Outcome
from tests.faults.stage import Stage
from tests.faults.sweep import Onlooker, Sweep

RUN_SECONDS = 0.4  # about one run: a fault comes at any moment of it
HANG_SECONDS = 150.0  # after which a call that does not return is interrupted


@dataclass(frozen=True)
class Moment:
    """The given time after the given number of runs were finished."""

    runs: int
    seconds: float

    @classmethod
    def any_of(cls, sweep: Sweep, chance: random.Random, must_be_seen: bool = False) -> Moment:
        """A moment within the sweep; before its last run if the fault must be seen.

        In the last one it may come when the ranks have answered and only the row is to be written.
        """
        last = sweep.total - (2 if must_be_seen else 1)
        return cls(chance.randrange(last), chance.uniform(0, RUN_SECONDS))


class Injection(threading.Thread):
    """Does something at a moment of a sweep."""

    def __init__(self, onlooker: Onlooker, moment: Moment, act: Callable[[], None]):
        super().__init__(name="injection", daemon=True)
        self._onlooker, self._moment, self._act = onlooker, moment, act
        self._too_late = threading.Event()
        self.at: float | None = None  # on the monotonic clock, once it is done
        self.problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        while self._onlooker.look() < self._moment.runs:
            if self._too_late.wait(0.01):
                return
        if self._too_late.wait(self._moment.seconds):
            return
        at = time.monotonic()
        try:
            self._act()
        except BaseException as problem:
            self.problem = problem
        self.at = at

    def end(self) -> None:
        """Wait until it is done, or see to it that it does not happen any more."""
        self._too_late.set()
        self.join()
        if self.problem is not None:
            raise self.problem


@contextlib.contextmanager
def no_hang(seconds: float = HANG_SECONDS) -> Iterator[list[str]]:
    """Interrupt what takes longer; the list holds a word then."""
    hung: list[str] = []

    def interrupt() -> None:
        hung.append("hung")
        os.kill(os.getpid(), signal.SIGINT)

    alarm = threading.Timer(seconds, interrupt)
    alarm.daemon = True
    alarm.start()
    try:
        yield hung
    except KeyboardInterrupt:
        if not hung:
            raise
    finally:
        alarm.cancel()


def inject(
    stage: Stage,
    sweep: Sweep,
    outcome: Outcome,
    chance: random.Random,
    *,
    ranks: Ranks,
    act: Callable[[], None],
    undo: Callable[[], None] = lambda: None,
    errors: tuple[type[DdlnbError], ...] = (),
    may_go_on: bool = False,
) -> Outcome:
    """Return the outcome of a fault at a random moment; then the sweep is resumed.

    ``errors`` are those that the user may see; ``may_go_on`` if it may also go on.
    """
    moment = Moment.any_of(sweep, chance, must_be_seen=not may_go_on)
    outcome.detail += f"; after {moment.runs} runs and {moment.seconds:.3f} s"
    onlooker = Onlooker(sweep)
    hit: list[object] = []

    def act_on_these_processes() -> None:
        hit.append(ranks._processes)
        act()

    injection = Injection(onlooker, moment, act_on_these_processes)
    try:
        with no_hang() as hung:
            try:
                sweep.run(ranks)
            except DdlnbError as error:
                see(outcome, error, errors)
        ended = time.monotonic()
        injection.end()
        if injection.at is None and not hung:
            outcome.missed = 1
            return outcome
    finally:
        injection.end()
        undo()
        onlooker.stop()
    onlooker.look()
    if not outcome.error and not may_go_on:
        outcome.wrong += "no error was seen; "
    outcome.seconds = ended - (injection.at or ended)
    remaining = 1 if outcome.error else sweep.total - moment.runs
    outcome.allowed = remaining * sweep.timeout_seconds + GRACE_SECONDS
    if ranks._processes not in hit:  # between two runs: others were started for the next one
        outcome.allowed += START_SECONDS
    outcome.hung = int(bool(hung) or outcome.seconds > outcome.allowed)
    outcome.left = "; ".join(stage.left())
    resume(sweep, outcome, ranks)
    stage.used(ranks)
    outcome.lost = onlooker.lost()
    return outcome


def see(outcome: Outcome, error: BaseException, expected: tuple[type[DdlnbError], ...]) -> None:
    """Note the error, and what is wrong with it."""
    outcome.error = type(error).__name__
    outcome.told = str(error).splitlines()[0] if str(error) else ""
    if not isinstance(error, expected):
        outcome.wrong += "another error than expected; "
    if not outcome.told:
        outcome.wrong += "an error without words; "


def resume(sweep: Sweep, outcome: Outcome, ranks: Ranks) -> None:
    """Complete the sweep, and note whether that worked, repeated nothing and left no litter."""
    with no_hang() as hung:
        try:
            sweep.run(ranks, timeout_seconds=60)
        except DdlnbError as error:
            outcome.wrong += f"not resumed: {type(error).__name__}: {error}; "
            return
    outcome.hung |= int(bool(hung))
    if wrong := sweep.what_is_wrong():
        outcome.wrong += f"after resuming, {wrong}; "
    else:
        outcome.resumed = 1
    for part in sweep.folder.glob(".*.part"):
        outcome.left += f"file: {part.name}; "
