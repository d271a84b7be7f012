"""Time to a target loss on a cluster: iterations needed, measured, times seconds, forecast.

Iterations come from curves of a small task at the same number of workers, seconds from a workload
on a cluster. The product says what the lossy method would bring to that workload if it cost as many
iterations there, relative to BSP, as on the task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.profile import FREE, CompressionProfile
from ddlnb.errors import InputError, require
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.requests import AllReduce
from ddlnb.training.cost.iteration import BASE, STEPS, IterationCost, dense_cost, lossy_cost
from ddlnb.training.cost.traffic import request_cost
from ddlnb.training.method import training_method
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.units import MB, show_seconds
from ddlnb.workloads.workload import Workload

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

    Columns: task, method, workers, seed; ``iterations`` at the first evaluation that finds it, and
    ``since``, those at the one before, both infinite where none does; ``averages``, how many more
    the model takes that was evaluated then (`ddlnb.training.runs.averaging`). Raises InputError for
    curves without the columns that `ddlnb.training.runs.study` writes, and for a target that is reached
    before training.
    """
    import pandas as pd

    from ddlnb.training.runs.summaries import target_bracket

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
    clusters: Sequence[str | Cluster],
    profile: str | CompressionProfile = FREE,
    base: str | Method = BASE,
    *,
    dense: str = DENSE,
    steps: int = STEPS,
) -> pd.DataFrame:
    """One row per cluster, number of workers and method of the curves, the dense best first.

    ``seconds`` is the mean over seeds of iterations times seconds of one, and of an all-reduce more
    where the model of that iteration takes one (`ddlnb.training.runs.averaging`). ``speedup`` is over
    the quickest lossless method, which needs the iterations of ``dense``: the geometric mean over
    the seeds that both have. ``low`` and ``high``, ``speedup_low`` and ``speedup_high`` are the
    ends of 95 % t-intervals over the seeds, widened by the steps between two evaluations (NaN for
    fewer than two seeds); nothing else that is uncertain is in them. A run that never reaches the
    target makes seconds infinite and the speed-up 0. ``bytes`` pass a worker's link, both ways, in
    an iteration, and ``ring_bytes`` would by a dense ring. The other columns are the parts of
    `ddlnb.training.cost.iteration.IterationCost`. Raises InputError when the curves lack ``dense``.
    """
    import pandas as pd

    needed = iterations_to_target(curves, target)
    rows: list[dict[str, object]] = []
    for name in clusters:
        for (task, workers), group in needed.groupby(["task", "workers"], sort=False):
            cluster = get_cluster(name, int(workers))
            by_method = {
                method: part.set_index("seed")[["since", "iterations", "averages"]]
                for method, part in group.groupby("method", sort=False)
            }
            if dense not in by_method:
                raise InputError(
                    f"curves of {task!r} with {workers} workers lack {dense!r}, which all others "
                    f"are compared with; they hold {', '.join(by_method)}"
                )
            best = best_dense(workload, cluster)
            average = request_cost(cluster, AllReduce, workload.gradient_bytes).seconds
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
                        **_times(by_method[method], by_method[dense], cost, best, average),
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
    from ddlnb.results.statistics import ratio_interval, t_interval

    common = ours.index.intersection(of_dense.index)
    require(
        len(common) > 0, "methods have no seed in common with the dense one; run the same seeds"
    )
    seconds = _seconds(ours, cost, average)
    mean, half = t_interval(seconds["iterations"].to_numpy())
    mine = seconds.loc[common].to_numpy()
    theirs = _seconds(of_dense, best, average).loc[common].to_numpy()
    require(
        bool(np.isfinite(theirs).all()),
        "the dense method does not reach the target in all its runs; choose a higher loss",
    )
    if ours is of_dense:
        speedup = (1.0, 1.0, 1.0)  # the same runs, whatever they took
    elif np.isfinite(mine).all():
        speedup = ratio_interval(theirs, mine)
    else:
        speedup = (0.0, math.nan, math.nan)
    iterations, beside = ours["iterations"], of_dense["iterations"]
    return {
        "iterations": float(iterations.mean()),
        "iterations_over_dense": float(iterations[common].mean() / beside[common].mean()),
        "seeds": len(ours),
        "reached": int(np.isfinite(iterations).sum()),
        "seconds": mean,
        "low": max(float(seconds["since"].mean()) - half, cost.iteration_seconds),  # one at least
        "high": mean + half,
        "speedup": speedup[0],
        "speedup_low": speedup[1],
        "speedup_high": speedup[2],
    }


