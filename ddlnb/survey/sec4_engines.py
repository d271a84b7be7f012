"""Section 4.1: the same plans on our engine, on Horovod and on BytePS."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ddlnb.engines.catalogue import installed, support
from ddlnb.engines.measure import measure
from ddlnb.engines.targets import Methods
from ddlnb.results.tables import throughput_table


def support_table() -> pd.DataFrame:
    """Return, for every method and engine, "yes" or the reason why the engine cannot run it."""
    table = pd.DataFrame(support(), columns=["method", "engine", "reason"])
    wide = table.pivot(index="method", columns="engine", values="reason")
    return wide.replace("", "yes")


def measure_engines(
    model: str,
    methods: Methods = "all",
    *,
    workers: int,
    servers: int,
    iterations: int,
    repetitions: int,
    out: str | Path | None = None,
) -> pd.DataFrame:
    """Measure methods, by default all, on every engine installed here, in alternating runs.

    Engines that are not installed are left out. Raises what `ddlnb.measure` raises.
    """
    return measure(
        model,
        methods,
        workers=workers,
        servers=servers,
        engine=installed(),
        iterations=iterations,
        repetitions=repetitions,
        out=out,
    )


def engines_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return throughput and messages by engine and method, and the plan that was executed."""
    table = throughput_table(rows.drop(columns="exposed_communication_seconds"))
    return table.assign(plan=rows["plan"].to_numpy())


def plans_per_method(rows: pd.DataFrame) -> pd.Series:
    """Return the number of different plans that the engines executed, by method."""
    planned = rows[rows["plan"] != ""]
    return planned.groupby("method")["plan"].nunique()
