"""python -m tests.fuzz: odd bytes through every reader, and a table of what came out."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from ddlnb.files import write_atomically
from ddlnb.training.runs.train import PACKAGE
from tests.fuzz.play import MOST_MEGABYTES, play, row
from tests.fuzz.readers import READERS
from tests.kept import code_of_sources

ROUND = 500  # inputs of a reader before the next one's turn: a run that is stopped tried them all
TOGETHER = {
    **dict.fromkeys(("inputs", "read", "refused", "over_5_seconds"), "sum"),
    **dict.fromkeys(("longest_seconds", "grown_megabytes"), "max"),
    "sources": lambda files: " ".join(sorted({one for row in files for one in row.split()})),
    "foreign": lambda places: "; ".join(filter(None, places)),
}


def main() -> int:
    """Return status 0 if nothing but our own errors was raised, in time and in memory.

    The table is written all the time; what it holds of today's sources is not tried again, and
    rows of other sources stay beside them.
    """
    words = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    words.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--reader", action="append", choices=list(READERS), help="all by default")
    words.add_argument("--out", type=Path, default=Path("build/fuzz.csv"))
    asked = words.parse_args()
    names = asked.reader or list(READERS)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read(asked.out)
    each, begun = -(-asked.inputs // len(names)), datetime.now(UTC)
    for stop in [*range(ROUND, each, ROUND), each]:
        for name in names:
            before = [row for row in rows if row["reader"] == name and is_of_today(row)]
            if (first := sum(one["inputs"] for one in before)) < stop:
                found = row(play(name, READERS[name], stop - first, asked.seed, first))
                both = pd.DataFrame([*before, found]).agg(TOGETHER).to_dict()
                require_unchanged(both["sources"], begun)
                code, date = code_of_sources(both["sources"]), f"{datetime.now(UTC):%F}"
                rows = [row for row in rows if row not in before]
                rows.append({"reader": name, **both, "code": code, "date": date})
                write_atomically(asked.out, pd.DataFrame(rows).to_csv(index=False))
        sys.stdout.write(f"{stop} inputs of each; went wrong: {wrong(rows) or 'nothing'}\n")
        sys.stdout.flush()
    return int(bool(wrong(rows)))


def read(path: Path) -> list[dict]:
    """Return the rows of a table, of a reader one for all sources that it had; none without it."""
    if not path.exists():
        return []
    return pd.read_csv(path, keep_default_na=False, dtype={"code": str}).to_dict("records")


def require_unchanged(sources: str, begun: datetime) -> None:
    """End the program if a source was edited since it began: what ran is not what would be kept."""
    for source in sources.split():
        edited = datetime.fromtimestamp((PACKAGE / source).stat().st_mtime, UTC)
        if edited > begun:
            sys.exit(f"{source} was edited while it was tried; start again")


def is_of_today(row: dict) -> bool:
    """Return whether the sources that a row names are still what they were."""
    return code_of_sources(row["sources"]) == row["code"]


def wrong(rows: list[dict]) -> list[str]:
    """Return the names of readers that raise errors of others, or take too long or too much."""
    return [
        row["reader"]
        for row in filter(is_of_today, rows)
        if row["foreign"] or row["over_5_seconds"] or row["grown_megabytes"] >= MOST_MEGABYTES
    ]


if __name__ == "__main__":
    sys.exit(main())
