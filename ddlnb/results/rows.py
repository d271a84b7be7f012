"""Keep the tidy table: one row per cell, made from one line per finished run.

``rows.csv`` is the table. Beside it ``rows.runs.csv`` keeps every single run; a row is the median
of the runs of its cell, so a table can be completed later and its noise stays visible.

Of tables of throughputs there are their cells, speed-ups over a baseline's rows, and tables to
read: what varies as the index, units in the headers, numbers rounded.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddlnb.errors import InputError, NotWritten, ResultsError, require
from ddlnb.files import target_of, write_atomically
from ddlnb.results.schema import (
    CELL,
    KEY,
    MEASURES,
    NAMED_NETWORK,
    PROVENANCE,
    RATE,
    ROW_COLUMNS,
    ROWS,
    RUN_COLUMNS,
    RUNS,
    SOURCES,
    THROUGHPUT,
    Column,
    Kind,
    Schema,
    require_frame,
)
from ddlnb.units import MS


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
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.is_symlink():  # runs are beside what it leads to
            self.path = target_of(self.path)
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
        runs = _ours(RUNS.read(self.runs_path), RUN_COLUMNS, self.runs_path)
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
            rows = ROWS.read(self.path) if self.path and self.path.exists() else None
        except ResultsError:
            return 0
        return 0 if rows is None else int(_ours(rows, ROW_COLUMNS, self.path)["repetitions"].sum())

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


def _ours(table: pd.DataFrame, columns: list[str], path: Path | None) -> pd.DataFrame:
    """Return these columns. Raises ResultsError for others, which would not be written again."""
    more = [name for name in table if name not in columns]
    if more:
        raise ResultsError(
            f"{path} has columns of yours, {', '.join(more)}, and is made anew with every run; "
            f"keep them in a copy, and remove them here"
        )
    return table[columns]


def _same(left: object, right: object) -> bool:
    return left == right or (pd.isna(left) and pd.isna(right)) or str(left) == str(right)


SCHEMA = Schema(
    (
        *THROUGHPUT,
        *(Column(name, Kind.NOT_NEGATIVE, optional=True) for name in ("std", "low", "high")),
    ),
    unique=tuple(KEY),
    rules=(NAMED_NETWORK,),
)
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
        words = (f"{self.model}/{self.local_batch}", self.network, self.method, self.gpus, unit)
        return " ".join(str(word) for word in words if word)


def read_table(path: str | Path) -> pd.DataFrame:
    """Return the table in a CSV file, one row per cell. Raises ResultsError.

    It needs the columns model, local_batch, network, method, gpus and throughput_samples_per_s.
    std, low and high are numbers where they are not empty; other columns are kept as they are.
    """
    return SCHEMA.read(Path(path))


def checked_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with numbers as numbers. Raises InputError if they are no table."""
    return SCHEMA.checked(rows)


def cells_of(rows: pd.DataFrame) -> list[Cell]:
    """Return the cells of checked rows, in their order."""
    return [Cell(*key) for key in rows[KEY].itertuples(index=False, name=None)]


def cell_rates(rows: pd.DataFrame) -> dict[Cell, float]:
    """Return the throughput of every cell, in the order of the rows. Raises InputError."""
    rows = checked_table(rows)
    return dict(zip(cells_of(rows), rows[RATE].tolist(), strict=True))


def optional_numbers(rows: pd.DataFrame, column: str) -> list[float]:
    """Return the numbers of a column, NaN where they are empty or the table has no such column."""
    if column not in rows:
        return [math.nan] * len(rows)
    return [float(value) for value in pd.to_numeric(rows[column])]


def speedups(rows: pd.DataFrame, baseline: str = "single") -> pd.DataFrame:
    """Return the rows with a column ``speedup``: throughput over that of the baseline's row.

    The baseline is that of the same model, batch, network, optimizer, machine and source, whatever
    its engine; where it ran on several numbers of workers, on the same number. Raises InputError
    where there is none.

    >>> import ddlnb
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"method": ["single", "MG-WFBP"], "gpus": [1, 2]})
    >>> rows = rows.assign(model="small-conv", throughput_samples_per_s=[100, 180])
    >>> ddlnb.speedups(rows)["speedup"].to_list()
    [1.0, 1.8]
    """
    require_frame(rows, "method", RATE)
    free = {"method", "gpus", "engine", "servers", "settings"}
    keys = [column for column in CELL if column in rows and column not in free]
    single = rows[rows["method"] == baseline]
    if "gpus" in rows and (single.groupby(keys, dropna=False)["gpus"].nunique() > 1).any():
        keys.append("gpus")
    require(
        len(single) > 0,
        f"the table has no row of {baseline!r} to compare with; measure it, too, or name another "
        f"baseline",
    )
    base = single.groupby(keys, dropna=False)[RATE].median().rename("base")
    joined = rows.merge(base.reset_index(), on=keys, how="left")
    if joined["base"].isna().any():
        lacking = joined[joined["base"].isna()].iloc[0][keys].to_dict()
        raise InputError(f"the table has no row of {baseline!r} to compare with for {lacking}")
    return rows.assign(speedup=(joined[RATE] / joined["base"]).to_numpy())


# Column of the rows: its header, the unit that it is shown in, and the digits behind the point.
MEASURED = {
    RATE: ("throughput (samples/s)", 1.0, 1),
    "std": ("standard deviation (samples/s)", 1.0, 1),
    "speedup": ("speed-up", 1.0, 2),
    "exposed_communication_seconds": ("exposed communication (ms)", MS, 2),
    "messages": ("messages", 1.0, 0),
}


def throughput_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return throughput and what belongs to it by method, and by whatever else varies.

    The index is the number of GPUs and the method, after those of network, model, batch and
    engine that differ between the rows, and of the source where these tell rows not apart.
    Throughput and its standard deviation are in samples per second, exposed communication in
    milliseconds; messages are NaN where an engine does not count them.
    Rows without a column, such as ``speedup``, give a table without it.

    >>> import ddlnb
    >>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> rows = ddlnb.forecast(workload, "two-cores-4-workers", ["WFBP-A2A", "MG-WFBP"], draws=0)
    >>> table = ddlnb.throughput_table(rows)
    >>> list(table.index.names), table.index.to_list()
    (['gpus', 'method'], [(4, 'WFBP-A2A'), (4, 'MG-WFBP')])
    >>> table["speed-up"].to_list()
    [1.46, 3.19]
    """
    require_frame(rows, "gpus", "method")
    names = ("network", "model", "local_batch", "engine")
    varying = [name for name in names if _varies(rows, name)]
    if rows.duplicated([*varying, "gpus", "method"]).any() and _varies(rows, "source"):
        varying.append("source")
    table = rows.set_index([*varying, "gpus", "method"])
    columns = {
        header: (table[name].astype(float) / unit).round(digits)
        for name, (header, unit, digits) in MEASURED.items()
        if name in table
    }
    return pd.DataFrame(columns).replace({"messages": {0.0: math.nan}})


def _varies(rows: pd.DataFrame, column: str) -> bool:
    return column in rows and rows[column].nunique() > 1
