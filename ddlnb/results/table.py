"""Tables of throughputs: their cells, their columns, and reading one with every line checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ddlnb.results.columns import KEY, NAMED_NETWORK, RATE, THROUGHPUT
from ddlnb.results.schema import Column, Kind, Schema

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
