"""Many faults, one after another; a line for each is on disk before the next one is injected."""

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from tests.faults import commands, files, owners, ports, processes
from tests.faults.outcome import Outcome
from tests.faults.stage import Stage
from tests.kept import code_of_faults

TRIES = 5  # of a fault whose sweep was over before it came

KINDS: dict[str, processes.Kind] = {
    **processes.KINDS,
    "disk-full": files.disk_full,
    "file-truncated": files.truncated,
    "kernel-killed": owners.kernel_killed,
    "port-taken": ports.port_taken,
    **commands.KINDS,
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
            outcome.code, outcome.date = code_of_faults(), f"{datetime.now(UTC):%F}"
            append(out, outcome)
            if not outcome.good:
                tqdm.write(f"{number} {outcome.kind}: {asdict(outcome)}")
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


TEXTS = dict.fromkeys(("kind", "detail", "error", "told", "left", "wrong", "code"), str)


def append(out: Path, outcome: Outcome) -> None:
    """Add a line to the table."""
    line = pd.DataFrame([asdict(outcome)])
    line.to_csv(out, mode="a", header=not out.exists(), index=False)


def read(out: Path) -> list[Outcome]:
    """The lines of the table, none if it is not there."""
    if not out.exists():
        return []
    table = pd.read_csv(out, dtype=TEXTS, keep_default_na=False)
    return [Outcome(**line) for line in table.to_dict("records")]


def summary(outcomes: list[Outcome]) -> pd.DataFrame:
    """Counts by kind, and all together."""
    table = pd.DataFrame(list(map(asdict, outcomes)))

    def counted(these: pd.DataFrame) -> pd.Series:
        errors = these.loc[these["error"] != "", "error"].value_counts()
        return pd.Series(
            {
                "injected": len(these),
                "error": " ".join(f"{n} {name}" for name, n in errors.items()),
                "went on": (these["error"] == "").sum(),
                "hung": these["hung"].sum(),
                "rows lost": these["lost"].sum(),
                "left behind": (these["left"] != "").sum(),
                "resumed": these["resumed"].sum(),
                "otherwise wrong": (these["wrong"] != "").sum(),
                "s median": round(these["seconds"].median(), 1),
                "s max": round(these["seconds"].max(), 1),
            }
        )

    parts = {str(kind): part for kind, part in table.groupby("kind", sort=False)}
    return pd.DataFrame({kind: counted(part) for kind, part in (parts | {"all": table}).items()}).T
