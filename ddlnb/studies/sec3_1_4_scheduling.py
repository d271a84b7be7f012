"""Section 3.1.4 on simulated clusters: what merging, partition and priority do, and what is lost.

The methods are those of METHODS, as section 3 describes them. (The scripts behind Fig. 4 ran two of
them differently: `ddlnb.calibration.testbed.as_run`.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from ddlnb.calibration.testbed import CLUSTERS, fig4_workload
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.breakdown import losses
from ddlnb.simulator.simulate import Cell, simulate
from ddlnb.units import MB, MS

SHOWN_ITERATIONS = 4  # as the figure of schedules wants
PARTS = ("computation", "contention", "latency", "bandwidth")


def simulate_schedules(
    model: str, clusters: Sequence[str | Cluster] = tuple(CLUSTERS.values()), gpus: int = 32
) -> dict[str, dict[str, Timeline]]:
    """The simulated timelines of the seven methods, by network and method."""
    workload = fig4_workload(model)
    return {
        cluster.network: {
            name: simulate(workload, cluster, method, iterations=SHOWN_ITERATIONS)
            for name, method in METHODS.items()
        }
        for cluster in _in_use(clusters, gpus)
    }


def loss_rows(
    model: str, clusters: Sequence[str | Cluster] = tuple(CLUSTERS.values()), gpus: int = 32
) -> pd.DataFrame:
    """Where a steady iteration goes: one row per network and method, in seconds."""
    cells = [
        Cell(fig4_workload(model), cluster, method)
        for cluster in _in_use(clusters, gpus)
        for method in METHODS.values()
    ]
    return pd.DataFrame(
        [
            {
                "model": model,
                "network": cell.cluster.network,
                "gpus": gpus,
                "method": cell.method.name,
                "machine": cell.cluster.name,
                "source": "simulated",
                **asdict(found),
            }
            for cell, found in zip(cells, losses(cells), strict=True)
        ]
    )


def _in_use(clusters: Sequence[str | Cluster], gpus: int) -> list[Cluster]:
    found = [get_cluster(cluster, gpus) for cluster in clusters]
    networks = [cluster.network for cluster in found]
    require(len(set(networks)) == len(networks), f"clusters share a network: {networks}")
    return found


def loss_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds that every method loses to latency, contention and bandwidth, by network."""
    parts = list(PARTS[1:])
    table = rows.set_index(["method", "network"])[[*parts, "iteration_seconds"]] / MS
    wide = table.rename(columns={"iteration_seconds": "iteration"}).unstack("network")
    wide = wide.swaplevel(axis=1)
    networks = list(dict.fromkeys(rows["network"]))
    columns = [(network, part) for network in networks for part in [*parts, "iteration"]]
    columns = pd.MultiIndex.from_tuples(columns, names=["network", "lost to (ms)"])
    return wide.loc[list(dict.fromkeys(rows["method"])), columns]


def schedule_facts(timelines: Mapping[str, Mapping[str, Timeline]]) -> pd.DataFrame:
    """What merging, partition and priority change: one row per network and method.

    messages: of one iteration. largest_mb: the largest of them, in MB. before_end: how many of
    them start before the backward pass ends. into_next: how many are still under way when the next
    forward pass begins. places_of_waits: where in an iteration the worker waits, 1 when it waits
    for all layers at once.
    """
    rows = [
        {"network": network, "method": method, **_facts(line)}
        for network, by_method in timelines.items()
        for method, line in by_method.items()
    ]
    return pd.DataFrame(rows).set_index(["network", "method"])


def _facts(line: Timeline) -> dict[str, float]:
    """The facts of the second iteration, which the first one has left its marks on."""
    spans = [span for span in line.spans if span.rank == 0]
    sent = [span for span in spans if span.kind == "message" and span.iteration == 1]
    ends = max(s.stop_seconds for s in spans if s.kind == "backward" and s.iteration == 1)
    begins = min(s.start_seconds for s in spans if s.kind == "forward" and s.iteration == 2)
    return {
        "messages": len(sent),
        "largest_mb": max(span.bytes for span in sent) / MB,
        "before_end": sum(span.start_seconds < ends for span in sent),
        "into_next": sum(span.stop_seconds > begins for span in sent),
        "places_of_waits": len({s.name for s in spans if s.kind == "wait"}),
    }
