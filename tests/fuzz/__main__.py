"""python -m tests.fuzz: odd bytes through every reader, and a table of what came out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from tests.fuzz.play import play, row
from tests.fuzz.readers import READERS


def main() -> int:
    """Return status 0 if nothing but our own errors was raised, in time and in memory."""
    words = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    words.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--reader", action="append", choices=list(READERS), help="all by default")
    words.add_argument("--out", type=Path, default=Path("build/fuzz.csv"))
    asked = words.parse_args()
    names = asked.reader or list(READERS)
    found = []
    for name in names:
        found.append(play(name, READERS[name], -(-asked.inputs // len(names)), asked.seed))
        sys.stdout.write(f"{found[-1]}\n")
        sys.stdout.flush()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(map(row, found)).to_csv(asked.out, index=False)
    return int(not all(one.good for one in found))


if __name__ == "__main__":
    sys.exit(main())
