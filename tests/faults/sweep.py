"""A sweep of short runs, and its results file as somebody sees it who looks on."""

import csv
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddlnb.engines.measure import measure
from ddlnb.launch.ranks import Ranks
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.task import Task
from tests.engines.jobs import made_up

WORKERS, SERVERS = 2, 1
LOOK_SECONDS = 0.02


def little_task() -> Task:
    """Three layers that compute for 2 ms, so that most of an iteration is communication."""
    return replayed(made_up(4000, 4000, 4000, forward=2e-4, backward=4e-4))


@dataclass
class Sweep:
    """Some repetitions of some methods, in a folder of their own."""

    folder: Path
    methods: Sequence[str] = ("WFBP-A2A", "BSP-A2A")
    baselines: Sequence[str] = ("DDP",)
    repetitions: int = 2
    timeout_seconds: float = 4.0  # of one run
    model: str | Task = field(default_factory=little_task)
    rest: dict[str, Any] = field(default_factory=lambda: {"iterations": 15, "warmup": 1})

    @property
    def out(self) -> Path:
        """The table."""
        return self.folder / "rows.csv"

    @property
    def runs(self) -> Path:
        """The single runs."""
        return self.folder / "rows.runs.csv"

    @property
    def total(self) -> int:
        """Runs of the whole sweep."""
        return (len(self.methods) + len(self.baselines)) * self.repetitions

    def run(self, ranks: Ranks | None, **changes: Any) -> None:
        """Run what is missing; without ranks, on new ones of its own."""
        arguments = {
            "workers": WORKERS,
            "servers": SERVERS,
            "baselines": list(self.baselines) or False,
            "repetitions": self.repetitions,
            "timeout_seconds": self.timeout_seconds,
            "out": self.out,
            "ranks": ranks,
            **self.rest,
            **changes,
        }
        measure(self.model, list(self.methods), **arguments)

    def finished(self) -> list[tuple[str, ...]]:
        """The finished runs, as the file tells them; a line that is cut off is none."""
        if not self.runs.exists():
            return []
        lines = self.runs.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        return [tuple(line) for line in csv.reader(whole)][1:]

    def what_is_wrong(self) -> str:
        """What a completed sweep's files should not be; empty if they are in order."""
        runs = self.finished()
        if len(runs) != self.total:
            return f"{len(runs)} runs instead of {self.total}"
        with self.runs.open(newline="") as stream:
            lines = list(csv.DictReader(stream))
        names = {(line["method"], line["engine"], line["repetition"]) for line in lines}
        if len(names) != self.total:
            return f"runs were repeated: {len(names)} different ones of {self.total}"
        with self.out.open(newline="") as stream:
            counted = sum(int(row["repetitions"]) for row in csv.DictReader(stream))
        return "" if counted == self.total else f"the table counts {counted} of {self.total} runs"


class Onlooker:
    """Notes every run that a sweep's file has held; a run that vanishes was lost."""

    def __init__(self, sweep: Sweep):
        self._sweep = sweep
        self._seen: dict[tuple[str, ...], None] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="onlooker", daemon=True)
        self._thread.start()

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> int:
        """How many runs there have been so far."""
        self._seen |= dict.fromkeys(self._sweep.finished())
        return len(self._seen)

    def lost(self) -> int:
        """How many runs that were there are there no more, or are other ones now."""
        return len(self._seen.keys() - set(self._sweep.finished()))

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()
