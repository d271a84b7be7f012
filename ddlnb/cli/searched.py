"""Plans on a cluster, and what is said of a searched one: how far it is from its bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method
    from ddlnb.plans.plan import Plan
    from ddlnb.search.sent import Sent
    from ddlnb.workloads.workload import Workload


def bounds(
    rows: pd.DataFrame, workload: Workload, on: Cluster, methods: Sequence[Method]
) -> list[str]:
    """Return a sentence for every number of GPUs on which a plan was searched."""
    from ddlnb.search.bound import lower_bound
    from ddlnb.search.method import Searching
    from ddlnb.units import show_seconds

    said = []
    for method in methods:
        if not isinstance(method.planner, Searching):
            continue
        for row in rows[rows["method"] == method.name].to_dict("records"):
            cluster = on.with_workers(row["gpus"])
            names = method.planner.space.collectives_on(cluster)
            bound = lower_bound(workload, cluster, names)
            seconds = row["iteration_seconds"]
            said.append(
                f"{method.name} on {counted(row['gpus'], 'GPU')}: {show_seconds(seconds)} per "
                f"iteration; without servers no plan takes less than {show_seconds(bound.seconds)} "
                f"({bound.limit}): {seconds / bound.seconds - 1:.1%} above."
            )
    return said


def plan_on_cluster(
    workload: Workload,
    on: Cluster,
    method: Method,
    servers: int | None,
    time_limit: float | None,
    sent: Sent,
) -> Plan:
    """Return the plan of a method on a cluster; of a searched one, print how good it is."""
    import sys

    import typer

    from ddlnb.cli.options import refuse_unused
    from ddlnb.errors import require
    from ddlnb.search.method import Searching
    from ddlnb.search.search import search_plan
    from ddlnb.search.sent import DENSE
    from ddlnb.simulator.simulate import plan_on

    typer.echo(f"{workload!r} on {on!r}; {workload.source}")
    if not isinstance(method.planner, Searching):
        refuse_unused(f"{method.name} is a rule, and searches nothing", time_limit=time_limit)
        require(
            sent == DENSE,
            f"--sent is what a search plans for, and {method.name} is a rule; ask `ddlnb lossy "
            f"--method 'bsp + {sent}' --base {method.name}`",
        )
        return plan_on(on, workload, method, servers)
    refuse_unused("a searched plan goes without servers", servers=servers)
    show = sys.stderr.isatty()
    space = method.planner.space
    found = search_plan(workload, on, space=space, sent=sent, time_limit=time_limit, progress=show)
    typer.echo(str(found).partition("\n")[2])
    if found.dense is not None:
        typer.echo(
            "An iteration that sends less is not worth one that sends all: `ddlnb lossy --curves` "
            "judges the time to a loss."
        )
    return found.plan
