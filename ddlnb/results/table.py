"""A table of throughputs: its cells, its columns, and reading it with every line checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddlnb.errors import InputError, ResultsError

TEXT = ["model", "network", "method"]
COUNTS = ["local_batch", "gpus"]
KEY = ["model", "local_batch", "network", "method", "gpus"]
RATE = "throughput_samples_per_s"
COLUMNS = [*KEY, RATE]
MAY_BE_EMPTY = ["std", "low", "high"]  # numbers a table may have, for some cells or for none

NETWORKS = ("10GbE", "100GbE", "100GbIB")  # of the survey, slowest first
GPUS_PER_NODE = 4  # of the survey's cluster; runs with no more of them use no network
SINGLE = "single"  # the method of the rows that run on one GPU and exchange nothing


class Cell(NamedTuple):
    """What identifies a row of the table.

    >>> print(Cell("resnet50", 64, "10GbE", "MG-WFBP", 8))
    resnet50/64 10GbE MG-WFBP 8 GPUs
    """

    model: str
    local_batch: int
    network: str
    method: str
    gpus: int

    def __str__(self) -> str:
        unit = "GPU" if self.gpus == 1 else "GPUs"
        return f"{self.model}/{self.local_batch} {self.network} {self.method} {self.gpus} {unit}"


def read_table(path: str | Path) -> pd.DataFrame:
    """The table in a CSV file, one row per cell. Raises ResultsError.

    It needs the columns model, local_batch, network, method, gpus and throughput_samples_per_s.
    std, low and high are numbers where they are not empty; other columns are kept as they are.
    """
    path = Path(path)
    empty = {column: ["", "nan", "NaN"] for column in [*COUNTS, RATE, *MAY_BE_EMPTY]}
    try:
        rows = pd.read_csv(
            path,
            dtype={column: str for column in TEXT},
            keep_default_na=False,
            na_values=empty,
            skipinitialspace=True,
        )
    except FileNotFoundError as error:
        raise ResultsError(f"there is no table {path}") from error
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise ResultsError(f"{path} cannot be read as a table: {error}") from error
    if not isinstance(rows.index, pd.RangeIndex):
        raise ResultsError(f"{path}: lines have more values than the first line has columns")
    if missing := _missing(rows):
        raise ResultsError(f"{path} {missing}")
    if problem := _problem(rows):
        raise ResultsError(f"{path} line {problem.position + 2} {problem.words}")
    return _with_numbers(rows)


def cell_rates(rows: pd.DataFrame) -> dict[Cell, float]:
    """The throughput of every cell, in the order of the rows. Raises InputError for no table."""
    rows = checked_table(rows)
    return dict(zip(cells_of(rows), rows[RATE].tolist(), strict=True))


def optional_numbers(rows: pd.DataFrame, column: str) -> list[float]:
    """The numbers of a column, NaN where they are empty or the table has no such column."""
    if column not in rows:
        return [math.nan] * len(rows)
    return pd.to_numeric(rows[column]).astype(float).tolist()


# What a table must be.


def cells_of(rows: pd.DataFrame) -> list[Cell]:
    return [Cell(*key) for key in rows[KEY].itertuples(index=False, name=None)]


def checked_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with numbers as numbers. Raises InputError if they are no table."""
    if missing := _missing(rows):
        raise InputError(f"the table {missing}")
    if problem := _problem(rows):
        raise InputError(f"row {problem.position} of the table {problem.words}")
    return _with_numbers(rows)


def _missing(rows: pd.DataFrame) -> str:
    """What the table lacks, in words; empty if nothing."""
    missing = [column for column in COLUMNS if column not in rows]
    if not missing:
        return ""
    return f"lacks the columns {', '.join(missing)}; a table needs {', '.join(COLUMNS)}"


class _Problem(NamedTuple):
    position: int
    words: str


def _problem(rows: pd.DataFrame) -> _Problem | None:
    """The first row that breaks a rule, and that rule."""
    for wrong, rule in _broken(rows):
        if wrong.any():
            position = int(wrong.to_numpy().argmax())
            row = ",".join(str(value) for value in rows.iloc[position])
            return _Problem(position, f"({row}): {rule}")
    return None


def _broken(rows: pd.DataFrame) -> Iterator[tuple[pd.Series, str]]:
    for column in TEXT:
        empty = rows[column].isna() | (rows[column].astype(str).str.strip() == "")
        yield empty, f"{column} is empty; write a name, 'none' where there is none"
    for column in [*COUNTS, RATE]:
        numbers = _numbers(rows, column)
        good = (numbers > 0) & (numbers < math.inf)
        yield ~good, f"{column} must be a positive number"
    for column in COUNTS:
        yield _numbers(rows, column) % 1 != 0, f"{column} must be a whole number"
    for column in MAY_BE_EMPTY:
        if column in rows:
            numbers = _numbers(rows, column)
            good = rows[column].isna() | ((numbers >= 0) & (numbers < math.inf))
            yield ~good, f"{column} must be empty or a number that is not negative"
    yield (
        _with_numbers(rows).duplicated(KEY),
        "the same cell stands there twice; keep one, and one source per table",
    )


def _numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    return pd.to_numeric(rows[column], errors="coerce")


def _with_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    columns = [column for column in [*COUNTS, RATE, *MAY_BE_EMPTY] if column in rows]
    numbers = rows.assign(**{column: _numbers(rows, column) for column in columns})
    return numbers.astype({column: int for column in COUNTS})
