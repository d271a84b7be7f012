"""Time to a target loss on a cluster: iterations needed, measured, times seconds, forecast.

Iterations come from curves of a small task at the same number of workers, seconds from a workload
on a cluster. The product says what the lossy method would bring to that workload if it cost as many
iterations there, relative to BSP, as on the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.clusters import Cluster, get_cluster
from ddlnb.collectives import ring_bytes_sent
from ddlnb.compression.seconds import FREE, CompressionProfile
from ddlnb.errors import InputError, require
from ddlnb.lossy_cost import IterationCost, dense_cost
from ddlnb.methods import METHODS, Method
from ddlnb.relaxed_cost import STEPS, lossy_cost
from ddlnb.training.runs import runs_by
from ddlnb.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

DENSE = "bsp on A2A"  # the method of the curves whose iterations the lossless methods need


def best_dense(
    workload: Workload, cluster: Cluster, methods: Iterable[str | Method] = METHODS
) -> IterationCost:
    """The cost of the quickest lossless method there; those that need missing servers are left out.

    Raises InputError if none of them runs there.
    """
    costs = []
    for method in methods:
        try:
            costs.append(dense_cost(workload, cluster, method))
        except InputError:  # no servers, say
            continue
    require(bool(costs), f"no lossless method runs on {cluster!r}")
    return min(costs, key=lambda cost: cost.iteration_seconds)


def iterations_to_target(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Iterations until the test loss is at most ``target``: one row per task, method and seed.

    Infinite where it never is. Columns: task, method, workers, seed, iterations. Raises InputError
    for curves without the columns that `ddlnb.training.study` writes.
    """
    import pandas as pd

    from ddlnb.training.summaries import to_target

    cells = ("task", "method", "workers")
    rows = [
        (*names, seed, to_target(run, target))
        for names, runs in runs_by(curves, *cells).items()
        for seed, run in runs.items()
    ]
    return pd.DataFrame(rows, columns=[*cells, "seed", "iterations"])


def time_to_target(
    curves: pd.DataFrame,
    target: float,
    workload: Workload,
    clusters: Sequence[str | Cluster],
    profile: str | CompressionProfile = FREE,
    base: str | Method = "MG-WFBP",
    *,
    dense: str = DENSE,
    steps: int = STEPS,
) -> pd.DataFrame:
    """One row per cluster, number of workers and method of the curves, the dense best first.

    ``seconds`` is the mean over seeds of iterations times seconds of one; ``low`` and ``high`` are
    the ends of its 95 % t-interval. ``speedup`` is over the quickest lossless method, which needs
    the iterations of ``dense``: the geometric mean over the seeds that both have, with its interval
    (``speedup_low``, ``speedup_high``; NaN for fewer than two seeds). A run that never reaches the
    target makes seconds infinite and the speed-up 0. ``bytes`` pass a worker's link, both ways, in
    an iteration, and ``ring_bytes`` would by a dense ring. The other columns are the parts of
    `ddlnb.lossy_cost.IterationCost`. Raises InputError when the curves lack ``dense``.
    """
    import pandas as pd

    needed = iterations_to_target(curves, target)
    rows: list[dict[str, object]] = []
    for name in clusters:
        for (task, workers), group in needed.groupby(["task", "workers"], sort=False):
            cluster = get_cluster(name, int(workers))
            by_method = {
                method: part.set_index("seed")["iterations"]
                for method, part in group.groupby("method", sort=False)
            }
            if dense not in by_method:
                raise InputError(
                    f"curves of {task!r} with {workers} workers lack {dense!r}, which all others "
                    f"are compared with; they hold {', '.join(by_method)}"
                )
            best = best_dense(workload, cluster)
            ours = {
                method: lossy_cost(workload, cluster, method, profile, base, steps=steps)
                for method in by_method
                if method != dense
            }
            place = {"network": cluster.network, "machine": cluster.name, "task": task}
            for method, cost in {dense: best, **ours}.items():
                rows.append(
                    {
                        **place,
                        "workers": int(workers),
                        "target": target,
                        "model": workload.model,
                        "is_dense": method == dense,
                        **_times(by_method[method], by_method[dense], cost, best),
                        **asdict(cost),
                        "bytes": cost.bytes,
                        "ring_bytes": 2 * ring_bytes_sent(workload.gradient_bytes, int(workers)),
                        "method": method,
                        "carried_by": cost.method,
                    }
                )
    return pd.DataFrame(rows)


def _times(
    iterations: pd.Series, of_dense: pd.Series, cost: IterationCost, best: IterationCost
) -> dict[str, object]:
    from ddlnb.training.summaries import t_interval

    seconds, half = t_interval(iterations.to_numpy(dtype=float) * cost.iteration_seconds)
    common = iterations.index.intersection(of_dense.index)
    require(
        len(common) > 0, "methods have no seed in common with the dense one; run the same seeds"
    )
    mine = iterations[common].to_numpy(dtype=float) * cost.iteration_seconds
    theirs = of_dense[common].to_numpy(dtype=float) * best.iteration_seconds
    require(
        bool(np.isfinite(theirs).all()),
        "the dense method does not reach the target in all its runs; choose a higher loss",
    )
    if np.isfinite(mine).all():
        log, log_half = t_interval(np.log(theirs / mine))
        speedup = (math.exp(log), math.exp(log - log_half), math.exp(log + log_half))
    else:
        speedup = (0.0, math.nan, math.nan)
    return {
        "iterations": float(iterations.mean()),
        "iterations_over_dense": float(iterations[common].mean() / of_dense[common].mean()),
        "seeds": len(iterations),
        "reached": int(np.isfinite(iterations).sum()),
        "seconds": seconds,
        "low": seconds - half,
        "high": seconds + half,
        "speedup": speedup[0],
        "speedup_low": speedup[1],
        "speedup_high": speedup[2],
    }
