"""Time to a target loss on a cluster, and whether a lossy method is worth it there.

The time is iterations needed, measured, times seconds, forecast. Iterations come from curves of a
small task at the same number of workers, seconds from a workload on a cluster. The product says
what the lossy method would bring to that workload if it cost as many iterations there, relative to
BSP, as on the task. A recommendation, with its reason, follows from the parts of that time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddlnb.calibration.statistics import Interval, bracket_interval, ratio_interval
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.profile import SHEET, CompressionProfile
from ddlnb.errors import require
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import Method
from ddlnb.plans.requests import AllReduce
from ddlnb.registry import several
from ddlnb.results.schema import require_frame
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.workers import Slowness
from ddlnb.training.cost.estimate import BASE, STEPS, best_lossless, iteration_cost
from ddlnb.training.cost.overlapped import IterationCost
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.method import training_method
from ddlnb.training.runs.summaries import has_diverged, runs_by, target_bracket
from ddlnb.units import MB, counted, show_seconds
from ddlnb.workloads.workload import Workload

DENSE = "bsp on A2A"  # the method of the curves whose iterations the lossless methods need


COLUMNS = ["since", "iterations", "averages", "diverged"]  # of a run


def iterations_to_target(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the iterations until the test loss is at most ``target``, by task, method and seed.

    Columns: task, method, workers, seed; ``iterations`` at the first evaluation that finds it and
    ``since``, those at the evaluation before, both infinite where none does; ``averages``, how many
    averages more the evaluated model takes (`ddlnb.training.runs.train`); ``diverged``. Raises
    InputError for curves without the columns that `ddlnb.compare` makes, and for a target that is
    reached before training.
    """
    require_frame(curves)
    cells = ("task", "method", "workers")
    rows = [
        (
            *names,
            seed,
            *target_bracket(run, target),
            _averages(run, target),
            has_diverged(run).any(),
        )
        for names, runs in runs_by(curves, *cells).items()
        for seed, run in runs.items()
    ]
    return pd.DataFrame(rows, columns=[*cells, "seed", *COLUMNS])


def _averages(run: pd.DataFrame, target: float) -> int:
    more = "averaging_bytes_sent"
    require(more in run, f"curves lack the column {more!r}; make them with ddlnb train")
    within = run.loc[(run["test_loss"] <= target) & ~has_diverged(run), more]
    return int(len(within) > 0 and within.iloc[0] > 0)


