"""Merging, partition and priority on simulated clusters (survey, section 3.1.4).

The methods are those of SURVEYED, as section 3 describes them. (The scripts behind Fig. 4 ran two
of them differently: see `ddlnb.survey.testbed.as_run`.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require
from ddlnb.plans.methods import SURVEYED
from ddlnb.replanning.replanner import measured_cluster as measured_cluster
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.simulate import Cell, breakdown, simulate
from ddlnb.survey.fig3_timelines import (
    EARLY as EARLY,
    LATE as LATE,
    PLACES,
    overlap,
    places_of_waits,
)
from ddlnb.survey.testbed import CLUSTERS, fig4_workload as fig4_workload
from ddlnb.units import MS

SHOWN_ITERATIONS = 4  # The figure draws the middle two of these.
PARTS = ("computation", "contention", "latency", "bandwidth")


def simulate_schedules(
    model: str, clusters: Sequence[str | Cluster] = tuple(CLUSTERS.values()), gpus: int = 32
) -> dict[str, dict[str, Timeline]]:
    """Return the simulated timelines of the seven methods, by network and method."""
    workload = fig4_workload(model)
    return {
        cluster.network: {
            name: simulate(workload, cluster, method, iterations=SHOWN_ITERATIONS)
            for name, method in SURVEYED.items()
        }
        for cluster in _with_gpus(clusters, gpus)
    }


def breakdown_rows(
    model: str, clusters: Sequence[str | Cluster] = tuple(CLUSTERS.values()), gpus: int = 32
) -> pd.DataFrame:
    """Return the parts of a steady iteration in seconds, one row per network and method."""
    cells = [
        Cell(fig4_workload(model), cluster, method)
        for cluster in _with_gpus(clusters, gpus)
        for method in SURVEYED.values()
    ]
    rows = [
        {
            "model": model,
            "network": cell.cluster.network,
            "gpus": gpus,
            "method": cell.method.name,
            "machine": cell.cluster.name,
            "source": "simulated",
            **asdict(found),
        }
        for cell, found in zip(cells, breakdown(cells), strict=True)
    ]
    return pd.DataFrame(rows)


def _with_gpus(clusters: Sequence[str | Cluster], gpus: int) -> list[Cluster]:
    found = [get_cluster(cluster, gpus) for cluster in clusters]
    networks = [cluster.network for cluster in found]
    require(
        len(set(networks)) == len(networks),
        f"clusters share a network: {networks}; give clusters of different networks",
    )
    return found


def breakdown_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the milliseconds lost to contention, latency and bandwidth, by method and network."""
    parts = [*PARTS[1:], "iteration"]
    table = rows.rename(columns={"iteration_seconds": "iteration"})
    columns = pd.MultiIndex.from_product(
        [rows["network"].unique(), parts], names=["network", "lost to (ms)"]
    )
    wide = table.pivot(index="method", columns="network", values=parts).swaplevel(axis=1) / MS
    return wide.loc[rows["method"].unique(), columns].round(1)


def schedule_facts(timelines: Mapping[str, Mapping[str, Timeline]]) -> pd.DataFrame:
    """Return what merging, partition and priority change, one row per network and method.

    The columns are those of `overlap`, of the second iteration, and the places of waits.
    """
    rows = [
        {"network": network, "method": method, **overlap(line.on(0), 1)}
        | {PLACES: places_of_waits(line.on(0))}
        for network, by_method in timelines.items()
        for method, line in by_method.items()
    ]
    return pd.DataFrame(rows).set_index(["network", "method"]).round(1)
