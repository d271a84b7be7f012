"""The tidy table: one row per cell, made from one line per finished run.

``rows.csv`` is the table. Beside it ``rows.runs.csv`` keeps every single run; a row is the median
of the runs of its cell, so a table can be completed later and its noise stays visible.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path

import pandas as pd

from ddlnb.errors import ResultsError, require
from ddlnb.files import write_atomically
from ddlnb.results.columns import (
    CELL,
    MEASURES,
    PROVENANCE,
    ROW_COLUMNS,
    RUN_COLUMNS,
    SOURCES,
    TEXT,
)


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: medians over repetitions, ``std`` of the throughput, and their number.

    The standard deviation is over repetitions, NaN when there is one. Provenance is that of the
    last run; ``plan`` is "several" when the runs were planned differently.
    """
    if runs.empty:
        return pd.DataFrame(columns=ROW_COLUMNS)
    groups = runs.groupby(CELL, sort=False, dropna=False)
    rows = groups.agg(
        **{measure: (measure, "median") for measure in MEASURES},
        std=("throughput_samples_per_s", lambda values: values.std(ddof=1)),
        repetitions=("repetition", "nunique"),
        plan=("plan", lambda plans: plans.iloc[0] if plans.nunique() == 1 else "several"),
        **{column: (column, "last") for column in ["messages", *PROVENANCE]},
    ).reset_index()
    return rows[ROW_COLUMNS]


def read_rows(path: str | Path) -> pd.DataFrame:
    """The table at this path. Raises ResultsError if it is not one."""
    return _read(Path(path), ROW_COLUMNS)


class ResultsFile:
    """A table that grows run by run; every run is on disk, whole, before `add` returns.

    Without a path the runs are kept in memory only.
    """

    def __init__(self, path: str | Path | None = None):
        self.path = Path(path) if path is not None else None
        self._lines: list[dict[str, object]] = []
        if self.path is not None:
            require(
                self.path.suffix == ".csv", f"results file {str(path)!r} must have a name in .csv"
            )
            if self.path.exists() and not self.runs_path.exists():
                raise ResultsError(
                    f"{self.path} exists without {self.runs_path.name}, from which it is made; "
                    f"move it away or choose another name"
                )
            self._lines = self._on_disk()
            self._write()  # rows may lag behind the runs if the last process was killed

    @property
    def runs_path(self) -> Path:
        """Where the single runs are kept."""
        assert self.path is not None
        return self.path.with_suffix(".runs.csv")

    @property
    def runs(self) -> pd.DataFrame:
        """All runs so far."""
        return pd.DataFrame(self._lines, columns=RUN_COLUMNS)

    @property
    def rows(self) -> pd.DataFrame:
        """The table so far."""
        return summarise(self.runs)

    def has(self, cell: Mapping[str, object], repetition: int) -> bool:
        """Whether this repetition of this cell has been run."""
        wanted = {**cell, "repetition": repetition}
        return any(
            all(_same(line[key], value) for key, value in wanted.items()) for line in self._lines
        )

    def add(self, run: Mapping[str, object]) -> None:
        """Keep one finished run.

        Raises ResultsError if it cannot be written, or if the file was damaged since; what is on
        disk stays as it is.
        """
        missing = [column for column in RUN_COLUMNS if column not in run]
        require(not missing, f"run lacks the columns {missing}")
        require(run["source"] in SOURCES, f"source {run['source']!r} must be one of {SOURCES}")
        if self.path is not None:
            self._lines = self._on_disk()  # another process may have added runs
        self._lines.append({column: run[column] for column in RUN_COLUMNS})
        self._write()

    def _on_disk(self) -> list[dict[str, object]]:
        """The runs in the file. Raises ResultsError if it is damaged, or if runs vanished from it.

        The table is looked at first: another process that adds a run writes the runs before it.
        """
        counted = self._counted()
        if not self.runs_path.exists():
            return []
        runs = _read(self.runs_path, RUN_COLUMNS)
        if not self.runs_path.read_bytes().endswith(b"\n"):
            raise ResultsError(f"{self.runs_path} ends in the middle of a line; {_WAY_OUT}")
        held = len(runs.drop_duplicates([*CELL, "repetition"]))
        if held < counted:
            raise ResultsError(
                f"{self.runs_path} holds {held} runs and {self.path} counts {counted}: some were "
                f"lost, so nothing has been overwritten; put the file back as it was, or remove "
                f"the table, which is made from it, to run them again"
            )
        return runs.to_dict("records")

    def _counted(self) -> int:
        """The runs that the table tells of; none if it is damaged, for it is made anew."""
        try:
            rows = _read(self.path, ROW_COLUMNS) if self.path and self.path.exists() else None
        except ResultsError:
            return 0
        return 0 if rows is None else int(pd.to_numeric(rows["repetitions"], "coerce").sum())

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            write_atomically(self.runs_path, self.runs.to_csv(index=False))
            write_atomically(self.path, self.rows.to_csv(index=False))
        except OSError as error:
            raise ResultsError(
                f"results file {self.path} cannot be written: {error}; the runs that were "
                f"finished before are in {self.runs_path.name}, and the same call goes on with them"
            ) from error


def _same(left: object, right: object) -> bool:
    return left == right or (pd.isna(left) and pd.isna(right)) or str(left) == str(right)


def _read(path: Path, columns: Iterable[str]) -> pd.DataFrame:
    columns = list(columns)
    text = {name: str for name in TEXT if name in columns}
    try:
        numbers = {name: ["", "nan", "NaN"] for name in columns if name not in text}
        content = path.read_bytes().decode()
        frame = pd.read_csv(StringIO(content), dtype=text, keep_default_na=False, na_values=numbers)
    except FileNotFoundError as error:
        raise ResultsError(f"there is no results file {path}") from error
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error}") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path} cannot be read as a table ({error}); {_WAY_OUT}") from error
    lengths = [len(line) for line in csv.reader(StringIO(content)) if line]
    if short := [line for line, length in enumerate(lengths, 1) if length < lengths[0]]:
        raise ResultsError(f"{path}, line {short[0]} is incomplete; {_WAY_OUT}")  # pandas fills up
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ResultsError(f"{path} lacks the columns {missing}; {_WAY_OUT}")
    for measure in MEASURES:
        numbers = pd.to_numeric(frame[measure], errors="coerce")
        bad = numbers.isna() & frame[measure].notna() & (frame[measure] != "")
        if bad.any() or frame["throughput_samples_per_s"].isna().any():
            line = int((bad | frame["throughput_samples_per_s"].isna()).idxmax()) + 2
            raise ResultsError(f"{path}, line {line}: {measure} is not a number; {_WAY_OUT}")
        frame[measure] = numbers
    return frame[columns]


_WAY_OUT = "mend or move that file away, nothing has been overwritten"
