"""Tidy rows as tables to read: what varies as the index, units in the headers, numbers rounded."""

from __future__ import annotations

import pandas as pd

from ddlnb.results.columns import RATE
from ddlnb.units import MS

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

    Rows without a column, such as ``speedup``, give a table without it.
    """
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
