"""The load under which the rows of a folder were measured, kept beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddlnb.errors import ResultsError
from ddlnb.files import write_atomically
from ddlnb.launch.load import Load, watched_load

LOADS = "load.csv"
COLUMNS = ("rows", "before", "during", "stolen")


@contextmanager
def keeping_load(rows: Path) -> Iterator[None]:
    """Watch the load while the body runs; keep it beside the rows if any were added to the file."""
    before = _stamp(rows)
    with watched_load() as watch:
        yield
    if _stamp(rows) != before:
        kept = [*kept_loads(rows.parent), (rows.name, watch.load)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, load in kept:
            shares = (load.before, load.during, load.stolen)
            writer.writerow([name, *(f"{share:.4f}" for share in shares)])
        write_atomically(rows.parent / LOADS, text.getvalue())


def kept_loads(folder: str | Path) -> list[tuple[str, Load]]:
    """Return the loads that a folder keeps, with the names of the files that got rows then.

    There are none in folders of earlier editions. Raises ResultsError for a file that is no table
    of loads.
    """
    path = Path(folder) / LOADS
    if not path.exists():
        return []
    with path.open(newline="") as file:
        try:
            return [
                (row["rows"], Load(*(float(row[name]) for name in COLUMNS[1:])))
                for row in csv.DictReader(file)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{path} is no table of loads ({error}); remove it") from error


def load_sentence(folder: str | Path) -> str:
    """Return how busy the machine was while the rows of a folder were measured, in a sentence."""
    loads = [load for _, load in kept_loads(folder)]
    if not loads:
        return "How busy the machine was while this was measured is not known."
    return str(max(loads, key=lambda load: load.during + load.stolen))


def _stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