def time_to_target(
    curves: pd.DataFrame,
    target: float,
    workload: str | Workload,
    clusters: str | Cluster | Sequence[str | Cluster],
    compression: str | CompressionProfile = SHEET,
    base: str | Method = BASE,
    *,
    dense: str = DENSE,
    steps: int = STEPS,
    slower: Slowness | None = None,
) -> pd.DataFrame:
    """Return one row per cluster, number of workers and method, the quickest lossless one first.

    ``curves`` are those of `ddlnb.compare`, ``target`` is a test loss, ``workload`` may be the name
    of a model, as in `ddlnb.iteration_cost`. ``seconds`` is the mean over
    seeds of the iterations times the seconds of one, with an all-reduce more where the evaluated
    model takes it (`ddlnb.training.runs.train`). ``speedup`` is over the quickest lossless
    method, which needs the iterations of ``dense``: the geometric mean over the seeds that both
    have. ``low`` and ``high``, ``speedup_low`` and ``speedup_high`` are the ends of 95 %
    t-intervals over the seeds, widened by the steps between two evaluations (NaN for fewer than two
    seeds); they hold no other uncertainty. A run that never reaches the target makes seconds
    infinite and the speed-up 0. ``bytes`` pass a worker's link in an iteration, both ways, and
    ``ring_bytes`` would in a dense ring. The other columns are the fields of
    `ddlnb.training.cost.overlapped.IterationCost`. ``compression``, ``base``, ``steps`` and
    ``slower`` are those of `ddlnb.iteration_cost`. Raises InputError when curves lack ``dense``.

    >>> import ddlnb
    >>> import pandas as pd
    >>> runs = [ddlnb.train("quadratic", name, workers=4, steps=32) for name in ("bsp", "local(8)")]
    >>> curves, workload = pd.concat(runs), ddlnb.read_profile("small-conv_b64_cpu-1thread")
    >>> rows = ddlnb.time_to_target(curves, 1.0, workload, ["two-cores-4-workers"])
    >>> rows["method"].to_list(), rows["is_dense"].to_list()
    (['bsp on A2A', 'local(8) on A2A'], [True, False])
    """
    needed = iterations_to_target(curves, target)
    rows: list[dict[str, object]] = []
    for name in several(clusters):
        for (task, workers), group in needed.groupby(["task", "workers"], sort=False):
            cluster = get_cluster(name, int(workers))
            work = workload_on(workload, cluster)
            by_method = {
                method: part.set_index("seed")[COLUMNS]
                for method, part in group.groupby("method", sort=False)
            }
            require(
                dense in by_method,
                f"curves of {task!r} with {counted(workers, 'worker')} lack {dense!r}, which all "
                f"others are compared with; they hold {', '.join(by_method)}",
            )
            is_split = len(work.gradients) > 1
            average = request_cost(cluster, AllReduce, work.gradient_bytes, is_split).seconds
            ours = {
                method: iteration_cost(
                    work,
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
                most: best_lossless(work, cluster, slower, steps, most_machines=most)
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
                        "model": work.model,
                        "is_dense": method == dense,
                        **_times(by_method[method], by_method[dense], cost, beside, average),
                        **asdict(cost),
                        "bytes": cost.bytes,
                        "ring_bytes": 2 * ring_bytes_sent(work.gradient_bytes, int(workers)),
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
    reached = int(np.isfinite(theirs[:, 1]).sum())
    require(
        reached == len(theirs),
        f"the dense method reaches the target in {reached} of its {counted(len(theirs), 'run')}; "
        f"choose a higher loss",
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
        "diverged": int(ours["diverged"].sum()),
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


HIDDEN = 0.05  # exposed communication up to this share of an iteration counts as hidden
MARGIN = 0.01  # a gain or loss up to this share of the time to a target counts as none, everywhere
YES, UNSURE, NO = "use it", "no clear gain", "do not"


@dataclass(frozen=True)
class Recommendation:
    """A choice among YES, UNSURE and NO, with the ``reason`` that decides it and its numbers."""

    machine: str
    workers: int
    method: str
    choice: str
    speedup: float
    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        method = training_method(self.method)
        what = (
            "compress" if method.compressor
            else "use parameter servers" if method.synchronisation.averages_gradients
            else "relax synchronisation"
        )  # fmt: skip
        said = {YES: what, UNSURE: f"no clear reason to {what}", NO: f"do not {what}"}[self.choice]
        if math.isnan(self.low):
            found = f"is {self.speedup:.2f}x the dense best"
        elif self.low <= 1 <= self.high:  # neither is known to be quicker
            found = f"ties with the dense best ({self.low:.2f}x to {self.high:.2f}x)"
        else:
            found = f"is {self.speedup:.2f}x ({self.low:.2f} to {self.high:.2f}) the dense best"
        return f"{said} here: {self.method} {found}; {self.reason}"


def recommendations(table: pd.DataFrame) -> list[Recommendation]:
    """Return one recommendation for every lossy row of `ddlnb.time_to_target`."""
    found = []
    for _, group in table.groupby(["machine", "task", "workers"], sort=False):
        by_seconds = group.sort_values("iteration_seconds", kind="stable").to_dict("records")
        for row in group.to_dict("records"):
            if not row["is_dense"]:  # beside the quickest that takes no more machines for servers
                found.append(
                    recommendation(
                        row,
                        next(
                            one
                            for one in by_seconds
                            if one["is_dense"] and one["server_machines"] <= row["server_machines"]
                        ),
                    )
                )
    return found


def recommendation(row: Mapping[str, Any], dense: Mapping[str, Any]) -> Recommendation:
    """Return the recommendation on one method, given its row and that of the quickest lossless one.

    A gain counts when the whole interval of the speed-up is above 1 by more than MARGIN, and when
    more than HIDDEN of an iteration was there to be gained. A single seed has no interval and
    settles only that a target is never reached.
    """
    speedup, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
    if row["reached"] < row["seeds"]:
        choice = NO
    elif math.isnan(low):
        choice = UNSURE
    else:
        surely, maybe = low > 1 + MARGIN, high > 1 + MARGIN
        if _hidden(dense):
            choice = UNSURE if surely else NO
        else:
            choice = YES if surely else UNSURE if maybe else NO
    reason = _gain(row, dense) if choice == YES else _obstacle(row, dense)
    return Recommendation(
        row["machine"], int(row["workers"]), row["method"], choice, speedup, low, high, reason
    )


def _gain(row: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    before, after = dense["iteration_seconds"], row["iteration_seconds"]
    return (
        f"an iteration takes {show_seconds(after)} instead of {show_seconds(before)}, "
        f"and it needs {row['iterations_over_dense']:.2f} times the iterations"
    )


def _obstacle(row: Mapping[str, Any], dense: Mapping[str, Any]) -> str:
    """Say what stands in the way: the first reason that applies."""
    exposed, saved = dense["waiting_seconds"], dense["waiting_seconds"] - row["waiting_seconds"]
    whole, compression = dense["iteration_seconds"], row["compression_seconds"]
    if row["diverged"]:
        return (
            f"{row['diverged']} of {row['seeds']} runs diverged; take a lower learning rate "
            f"(--tune finds one)"
        )
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
