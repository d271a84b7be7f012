"""Forecast published data-parallel runs by the names of their hardware, and print how far off.

    python -m benchmarks.data_parallel [--csv ROWS.csv]    # forecast them, in three minutes

Beside every forecast stands the trivial one: linear scaling of several GPUs, and of one the median
share of FLOP/s in the other sources. ``left out`` rows are of one GPU, or of a node whose rate is
not told, by a fit of data sheets that has not seen their table. The jitter is what each row of
several GPUs would need; rows that something else limits are left out of both.
"""

from pathlib import Path

import pandas as pd

from benchmarks.command import command
from benchmarks.errors import error_table
from ddlnb.calibration.data_parallel import ONE, SEVERAL, SHEET, TABLES, forecasts
from ddlnb.clusters.effects import slowest_of
from ddlnb.files import HARDWARE, write_atomically
from ddlnb.hardware.machine import node_costs

WRITTEN_AS_DDP = ("eager", "tuned")


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return by group: rows, median error, mean with its sign, share inside, the trivial error."""
    found = error_table(
        rows,
        by,
        "measured",
        "forecast",
        {"trivial": "trivial"},
        rows["measured"].between(rows["low"], rows["high"]),
        count="rows",
    )
    off = rows["forecast"] / rows["measured"] - 1
    signed = off.groupby([rows[name] for name in by] or (lambda _: "all"), sort=False)
    return found.assign(mean=signed.mean().round(3), signed_median=signed.median().round(3))


def left_out() -> pd.DataFrame:
    """Return by table how far off estimates are of fits that have not seen it."""
    rows = pd.read_csv(HARDWARE / "roofline_left_out.csv").query("left_out == 'source'")
    rows = rows[rows["source"].isin(list(TABLES))]
    rows = rows.assign(kind=rows["run"].str.endswith(", 1 GPUs").map({True: ONE, False: SHEET}))
    trivial = {"constant_utilisation": "constant_utilisation_seconds"}
    tables = [
        error_table(rows, by, "measured_seconds", "estimated_seconds", trivial, count="rows")
        for by in (["kind", "source", "software"], ["kind"])
    ]
    return pd.concat(tables)


def jitter(rows: pd.DataFrame) -> pd.Series:
    """Return quantiles of the relative deviation that would explain rows of several GPUs.

    They are of programs whose gradients leave while they are made, as DDP's.
    """
    known = rows[(rows["kind"] == SEVERAL) & rows["software"].isin(WRITTEN_AS_DDP)]
    slowest = known["gpus"].map(slowest_of)
    assumed = 1 + slowest * node_costs().software["jitter"].value
    needed = (assumed * known["forecast"] / known["measured"] - 1) / slowest
    return needed.clip(lower=0).quantile([0.25, 0.5, 0.75]).round(4)


def main(*, csv: Path | None = None) -> None:
    """Print the tables. With --csv the forecasts are written as well."""
    rows = forecasts()
    if csv is not None:
        write_atomically(csv, rows.to_csv(index=False, float_format="%.6g"))
    free = rows[rows["limited"] == ""]
    for by in (["kind", "source"], ["kind", "software"], ["kind"]):
        print(summary(free, by).to_string(), end="\n\n")
    print(f"with rows that something else limits\n{summary(rows, ['kind']).to_string()}\n")
    print(f"left out\n{left_out().to_string()}\n\njitter\n{jitter(free).to_string()}")


if __name__ == "__main__":
    command(main)
