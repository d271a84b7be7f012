"""Time to a target loss on a cluster: iterations needed, measured, times seconds, forecast.

Iterations come from curves of a small task at the same number of workers, seconds from a workload
on a cluster. The product says what the lossy method would bring to that workload if it cost as many
iterations there, relative to BSP, as on the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.choices import several
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.profile import FREE, CompressionProfile
from ddlnb.errors import require
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import Method
from ddlnb.plans.requests import AllReduce
from ddlnb.results.schema import require_frame
from ddlnb.results.statistics import Interval, bracket_interval, ratio_interval
from ddlnb.simulator.unlike.team import Slowness
from ddlnb.training.cost.estimate import BASE, STEPS, best_lossless, iteration_cost
from ddlnb.training.cost.iteration import IterationCost
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.training.runs.summaries import target_bracket
from ddlnb.units import counted
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

DENSE = "bsp on A2A"  # the method of the curves whose iterations the lossless methods need


def iterations_to_target(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the iterations until the test loss is at most ``target``, by task, method and seed.

    Columns: task, method, workers, seed; ``iterations`` at the first evaluation that finds it and
    ``since``, those at the evaluation before, both infinite where none does; ``averages``, how many
    averages more the evaluated model takes (`ddlnb.training.runs.averaging`). Raises InputError for
    curves without the columns that `ddlnb.compare` makes, and for a target that is reached before
    training.
    """
    import pandas as pd

    require_frame(curves)
    cells = ("task", "method", "workers")
    rows = [
        (*names, seed, *target_bracket(run, target), _averages(run, target))
        for names, runs in runs_by(curves, *cells).items()
        for seed, run in runs.items()
    ]
    return pd.DataFrame(rows, columns=[*cells, "seed", "since", "iterations", "averages"])


def _averages(run: pd.DataFrame, target: float) -> int:
    more = "averaging_bytes_sent"
    require(more in run, f"curves lack the column {more!r}; make them with ddlnb train")
    within = run.loc[run["test_loss"] <= target, more]
    return int(len(within) > 0 and within.iloc[0] > 0)


def time_to_target(
    curves: pd.DataFrame,
    target: float,
    workload: Workload,
    clusters: str | Cluster | Sequence[str | Cluster],
    compression: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    *,
    dense: str = DENSE,
    steps: int = STEPS,
    slower: Slowness | None = None,
) -> pd.DataFrame:
    """Return one row per cluster, number of workers and method, the quickest lossless one first.

    ``curves`` are those of `ddlnb.compare`, ``target`` is a test loss. ``seconds`` is the mean over
    seeds of the iterations times the seconds of one, with an all-reduce more where the evaluated
    model takes it (`ddlnb.training.runs.averaging`). ``speedup`` is over the quickest lossless
    method, which needs the iterations of ``dense``: the geometric mean over the seeds that both
    have. ``low`` and ``high``, ``speedup_low`` and ``speedup_high`` are the ends of 95 %
    t-intervals over the seeds, widened by the steps between two evaluations (NaN for fewer than two
    seeds); they hold no other uncertainty. A run that never reaches the target makes seconds
    infinite and the speed-up 0. ``bytes`` pass a worker's link in an iteration, both ways, and
    ``ring_bytes`` would in a dense ring. The other columns are the fields of
    `ddlnb.training.cost.iteration.IterationCost`. ``compression``, ``base``, ``steps`` and
    ``slower`` are those of `ddlnb.iteration_cost`. Raises InputError when curves lack ``dense``.

    >>> import ddlnb
    >>> import pandas as pd
    >>> runs = [ddlnb.train("quadratic", name, workers=4, steps=32) for name in ("bsp", "local(8)")]
    >>> curves, workload = pd.concat(runs), ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> rows = ddlnb.time_to_target(curves, 1.0, workload, ["two-cores-4-workers"])
    >>> rows["method"].to_list(), rows["is_dense"].to_list()
    (['bsp on A2A', 'local(8) on A2A'], [True, False])
    """
    import pandas as pd

    needed = iterations_to_target(curves, target)
    rows: list[dict[str, object]] = []
    for name in several(clusters):
        for (task, workers), group in needed.groupby(["task", "workers"], sort=False):
            cluster = get_cluster(name, int(workers))
            by_method = {
                method: part.set_index("seed")[["since", "iterations", "averages"]]
                for method, part in group.groupby("method", sort=False)
            }
            require(
                dense in by_method,
                f"curves of {task!r} with {counted(workers, 'worker')} lack {dense!r}, which all "
                f"others are compared with; they hold {', '.join(by_method)}",
            )
            is_split = len(workload.gradients) > 1
            average = request_cost(cluster, AllReduce, workload.gradient_bytes, is_split).seconds
            ours = {
                method: iteration_cost(
                    workload,
                    cluster,
                    method,
                    compression=compression,
                    base=base,
                    steps=steps,
                    slower=slower,
                )
                for method in by_method
                if method != dense
            }
            machines = sorted({cost.server_machines for cost in ours.values()} or {0})
            best = {
                most: best_lossless(workload, cluster, slower, steps, most_machines=most)
                for most in machines
            }
            lossless = [(dense, cost) for cost in dict.fromkeys(best.values())]
            cell = {"network": cluster.network, "machine": cluster.name, "task": task}
            for method, cost in [*lossless, *ours.items()]:
                beside = cost if method == dense else best[cost.server_machines]
                rows.append(
                    {
                        **cell,
                        "workers": int(workers),
                        "target": target,
                        "model": workload.model,
                        "is_dense": method == dense,
                        **_times(by_method[method], by_method[dense], cost, beside, average),
                        **asdict(cost),
                        "bytes": cost.bytes,
                        "ring_bytes": 2 * ring_bytes_sent(workload.gradient_bytes, int(workers)),
                        "method": method,
                        "carried_by": cost.method,
                    }
                )
    return pd.DataFrame(rows)


def _times(
    ours: pd.DataFrame,
    of_dense: pd.DataFrame,
    cost: IterationCost,
    best: IterationCost,
    average: float,
) -> dict[str, object]:
    common = ours.index.intersection(of_dense.index)
    require(
        len(common) > 0, "methods have no seed in common with the dense one; run the same seeds"
    )
    seconds = _seconds(ours, cost, average)
    taken = bracket_interval(seconds.to_numpy())
    theirs = _seconds(of_dense, best, average).loc[common].to_numpy()
    require(
        bool(np.isfinite(theirs).all()),
        "the dense method does not reach the target in all its runs; choose a higher loss",
    )
    if ours is of_dense:
        speedup = Interval(1.0, 1.0, 1.0)  # the same runs, whatever they took
    else:
        speedup = ratio_interval(theirs, seconds.loc[common].to_numpy())
    iterations, beside = ours["iterations"], of_dense["iterations"]
    return {
        "iterations": float(iterations.mean()),
        "iterations_over_dense": float(iterations[common].mean() / beside[common].mean()),
        "seeds": len(ours),
        "reached": int(np.isfinite(iterations).sum()),
        "seconds": taken.estimate,
        "low": max(taken.low, cost.iteration_seconds),  # one iteration at least
        "high": taken.high,
        "speedup": speedup.estimate,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
    }


def _seconds(needed: pd.DataFrame, cost: IterationCost, average: float) -> pd.DataFrame:
    """Return, by seed, the seconds before and at the target, with the averages that they take."""
    iterations = needed[["since", "iterations"]] * cost.iteration_seconds
    return iterations.add(needed["averages"] * average, axis=0)
