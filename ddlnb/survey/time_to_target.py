"""Where lossy methods pay: speed-ups over clusters and sizes, as tables and verdicts.

Iterations are measured on digits, seconds simulated for other models; in the pure case both belong
to digits. `ddlnb.training.cost.time_to_target` multiplies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ddlnb.survey.findings import Findings, findings
from ddlnb.training.cost.pure_case import digits_workload, made_up_cluster
from ddlnb.training.cost.time_to_target import (
    NO,
    UNSURE,
    YES,
    iterations_to_target,
    recommendations,
    time_to_target,
)
from ddlnb.units import counted
from ddlnb.workloads.workload import read_profile

if TYPE_CHECKING:
    import pandas as pd


CLUSTER = ["network", "task", "workers"]
FREE, ON_CPU = "free", "cpu-1thread"  # profiles of what compression takes
LINKS = (("10 Mb/s", "1 ms"), ("1 Gb/s", "50 us"))  # made-up, of the pure case


def iterations_table(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the iterations to the target by method and number of workers, over the seeds."""
    needed = iterations_to_target(curves, target)
    cells = needed.groupby(["method", "workers"], sort=False)["iterations"]
    return cells.agg(["mean", "min", "max"]).round(1)


def times_on_clusters(
    curves: pd.DataFrame, target: float, model: str, clusters: Sequence[str], compression: str
) -> pd.DataFrame:
    """Return the time to target of every method, had the model needed these iterations.

    ``model`` names a profile, ``compression`` the profile of what compressing takes: "free" or
    "cpu-1thread".
    """
    return time_to_target(curves, target, read_profile(model), clusters, compression)


def pure_case(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the time to target of digits itself, measured here, behind made-up links."""
    links = [made_up_cluster(*link) for link in LINKS]
    return time_to_target(curves, target, digits_workload(), links, ON_CPU)


def quickest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the row of `time_to_target` with the fewest seconds, for every cluster and size.

    Columns: network, workers, method, seconds, speedup, speedup_low, speedup_high.
    """
    shown = ["method", "seconds", "speedup", "speedup_low", "speedup_high"]
    rows = table.sort_values("seconds", kind="stable").groupby(CLUSTER, sort=False).head(1)
    return rows.sort_values(["network", "workers"]).set_index(["network", "workers"])[shown]


def quickest_table(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the quickest method by network and workers, one group of columns per table."""
    import pandas as pd

    names = {
        "method": "method",
        "seconds": "time to target (s)",
        "speedup": "speed-up",
        "speedup_low": "from",
        "speedup_high": "to",
    }
    parts = {
        label: quickest(table).rename(columns=names).round(2) for label, table in tables.items()
    }
    return pd.concat(parts, axis=1)


def verdict_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per verdict on a `time_to_target`: network, workers, method, choice, said.

    ``said`` begins with the network and the number of workers.
    """
    import pandas as pd

    networks = dict(zip(table["machine"], table["network"], strict=True))
    rows = []
    for one in recommendations(table):
        network = networks[one.machine]
        said = f"{network}, {counted(one.workers, 'worker')}: {one}"
        rows.append((network, one.workers, one.method, one.choice, said))
    return pd.DataFrame(rows, columns=["network", "workers", "method", "choice", "said"])


def verdict_list(table: pd.DataFrame, workers: int) -> Findings:
    """Return what is said of every lossy method with this number of workers."""
    return findings(*verdict_table(table[table["workers"] == workers])["said"])


def target_findings(tables: Mapping[str, pd.DataFrame], workers: int) -> Findings:
    """Return, for every table and network, which methods gain, which may, and which do not."""
    return findings(
        *(
            f"{label}, {network}: {_choices(part)}."
            for label, table in tables.items()
            for network, part in verdict_table(table[table["workers"] == workers]).groupby(
                "network", sort=False
            )
        )
    )


def _choices(verdicts_there: pd.DataFrame) -> str:
    words = {YES: "a gain", UNSURE: "no clear gain", NO: "no gain"}
    groups = (
        f"{word} by {', '.join(name.removesuffix(' on A2A') for name in methods)}"
        for choice, word in words.items()
        if len(methods := verdicts_there.loc[verdicts_there["choice"] == choice, "method"])
    )
    return "; ".join(groups)
