"""What one slow worker costs each method: the seven lossless ones, SSP, ASP and local SGD.

Every worker is simulated: lossless methods event by event, the others by their own loops in the
cluster's time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require
from ddlnb.plans.methods import SURVEYED
from ddlnb.studies.findings import Findings, findings
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.units import show_seconds
from ddlnb.workloads.workload import Workload, read_profile

FACTORS = (1, 2, 3, 4, 6, 8)
RELAXED = ("ssp(3) on PS", "asp on PS", "local(8) on A2A")
STEPS = 96  # gradients of every worker; runs behind a bound end up waiting after a few


def slowdowns(
    factors: Sequence[float] = FACTORS,
    methods: Sequence[str] = (*SURVEYED, *RELAXED),
    *,
    workload: str | Workload = "resnet50_b64_rtx2080ti",
    cluster: str | Cluster = "survey-100GbE",
    workers: int = 8,
    steps: int = STEPS,
) -> pd.DataFrame:
    """Return rows of method, factor, iteration_seconds and throughput, relative to factor 1.

    Worker 0 computes ``factor`` times as long as the others. An iteration is one gradient of every
    worker, or as many as there are workers. ``sum_of_rates`` is the throughput if nobody waited and
    nothing but computation took time. Raises InputError for factors that do not begin with 1.
    """
    require(
        bool(factors) and factors[0] == 1,
        f"factors {list(factors)} must begin with 1, to which the others are compared",
    )
    work = read_profile(workload) if isinstance(workload, str) else workload
    here = get_cluster(cluster, workers)
    rows = []
    for method in methods:
        seconds = [
            iteration_cost(work, here.with_unlike({0: factor}), method, steps=steps)
            for factor in factors
        ]
        for factor, cost in zip(factors, seconds, strict=True):
            rows.append(
                {
                    "method": method,
                    "factor": factor,
                    "iteration_seconds": cost.iteration_seconds,
                    "throughput": seconds[0].iteration_seconds / cost.iteration_seconds,
                    "sum_of_rates": (workers - 1 + 1 / factor) / workers,
                }
            )
    frame = pd.DataFrame(rows)
    return frame.assign(model=work.model, machine=here.name, workers=workers, source="simulated")


def slowdown_table(slowed: pd.DataFrame) -> pd.DataFrame:
    """Return the throughput in percent of that without a slow worker, by method and factor."""
    wide = slowed.pivot(index="method", columns="factor", values="throughput")
    return (100 * wide.loc[list(dict.fromkeys(slowed["method"]))]).round(1)


def slow_worker_findings(slowed: pd.DataFrame) -> Findings:
    """Say what is left with the slowest worker, of which methods, and what the sum of rates is."""
    last = slowed[slowed["factor"] == slowed["factor"].max()].set_index("method")
    factor, workers = last["factor"].iloc[0], last["workers"].iloc[0]
    left = last["throughput"]
    lossless = left[[name for name in left.index if name in SURVEYED]]
    others = left.drop(lossless.index)
    said = "; ".join(f"{name} {share:.0%}" for name, share in others.items())
    least, most = lossless.idxmin(), lossless.idxmax()
    sums = float(last["sum_of_rates"].iloc[0])
    beyond = [name for name, share in others.items() if share > sums]
    return findings(
        f"With one of {workers} workers {factor:g} times slower, lossless methods keep "
        f"{lossless.min():.0%} ({least}) to {lossless.max():.0%} ({most}) of their throughput.",
        f"Relaxed methods keep: {said}. If nobody waited, the sum of the workers' rates would "
        f"leave {sums:.0%}.",
        f"More than that: {', '.join(beyond)}. The links to the servers, not the workers, limit "
        f"it, and a slow worker leaves them to the others."
        if beyond
        else "",
        f"The more of its iteration a method communicates, the less a slow worker costs it: with "
        f"none {least} takes {_seconds(slowed, least)} and {most} {_seconds(slowed, most)}.",
    )


def _seconds(slowed: pd.DataFrame, method: str) -> str:
    rows = slowed[(slowed["method"] == method) & (slowed["factor"] == 1)]
    return show_seconds(float(rows["iteration_seconds"].iloc[0]))
