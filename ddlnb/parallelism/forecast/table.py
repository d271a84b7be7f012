"""Forecasts of a table of runs: a CSV in, the same rows with what is forecast out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlnb.errors import InputError, reason_of
from ddlnb.files import write_atomically
from ddlnb.parallelism.forecast.cases import Cases
from ddlnb.parallelism.forecast.forecast import forecast
from ddlnb.parallelism.forecast.parameters import Fitted
from ddlnb.parallelism.forecast.row import Notes, Row
from ddlnb.parallelism.forecast.rows import case

ADDED = ("tokens_per_s_per_gpu", "low", "high", "memory_gb", "fits")
FURTHER = ("tokens_per_s_per_gpu_not_slow", "chance_of_slow", "chance_of_fit", "seconds", "mfu")
NEEDED = ("layers", "hidden", "seq_len", "gpu", "num_gpus")


@dataclass(frozen=True)
class Table:
    """A table of runs with forecasts: its columns, its rows, and what was said while reading."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    notes: tuple[str, ...]
    failed: tuple[str, ...]

    def write(self, path: Path) -> Path:
        """Write it as CSV and return the path. Raises NotWritten."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self.rows)
        return write_atomically(path, text.getvalue())


def forecast_table(
    path: Path,
    *,
    keep_going: bool = False,
    fitted: Fitted | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Table:
    """Return the rows of a CSV file, with throughput, its 90 % interval, memory and fit added.

    ``tokens_per_s_per_gpu`` is the median over slow runs and others; that of a run that is not slow
    and the chance of a slow one stand beside it. ``memory_gb`` is in GiB, of the rank that
    runs of the framework report: nanotron's of the first stage, others of the fullest. Answers that
    the file has already are replaced. ``say`` is called with every line of what was taken where
    cells are missing. With ``keep_going`` bad rows stay without a forecast.
    Raises InputError that names file, row and column.
    """
    columns, rows = _read(path)
    notes = Notes()
    columns_of: dict[int, Mapping[str, float]] = {}
    failed: list[str] = []
    for index, cells in enumerate(rows):
        try:
            columns_of[index] = case(Row(index + 2, cells, notes))
        except InputError as error:
            if not keep_going:
                raise
            failed.append(str(error))
    for line in (*notes.lines(), *failed):
        say(line)
    found = [dict.fromkeys((*ADDED, *FURTHER), "") for _ in rows]
    if columns_of:
        for index, values in zip(
            columns_of, _forecast(list(columns_of.values()), fitted), strict=True
        ):
            found[index] = values
    given = [name for name in columns if name not in (*ADDED, *FURTHER)]
    return Table(
        (*given, *ADDED, *FURTHER),
        tuple({**cells, **values} for cells, values in zip(rows, found, strict=True)),
        tuple(notes.lines()),
        tuple(failed),
    )


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            columns = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = [{k: v or "" for k, v in row.items() if k is not None} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}; check the path") from error
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(f"{path} lacks the columns {', '.join(missing)}; add them")
    if not rows:
        raise InputError(f"{path} has no rows; add one per run")
    return columns, rows


def _forecast(
    columns: Sequence[Mapping[str, float]], fitted: Fitted | None
) -> list[dict[str, str]]:
    cases = Cases.of(**{name: [one[name] for one in columns] for name in columns[0]})
    found = forecast(cases, fitted)
    quick = found.tokens_per_s_per_gpu * found.seconds / found.step.seconds
    return [
        {
            "tokens_per_s_per_gpu": f"{found.tokens_per_s_per_gpu[i]:.6g}",
            "low": f"{found.low[i]:.6g}",
            "high": f"{found.high[i]:.6g}",
            "memory_gb": f"{found.memory_gib[i]:.4g}",
            "fits": str(bool(found.fits[i])),
            "tokens_per_s_per_gpu_not_slow": f"{quick[i]:.6g}",
            "chance_of_slow": f"{found.chance[i]:.3f}",
            "chance_of_fit": f"{found.chance_of_fit[i]:.3f}",
            "seconds": f"{found.seconds[i]:.6g}",
            "mfu": f"{found.mfu[i]:.4f}",
        }
        for i in range(len(cases))
    ]
