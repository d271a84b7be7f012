"""Keep the tidy table: one row per cell, made from one line per finished run.

``rows.csv`` is the table. Beside it ``rows.runs.csv`` keeps every single run; a row is the median
of the runs of its cell, so a table can be completed later and its noise stays visible.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ddlnb.errors import NotWritten, ResultsError, require
from ddlnb.files import write_atomically
from ddlnb.results.schema import (
    CELL,
    MEASURES,
    PROVENANCE,
    ROW_COLUMNS,
    ROWS,
    RUN_COLUMNS,
    RUNS,
    SOURCES,
)


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: medians over repetitions, ``std`` of the throughput, their number.

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
    """Return the tidy table in a CSV file, with the columns and units of `ddlnb.measure`.

    Raises ResultsError if the file is not one.

    >>> import ddlnb
    >>> from ddlnb.files import DATA
    >>> rows = ddlnb.read_rows(DATA / "measured" / "2026-11-21_two-cores_loopback" / "rows.csv")
    >>> sorted(set(rows["gpus"])), len(set(rows["method"]))
    ([2, 4], 7)
    """
    return ROWS.read(Path(path))[ROW_COLUMNS]


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
        """Return the path of the file with the single runs."""
        assert self.path is not None
        return self.path.with_suffix(".runs.csv")

    @property
    def runs(self) -> pd.DataFrame:
        """Return all runs so far."""
        return pd.DataFrame(self._lines, columns=RUN_COLUMNS)

    @property
    def rows(self) -> pd.DataFrame:
        """Return the table so far."""
        return summarise(self.runs)

    def has(self, cell: Mapping[str, object], repetition: int) -> bool:
        """Return whether this repetition of this cell has been run."""
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
            known, self._lines = self._lines, self._on_disk()  # another process may have added runs
            if known and not self.runs_path.exists():
                warnings.warn(
                    f"{self.runs_path} was removed under the run; its {len(known)} runs are "
                    f"written again",
                    UserWarning,
                    stacklevel=2,
                )
                self._lines = known
        self._lines.append({column: run[column] for column in RUN_COLUMNS})
        self._write()

    def _on_disk(self) -> list[dict[str, object]]:
        """Return the runs in the file. Raises ResultsError if it is damaged or has lost runs.

        The table is read first: another process that adds a run writes the runs before the table.
        """
        counted = self._counted()
        if not self.runs_path.exists():
            return []
        runs = RUNS.read(self.runs_path)[RUN_COLUMNS]
        if not self.runs_path.read_bytes().endswith(b"\n"):
            raise ResultsError(f"{self.runs_path} ends in the middle of a line; {RUNS.way_out}")
        held = len(runs.drop_duplicates([*CELL, "repetition"]))
        if held < counted:
            raise ResultsError(
                f"{self.runs_path} holds {held} runs and {self.path} counts {counted}: some were "
                f"lost, so nothing has been overwritten; put the file back as it was, or remove "
                f"the table, which is made from it, to run them again"
            )
        records: list[dict[str, object]] = runs.to_dict("records")
        return records

    def _counted(self) -> int:
        """Return the number of runs in the table; 0 if it is damaged, because it is made anew."""
        try:
            rows = read_rows(self.path) if self.path and self.path.exists() else None
        except ResultsError:
            return 0
        return 0 if rows is None else int(rows["repetitions"].sum())

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            write_atomically(self.runs_path, self.runs.to_csv(index=False))
            write_atomically(self.path, self.rows.to_csv(index=False))
        except NotWritten as error:
            raise ResultsError(
                f"{error}; the runs that were finished before "
                f"are in {self.runs_path.name}, and the same call goes on with them"
            ) from error


def _same(left: object, right: object) -> bool:
    return left == right or (pd.isna(left) and pd.isna(right)) or str(left) == str(right)