def _seconds(needed: pd.DataFrame, cost: IterationCost, average: float) -> pd.DataFrame:
    """Seconds by seed of the iterations since and at the target, with the averages they take."""
    iterations = needed[["since", "iterations"]] * cost.iteration_seconds
    return iterations.add(needed["averages"] * average, axis=0)


# Whether to use a lossy method on a cluster, and why not: from the parts of its time to target.
HIDDEN = 0.05  # of an iteration: so little exposed communication counts as hidden
MARGIN = 0.01  # of the time to a target: so small a gain or loss counts as none, in all studies
YES, UNSURE, NO = "use it", "no clear gain", "do not"


@dataclass(frozen=True)
class Verdict:
    """``choice`` is one of YES, UNSURE and NO; ``reason`` names what decides, with its numbers."""

    machine: str
    workers: int
    method: str
    choice: str
    speedup: float
    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        what = "compress" if training_method(self.method).compressor else "relax synchronisation"
        said = {YES: what, UNSURE: f"no clear reason to {what}", NO: f"do not {what}"}[self.choice]
        times = f"{self.speedup:.2f}x"
        if not math.isnan(self.low):
            times += f" ({self.low:.2f} to {self.high:.2f})"
        return f"{said} here: {self.method} is {times} the dense best; {self.reason}"


def verdicts(table: pd.DataFrame) -> list[Verdict]:
    """One verdict for every lossy row of `time_to_target`."""
    found = []
    for _, group in table.groupby(["machine", "task", "workers"], sort=False):
        rows = group.to_dict("records")
        (dense,) = [row for row in rows if row["is_dense"]]
        found += [verdict(row, dense) for row in rows if not row["is_dense"]]
    return found


def verdict(row: Mapping[str, Any], dense: Mapping[str, Any]) -> Verdict:
    """The verdict on one method beside the quickest lossless one; both rows of `time_to_target`.

    A gain counts when the whole interval of the speed-up is above 1 by more than MARGIN, and when
    there was more than HIDDEN of an iteration to be gained. A single seed has no interval and
    settles nothing but that a target is never reached.
    """
    speedup, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["reached"] < row["seeds"]:
        choice = NO
    elif math.isnan(low):
        choice = UNSURE
    else:
        surely, maybe = low > 1 + MARGIN, high > 1 + MARGIN
        some = UNSURE if surely or (maybe and not _hidden(dense)) else NO
        choice = YES if surely and not _hidden(dense) else some
    reason = _gain(row, dense) if choice == YES else _obstacle(row, dense)
    return Verdict(
        row["machine"], int(row["workers"]), row["method"], choice, speedup, low, high, reason
    )


def _gain(row: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    before, after = dense["iteration_seconds"], row["iteration_seconds"]
    return (
        f"an iteration takes {show_seconds(after)} instead of {show_seconds(before)}, "
        f"and it needs {row['iterations_over_dense']:.2f} times the iterations"
    )


def _obstacle(row: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    """What stands in the way, the first of these that is the case."""
    exposed, saved = dense["waiting_seconds"], dense["waiting_seconds"] - row["waiting_seconds"]
    whole, compression = dense["iteration_seconds"], row["compression_seconds"]
    if row["reached"] < row["seeds"]:
        return (
            f"{row['seeds'] - row['reached']} of {row['seeds']} runs do not reach the target in "
            f"the steps of the curves; train longer to see whether they would"
        )
    if _hidden(dense):
        return (
            f"communication is hidden already: {show_seconds(exposed)} of {show_seconds(whole)} "
            f"are exposed, so nothing can gain more than {exposed / (whole - exposed):.1%} "
            f"per iteration"
        )
    if row["gathers"] and row["bytes"] >= row["ring_bytes"]:
        return (
            f"its all-gather grows with the workers: with {row['workers']} a link carries "
            f"{row['bytes'] / MB:.1f} MB both ways, no less than the {row['ring_bytes'] / MB:.1f} "
            f"MB of a dense ring"
        )
    if saved <= 0:
        return (
            f"it leaves no less communication exposed: {show_seconds(row['waiting_seconds'])} "
            f"against {show_seconds(exposed)}"
        )
    if compression > saved:
        return (
            f"compression takes {show_seconds(compression)} and saves {show_seconds(saved)} "
            f"of exposed communication"
        )
    if row["seeds"] == 1:
        return "a single seed has no interval; run two or more"
    faster = whole / row["iteration_seconds"]
    return (
        f"it needs {row['iterations_over_dense']:.2f} times the iterations, "
        f"and each is only {faster:.2f} times as fast"
    )


def _hidden(dense: Mapping[str, Any]) -> bool:
    return dense["waiting_seconds"] <= HIDDEN * dense["iteration_seconds"]
