"""Speed-ups: the throughput of every row of a table over that of a baseline's row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlnb.errors import InputError, require
from ddlnb.results.columns import CELL, RATE
from ddlnb.results.schema import require_frame

if TYPE_CHECKING:
    import pandas as pd


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
