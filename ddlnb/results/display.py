"""Tidy rows as tables to read: what varies as the index, units in the headers, numbers rounded."""

from __future__ import annotations

import pandas as pd

from ddlnb.results.columns import RATE
from ddlnb.results.schema import require_frame
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
