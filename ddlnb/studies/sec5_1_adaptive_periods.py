"""Section 5.1: does it pay to change how often workers synchronise? Local SGD with H that adapts.

Losses and rounds are measured on a small task, in lockstep. Seconds are a cost model: those of a
gradient and of an average of a large model's gradient on a cluster. All workers of local SGD keep
the same pace, so that seconds follow from gradients and rounds, whatever the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce
from ddlnb.results.statistics import ratio_interval, t_interval
from ddlnb.training.cost.cluster_clock import compute_seconds
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.cost.verdict import MARGIN
from ddlnb.training.method import training_method
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.training.runs.summaries import spent, target_bracket
from ddlnb.training.synchronisation.local import STARTS, AdaptiveLocalSGD, Local
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

LOSS_BYTES = 4  # what adaptive local SGD sends beside every average
FASTER, SLOWER, OPEN = "faster", "slower", "no clear difference"


def period_methods(fixed: Sequence[int] = (1, 2, 4, 8, 16)) -> list[str]:
    """Local SGD with these periods H, and with H that goes from one end of them to the other.

    >>> period_methods([1, 8])[2:]
    ['adaptive-local(1, 8, frequent)', 'adaptive-local(1, 8, rare)']
    """
    require_whole(**{f"H{number}": period for number, period in enumerate(fixed)})
    require(len(set(fixed)) > 1, f"fixed periods {list(fixed)} must be two or more")
    low, high = min(fixed), max(fixed)
    return [
        *(f"local({period})" for period in fixed),
        *(f"adaptive-local({low}, {high}, {start})" for start in STARTS),
    ]


def on_cluster(curves: pd.DataFrame, workload: Workload, cluster: str | Cluster) -> pd.DataFrame:
    """The curves with the columns ``rounds`` and ``seconds``, had they been of that model there.

    A row within a round counts one average more, as `ddlnb.training.runs.summaries.spent` does.
    ``curves`` are those of `ddlnb.compare` of local SGD without compression, on A2A. Raises
    InputError for others.
    """
    parts = [_timed(part, workload, cluster) for _, part in curves.groupby(["method", "workers"])]
    require(bool(parts), "there are no curves")
    import pandas as pd

    return pd.concat(parts).sort_index()


def _timed(part: pd.DataFrame, workload: Workload, cluster: str | Cluster) -> pd.DataFrame:
    first = part.iloc[0]
    method, workers = training_method(first["method"]), int(first["workers"])
    synchronisation = method.synchronisation
    if not isinstance(synchronisation, Local) or method.compressor or method.architecture != "A2A":
        raise InputError(f"{method} is not local SGD on A2A without compression; leave it out")
    require(workers > 1, "one worker sends nothing, so that its rounds cannot be counted")
    there = get_cluster(cluster, workers)
    model = get_learning_task(first["task"]).build(0)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    round_seconds = request_cost(there, AllReduce, workload.gradient_bytes).seconds
    if isinstance(synchronisation, AdaptiveLocalSGD):
        size += LOSS_BYTES
        round_seconds += request_cost(there, AllReduce, LOSS_BYTES).seconds
    rounds = (spent(part, "bytes") / (2 * ring_bytes_sent(size, workers))).round()
    seconds = part["step"] * compute_seconds(workload, there) + rounds * round_seconds
    place = {"machine": there.name, "network": there.network}
    return part.assign(rounds=rounds, seconds=seconds, averaging_seconds=0.0, **place)


def period_times(
    curves: pd.DataFrame, target: float, workload: Workload, clusters: Sequence[str | Cluster]
) -> pd.DataFrame:
    """A row per cluster and method: seconds to the target loss, and beside the best fixed H.

    ``seconds`` is the mean over seeds with the ends ``low`` and ``high`` of its 95 % t-interval,
    widened by the steps between two evaluations, as are all intervals here;
    ``steps`` and ``rounds`` are means at the target. The best fixed H has the least mean, which
    favours it: it is chosen after the fact. ``over_fixed`` is the geometric mean of its seconds
    over the method's, with an interval over the seeds (``over_low``, ``over_high``); ``verdict`` is
    FASTER or SLOWER where all of the interval is beyond 1 by more than `verdicts.MARGIN`.
    Raises InputError if no fixed H gets there in all its runs.
    """
    import pandas as pd

    rows = []
    for cluster in clusters:
        timed = on_cluster(curves, workload, cluster)
        costs = {cost: _at_target(timed, target, cost) for cost in ("seconds", "step", "rounds")}
        seconds = costs["seconds"]
        means = {method: float(values[:, 1].mean()) for method, values in seconds.items()}
        fixed = [name for name in means if _is_fixed(name) and math.isfinite(means[name])]
        require(
            bool(fixed),
            f"no fixed H reaches a loss of {target:g} in all runs; take more steps or another loss",
        )
        best = min(fixed, key=means.__getitem__)
        for method, values in seconds.items():
            _, half = t_interval(values[:, 1])
            rows.append(
                {
                    "network": timed["network"].iloc[0],
                    "machine": timed["machine"].iloc[0],
                    "method": method,
                    "fixed": _is_fixed(method),
                    "best_fixed": method == best,
                    "seconds": means[method],
                    "low": float(values[:, 0].mean()) - half,
                    "high": means[method] + half,
                    "steps": float(costs["step"][method][:, 1].mean()),
                    "rounds": float(costs["rounds"][method][:, 1].mean()),
                    **_beside(values, seconds[best]),
                }
            )
    return pd.DataFrame(rows).assign(
        model=workload.model, target=target, source="iterations measured, seconds simulated"
    )


def _at_target(timed: pd.DataFrame, target: float, cost: str) -> dict[str, np.ndarray]:
    """By method: the `target_bracket` of every seed, (seeds, 2), in the order of the seeds."""
    found = {}
    for (method,), by_seed in runs_by(timed, "method").items():
        runs = list(by_seed.values())
        if cost == "rounds":  # counted like steps, and no cost that curves know
            runs = [run.assign(step=run["rounds"]) for run in runs]
        known = "seconds" if cost == "seconds" else "step"
        found[method] = np.array([target_bracket(run, target, known) for run in runs])
    return found


def _is_fixed(method: str) -> bool:
    return not isinstance(training_method(method).synchronisation, AdaptiveLocalSGD)


def _beside(values: np.ndarray, best: np.ndarray) -> dict[str, object]:
    if values is best:
        return {"over_fixed": 1.0, "over_low": math.nan, "over_high": math.nan, "verdict": ""}
    if not np.isfinite(values).all():
        none = not np.isfinite(values).any()
        return {
            "over_fixed": 0.0,
            "over_low": math.nan,
            "over_high": math.nan,
            "verdict": SLOWER if none else OPEN,
        }
    over, low, high = ratio_interval(best, values)
    choice = FASTER if low > 1 + MARGIN else SLOWER if high < 1 - MARGIN else OPEN
    return {"over_fixed": over, "over_low": low, "over_high": high, "verdict": choice}
