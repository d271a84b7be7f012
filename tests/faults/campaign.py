"""Many faults, one after another; a line for each is on disk before the next one is injected."""

from __future__ import annotations

import csv
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from tests.faults import files, owners, ports, processes
from tests.faults.outcome import Outcome
from tests.faults.stage import Stage

TRIES = 5  # of a fault whose sweep was over before it came

KINDS: dict[str, processes.Kind] = {
    **processes.KINDS,
    "disk-full": files.disk_full,
    "file-truncated": files.truncated,
    "kernel-killed": owners.kernel_killed,
    "ctrl-c": owners.interrupted,
    "port-taken": ports.port_taken,
}


def campaign(
    count: int, seed: int, kinds: Sequence[str], out: Path, part: int = 0, parts: int = 1
) -> int:
    """0 if all went as it should, else 1. What the table holds already is not done again.

    Several processes may share the work: each does its part, all write into the same table.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {outcome.number for outcome in read(out)}
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    stage = Stage(folder)
    try:
        mine = [number for number in range(count) if number // len(kinds) % parts == part]
        todo = [number for number in mine if number not in done]
        for number in tqdm(todo, initial=len(mine) - len(todo), total=len(mine), unit="fault"):
            outcome = one(stage, number, seed, kinds[number % len(kinds)])
            append(out, outcome)
            if not outcome.good:
                tqdm.write(f"{number} {outcome.kind}: {outcome.line()}")
    finally:
        stage.close()
        left = stage.left()
        shutil.rmtree(folder, ignore_errors=True)
    outcomes = [outcome for outcome in read(out) if outcome.number < count]
    tqdm.write(summary(outcomes).to_string())
    if left:
        tqdm.write(f"left at the end: {left}")
    return int(bool(left) or not all(outcome.good for outcome in outcomes))


def one(stage: Stage, number: int, seed: int, kind: str) -> Outcome:
    """The outcome of this fault; if it comes too late, of the same kind at another moment."""
    for attempt in range(TRIES):
        chance = random.Random(f"{seed} {number} {attempt}")
        folder = Path(tempfile.mkdtemp(prefix="sweep-", dir=stage.folder))
        try:
            outcome = KINDS[kind](stage, folder, chance, Outcome(number, kind))
        except Exception as error:  # what no user should see: noted, and the next fault is tried
            outcome = Outcome(number, kind, error=type(error).__name__, told=str(error)[:300])
            outcome.wrong = "an error that is none of ddlnb's"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not outcome.missed:
            return outcome
    outcome.wrong += f"the sweep was over {TRIES} times before the fault came"
    return outcome


def append(out: Path, outcome: Outcome) -> None:
    """Add a line to the table."""
    with out.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, outcome.line())
        if stream.tell() == 0:
            writer.writeheader()
        writer.writerow(outcome.line())


def read(out: Path) -> list[Outcome]:
    """The lines of the table, none if it is not there."""
    if not out.exists():
        return []
    with out.open(newline="") as stream:
        return [Outcome.of(line) for line in csv.DictReader(stream)]


def summary(outcomes: list[Outcome]) -> pd.DataFrame:
    """Counts by kind, and all together."""
    rows = []
    for kind in [*dict.fromkeys(o.kind for o in outcomes), "all"]:
        these = [o for o in outcomes if kind in (o.kind, "all")]
        seconds = pd.Series([o.seconds for o in these], dtype=float)
        errors = pd.Series([o.error for o in these if o.error], dtype=str).value_counts()
        rows.append(
            {
                "kind": kind,
                "injected": len(these),
                "error": " ".join(f"{n} {name}" for name, n in errors.items()),
                "went on": sum(not o.error for o in these),
                "hung": sum(o.hung for o in these),
                "rows lost": sum(o.lost for o in these),
                "left behind": sum(bool(o.left) for o in these),
                "resumed": sum(o.resumed for o in these),
                "otherwise wrong": sum(bool(o.wrong) for o in these),
                "s median": round(seconds.median(), 1),
                "s max": round(seconds.max(), 1),
            }
        )
    return pd.DataFrame(rows).set_index("kind")
