"""Tables of throughputs: their cells, their columns, and reading one with every line checked.

Speed-ups: the throughput of every row of a table over that of a baseline's row.

Tidy rows as tables to read: what varies as the index, units in the headers, numbers rounded.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddlnb.errors import InputError, require
from ddlnb.results.schema import (
    CELL,
    KEY,
    NAMED_NETWORK,
    RATE,
    THROUGHPUT,
    Column,
    Kind,
    Schema,
    require_frame,
)
from ddlnb.units import MS

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
    its engine and number of workers. Raises InputError where there is none.

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
    speedup = joined[RATE] / joined["base"]
    return rows.assign(speedup=speedup.to_numpy())


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

    The index is the number of GPUs and the method, after those of network, model and engine that
    differ between the rows. Throughput and its standard deviation are in samples per second,
    exposed communication in milliseconds. Rows without a column, such as ``speedup``, give a table
    without it.

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
    varying = [name for name in ("network", "model", "engine") if _varies(rows, name)]
    table = rows.set_index([*varying, "gpus", "method"])
    columns = {
        header: (table[name].astype(float) / unit).round(digits)
        for name, (header, unit, digits) in MEASURED.items()
        if name in table
    }
    return pd.DataFrame(columns)


def _varies(rows: pd.DataFrame, column: str) -> bool:
    return column in rows and rows[column].nunique() > 1
