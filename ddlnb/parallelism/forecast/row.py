"""One row of a table of training runs: its cells by name, as numbers that are checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddlnb.errors import InputError
from ddlnb.units import counted

EMPTY = {"", "nan", "none", "null", "na", "n/a", "not stated", "-"}


@dataclass
class Notes:
    """What rows left open, and what was taken instead: said once each, with the number of rows."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, column: str, taken: str) -> None:
        self.counts[column, taken] += 1

    def lines(self) -> list[str]:
        """Return one line per kind."""
        return [
            f"{column} is missing in {counted(count, 'row')}: taken as {taken}"
            for (column, taken), count in self.counts.items()
        ]


@dataclass(frozen=True)
class Row:
    """A row of a table: its number, as an editor counts lines, and its cells."""

    line: int
    cells: Mapping[str, str]
    notes: Notes

    def text(self, *columns: str) -> str:
        """Return the first of these columns that has a value, otherwise ''."""
        for column in columns:
            value = str(self.cells.get(column) or "").strip()
            if value.lower() not in EMPTY:
                return value
        return ""

    def number(self, *columns: str, default: float | None = None, told: str = "") -> float:
        """Return a number above 0; ``told`` says what a default is."""
        text = self.text(*columns)
        if not text:
            if default is None:
                raise self.error(columns[0], "is missing; fill it in")
            if told:
                self.notes.add(columns[0], told)
            return default
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.error(columns[0], f"{text!r} must be a number above 0")
        return value

    def whole(self, *columns: str, default: int | None = None, told: str = "") -> int:
        """Return a whole number above 0, also one written as 8.0."""
        value = self.number(*columns, default=default, told=told)
        if value != round(value):
            raise self.error(columns[0], f"{value!r} must be a whole number")
        return round(value)

    def error(self, column: str, problem: str) -> InputError:
        """Return an error that names the row and the column."""
        return InputError(f"row {self.line}, column {column}: {problem}")
