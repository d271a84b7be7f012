"""Read tables from CSV files, and check them against a declared schema.

A schema lists columns with the kind of their values, and the columns by which no two rows may
agree. An error names the file, the line, its values, the rule and what to do. The schemas of
throughputs and of the tidy table stand below; tables of which nothing is declared are read as texts
(`read_cells`) or as they stand (`read_frame`).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, ResultsError
from ddlnb.reading import read_text, reading

if TYPE_CHECKING:
    import pandas as pd

STDIN = Path("-")
MOST_BYTES = 1 << 30  # of a table
AS_TABLE = "give a CSV file"
Rows = list[dict[str, str]]
EMPTY = ["", "nan", "NaN"]  # what stands for no number; in text they are text


class Kind(Enum):
    """What the values of a column must be."""

    TEXT = "any text"
    NAME = "text that is not empty"
    COUNT = "a positive whole number"
    POSITIVE = "a positive number"
    NOT_NEGATIVE = "empty or a number that is not negative"
    NUMBER = "empty or a number"

    @property
    def is_text(self) -> bool:
        """Return whether the values stay as they are written."""
        return self in (Kind.TEXT, Kind.NAME)


@dataclass(frozen=True)
class Column:
    """A column, the kind of its values, and the values allowed; ``optional`` ones may be absent."""

    name: str
    kind: Kind
    optional: bool = False
    allowed: tuple[str, ...] = ()

    def broken(self, values: pd.Series) -> Iterator[tuple[pd.Series, str]]:
        """Yield for each rule of the column the rows that break it, and the rule."""
        if self.kind is Kind.NAME:
            empty = values.isna() | (values.astype(str).str.strip() == "")
            yield empty, f"{self.name} is empty; write a name, 'none' where there is none"
        if self.allowed:
            rule = f"{self.name} must be {' or '.join(map(repr, self.allowed))}"
            yield ~values.isin(self.allowed), rule
        if self.kind.is_text:
            return
        import pandas as pd

        numbers = pd.to_numeric(values, errors="coerce")
        if self.kind in (Kind.COUNT, Kind.POSITIVE):
            positive = (numbers > 0) & (numbers < math.inf)
            yield ~positive, f"{self.name} must be a positive number"
            if self.kind is Kind.COUNT:
                yield numbers % 1 != 0, f"{self.name} must be a whole number"
            return
        good = numbers.notna()
        if self.kind is Kind.NOT_NEGATIVE:
            good = (numbers >= 0) & (numbers < math.inf)
        yield ~(good | values.isna()), f"{self.name} must be {self.kind.value}"


@dataclass(frozen=True)
class Rule:
    """A rule of a whole table: which rows break it, and its words."""

    is_broken: Callable[[pd.DataFrame], pd.Series]
    words: str


@dataclass(frozen=True)
class Schema:
    """What a table must be.

    No two rows agree in the columns ``unique``. An ``exact`` table has no other columns. ``rules``
    are those of the whole table. ``what`` is the word for the file, ``way_out`` ends every error
    about it.
    """

    columns: tuple[Column, ...]
    unique: tuple[str, ...] = ()
    exact: bool = False
    rules: tuple[Rule, ...] = ()
    what: str = "table"
    way_out: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names of the columns that must be there."""
        return [column.name for column in self.columns if not column.optional]

    def read(self, path: Path) -> pd.DataFrame:
        """Return the table in a CSV file. Raises ResultsError."""
        frame = self._parsed(path)
        if wrong := self._wrong_columns(frame):
            raise _error(f"{path} {wrong}", self.way_out)
        with reading(path, self.way_out or AS_TABLE, ResultsError):  # numbers beyond all floats
            if broken := self._first_broken(frame):
                raise _error(f"{path} line {broken[0] + 2} {broken[1]}", self.way_out)
            return self._typed(frame)

    def _parsed(self, path: Path) -> pd.DataFrame:
        """Return the table as it stands, if every line has as many values as the first."""
        return _frame(
            path,
            self.what,
            self.way_out,
            dtype={column.name: str for column in self.columns if column.kind.is_text},
            keep_default_na=False,
            na_values={c.name: EMPTY for c in self.columns if not c.kind.is_text},
            skipinitialspace=True,
        )

    def checked(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with numbers as numbers. Raises InputError if it is no such table."""
        require_frame(frame)
        if wrong := self._wrong_columns(frame):
            raise InputError(f"the table {wrong}")
        if broken := self._first_broken(frame):
            raise InputError(f"row {broken[0]} of the table {broken[1]}")
        return self._typed(frame)

    def _wrong_columns(self, frame: pd.DataFrame) -> str:
        """Return in words which columns are wrong; empty if none are."""
        if self.exact and list(frame.columns) != self.names:
            return f"has columns {', '.join(frame.columns)}; write exactly {', '.join(self.names)}"
        missing = [name for name in self.names if name not in frame]
        if not missing:
            return ""
        apart = ", separated by commas" if len(frame.columns) == 1 else ""
        needed = f"a table needs {', '.join(self.names)}{apart}"
        return f"lacks the columns {', '.join(missing)}; {needed}"

    def _first_broken(self, frame: pd.DataFrame) -> tuple[int, str] | None:
        """Return the position of the first row that breaks a rule, and its values with the rule."""
        for wrong, rule in self._broken(frame):
            if wrong.any():
                position = int(wrong.to_numpy().argmax())
                row = ",".join(str(value) for value in frame.iloc[position])
                return position, f"({row}): {rule}"
        return None

    def _broken(self, frame: pd.DataFrame) -> Iterator[tuple[pd.Series, str]]:
        for column in self.columns:
            if column.name in frame:
                yield from column.broken(frame[column.name])
        for rule in self.rules:
            yield rule.is_broken(frame), rule.words
        if self.unique:
            twice = self._typed(frame).duplicated(list(self.unique))
            yield twice, "the same cell appears twice; keep one, and one source per table"

    def _typed(self, frame: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        numbers = [c for c in self.columns if c.name in frame and not c.kind.is_text]
        typed = frame.assign(**{c.name: pd.to_numeric(frame[c.name]) for c in numbers})
        return typed.astype({c.name: int for c in numbers if c.kind is Kind.COUNT})


def read_cells(path: str | Path, columns: Sequence[str] = (), what: str = "table") -> Rows:
    """Return the rows of a CSV file, every cell as its text; "-" is the standard input.

    Raises ResultsError for a file that is no table, or that lacks one of these columns.
    """
    first, *others = list(_lines(_content(Path(path), what), path)) or [[]]
    names = [name.strip() for name in first]
    if missing := [name for name in columns if name not in names]:
        empty = "" if names else " is empty: it"
        raise ResultsError(f"{path}{empty} lacks the columns {', '.join(missing)}; add them")
    return [dict(zip(names, line, strict=True)) for line in others]


def read_frame(path: str | Path, *columns: str) -> pd.DataFrame:
    """Return the table in a CSV file, numbers as numbers and nothing where a cell is empty.

    Raises ResultsError for a file that is no table, or that lacks one of these columns.
    """
    frame = _frame(Path(path), "table", "")
    if missing := [name for name in columns if name not in frame]:
        raise ResultsError(f"{path} lacks the columns {', '.join(missing)}; add them")
    return frame


def _frame(path: Path, what: str, way_out: str, **options: Any) -> pd.DataFrame:
    import pandas as pd

    content = _content(path, what, way_out)
    with reading(path, way_out or AS_TABLE, ResultsError):
        frame = pd.read_csv(BytesIO(content), on_bad_lines="skip", **options)  # named below
    for _ in _lines(content, path, way_out):  # one of another length is refused
        pass
    return frame


def _content(path: Path, what: str, way_out: str = "") -> bytes:
    """Return what a file holds in UTF-8: text would take four times the memory in `io.StringIO`."""
    if path == STDIN:
        with reading("the standard input", way_out or AS_TABLE, ResultsError):
            return sys.stdin.read(MOST_BYTES).encode()
    if not path.exists():
        raise ResultsError(f"there is no {what} {path}")
    return read_text(path, MOST_BYTES, way_out or AS_TABLE, ResultsError).encode()


def _lines(content: bytes, path: str | Path, way_out: str = "") -> Iterator[list[str]]:
    """Yield the lines that are not empty, as long as each has as many values as the first."""
    columns, text = 0, TextIOWrapper(BytesIO(content), "utf-8", newline="\n")
    with reading(path, way_out or AS_TABLE, ResultsError):
        for number, line in enumerate(filter(None, csv.reader(text)), start=1):
            columns = columns or len(line)
            if len(line) != columns:
                raise _error(
                    f"{path} line {number} has {'fewer' if len(line) < columns else 'more'} "
                    f"values than the first line has columns ({len(line)}, not {columns})",
                    way_out,
                )
            yield line


def _error(problem: str, way_out: str) -> ResultsError:
    return ResultsError(f"{problem}; {way_out}" if way_out else problem)


def require_frame(rows: Any, *columns: str) -> None:
    """Raise InputError unless this is a pandas DataFrame that has these columns."""
    import pandas as pd

    if not isinstance(getattr(rows, "rows", rows), pd.DataFrame):  # an answer has rows
        raise InputError(
            f"rows {rows!r} must be a pandas DataFrame, such as ddlnb.forecast and ddlnb.measure "
            f"return, or ddlnb.read_rows from a file"
        )
    if missing := [column for column in columns if column not in rows]:
        raise InputError(f"the table lacks the columns {', '.join(missing)}; give whole rows")


SOURCES = ("published", "simulated", "emulated", "measured")  # of a row

# A table of throughputs.
KEY = ["model", "local_batch", "network", "method", "gpus"]
RATE = "throughput_samples_per_s"
THROUGHPUT = (
    Column("model", Kind.NAME),
    Column("local_batch", Kind.COUNT),
    Column("network", Kind.TEXT),
    Column("method", Kind.NAME),
    Column("gpus", Kind.COUNT),
    Column(RATE, Kind.POSITIVE),
)
NAMED_NETWORK = Rule(
    lambda rows: (rows["gpus"].astype(int) > 1) & (rows["network"].fillna("").str.strip() == ""),
    "network is empty; only a row of one GPU, which uses none, may leave it out",
)

# The tidy table: what was run. Runs that agree in all of these are repetitions of one cell.
CELL = [
    *("model", "structure", "local_batch", "network", "method", "gpus", "engine", "source"),
    *("servers", "optimizer", "settings", "iterations", "warmup", "machine"),
]
# What came out of one run. Seconds and bytes are per iteration and worker.
MEASURES = [RATE, "iteration_seconds", "exposed_communication_seconds", "bytes_sent"]
PROVENANCE = ["versions", "commit", "time"]  # of a run
RUN_COLUMNS = [*CELL, "repetition", *MEASURES, "messages", "plan", *PROVENANCE]
ROW_COLUMNS = [*CELL, *MEASURES, "std", "repetitions", "messages", "plan", *PROVENANCE]
_TEXTS = ("model", "structure", "network", "method", "engine", "source", "optimizer", "settings")
_KINDS = {
    RATE: Kind.POSITIVE,
    **dict.fromkeys([*_TEXTS, "machine", "plan", *PROVENANCE], Kind.TEXT),
}
RUNS, ROWS = (
    Schema(
        tuple(Column(name, _KINDS.get(name, Kind.NUMBER)) for name in names),
        what="results file",
        way_out="fix that file or move it away; nothing has been overwritten",
    )
    for names in (RUN_COLUMNS, ROW_COLUMNS)
)
