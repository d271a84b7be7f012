"""Section 5.1: does it pay to change how often workers synchronise? Local SGD with H that adapts.

Losses and rounds are measured on a small task, in lockstep. Seconds come from a cost model: those
of a gradient and of an average of the same model on a cluster. All workers of local SGD run at the
same rate, so seconds follow from gradients and rounds, whatever the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddlnb.calibration.statistics import Verdict, bracket_interval, ratio_interval
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError, require, require_whole
from ddlnb.figures.learning import ADAPTIVE, BOTH, FIXED, draw_time, target_label, target_of
from ddlnb.figures.style import (
    GREY,
    facets,
    legend,
    legend_line,
    names_down,
    say_source,
    short,
    styled,
)
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllReduce
from ddlnb.survey.items import Findings, findings, item_verdict
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.survey.time_to_target import (
    digits_behind_links as digits_behind_links,
    require_one_model,
)
from ddlnb.training.cost.estimate import compute_seconds
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.cost.time_to_target import MARGIN
from ddlnb.training.method import training_method
from ddlnb.training.runs.summaries import runs_by, spent, target_bracket
from ddlnb.training.synchronisation import STARTS, AdaptiveLocalSGD, Local
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.units import MS, show_seconds
from ddlnb.workloads.workload import Workload

LOSS_BYTES = 4  # of the loss that adaptive local SGD sends with every average
FASTER, SLOWER, OPEN = "faster", "slower", "no clear difference"


def period_methods(fixed: Sequence[int] = (1, 2, 4, 8, 16)) -> list[str]:
    """Return local SGD with these periods H, and with H that goes from one end to the other.

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
    """Return the curves with ``rounds`` and ``seconds`` of that model on the cluster.

    A row within a round counts one average more, as `ddlnb.training.runs.summaries.spent` does.
    ``curves`` are of local SGD without compression, on A2A. Raises InputError for others.
    """
    parts = [_timed(part, workload, cluster) for _, part in curves.groupby(["method", "workers"])]
    require(bool(parts), "there are no curves")
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
    on = {"machine": there.name, "network": there.network}
    return part.assign(rounds=rounds, seconds=seconds, averaging_seconds=0.0, **on)


def period_times(
    curves: pd.DataFrame, target: float, workload: Workload, clusters: Sequence[str | Cluster]
) -> pd.DataFrame:
    """Return a row per cluster and method: seconds to the target loss, beside the best fixed H.

    ``seconds`` is the mean over seeds with the ends ``low`` and ``high`` of its 95 % t-interval,
    widened by the steps between two evaluations, as are all intervals here; ``steps`` and
    ``rounds`` are means at the target. The best fixed H has the least mean, which favours it: it is
    chosen after the fact. ``over_fixed`` is the geometric mean of its seconds over the method's,
    with an interval over the seeds (``over_low``, ``over_high``); ``verdict`` is FASTER or SLOWER
    where all of the interval is beyond 1 by more than MARGIN.
    Raises InputError if no fixed H gets there in all its runs, and for curves of another model than
    the workload.
    """
    require_one_model(curves, workload)
    rows = []
    for cluster in clusters:
        timed = on_cluster(curves, workload, cluster)
        costs = {cost: _at_target(timed, target, cost) for cost in ("seconds", "step", "rounds")}
        seconds = {name: bracket_interval(values) for name, values in costs["seconds"].items()}
        fixed = [n for n in seconds if _is_fixed(n) and math.isfinite(seconds[n].estimate)]
        require(
            bool(fixed),
            f"no fixed H reaches a loss of {target:g} in all runs; take more steps or another loss",
        )
        best = min(fixed, key=lambda name: seconds[name].estimate)
        rows += [
            {
                "network": timed["network"].iloc[0],
                "machine": timed["machine"].iloc[0],
                "method": method,
                "fixed": _is_fixed(method),
                "best_fixed": method == best,
                "seconds": seconds[method].estimate,
                "low": seconds[method].low,
                "high": seconds[method].high,
                "steps": float(costs["step"][method][:, 1].mean()),
                "rounds": float(costs["rounds"][method][:, 1].mean()),
                **over_fixed(costs["seconds"][best], taken, not np.isfinite(taken).any()),
            }
            for method, taken in costs["seconds"].items()
        ]
    return pd.DataFrame(rows).assign(
        task=curves["task"].iloc[0],
        model=workload.model,
        target=target,
        source="iterations measured, seconds simulated",
    )


def _at_target(timed: pd.DataFrame, target: float, cost: str) -> dict[str, np.ndarray]:
    """Return the `target_bracket` of every seed by method, (seeds, 2), in order of the seeds."""
    known = "seconds" if cost == "seconds" else "step"  # rounds are counted like steps
    return {
        method: np.array(
            [
                target_bracket(run.assign(**{known: run[cost]}), target, known)
                for run in runs.values()
            ]
        )
        for (method,), runs in runs_by(timed, "method").items()
    }


def _is_fixed(method: str) -> bool:
    return not isinstance(training_method(method).synchronisation, AdaptiveLocalSGD)


def over_fixed(best: np.ndarray, taken: np.ndarray, missed: bool) -> dict[str, object]:
    """Return how many times as quick as the best fixed choice another one is, and a verdict.

    Both are costs by seed, (seeds, 2), as of `target_bracket`. ``over_fixed`` is the geometric mean
    of the ratios with its interval, ``over_low`` to ``over_high``; the verdict is SLOWER for a
    choice that ``missed`` the target, and empty for the best one itself.
    """
    if taken is best:
        return {"over_fixed": 1.0, "over_low": math.nan, "over_high": math.nan, "verdict": ""}
    over = ratio_interval(best, taken)
    return {
        "over_fixed": over.estimate,
        "over_low": over.low,
        "over_high": over.high,
        "verdict": SLOWER if missed else over.above(1, MARGIN).worded(FASTER, SLOWER, OPEN),
    }


VERDICTS = {FASTER: Verdict.HOLDS, SLOWER: Verdict.CONTRADICTED, OPEN: Verdict.UNDECIDED}


def period_findings(times: pd.DataFrame) -> Findings:
    """Return the best fixed period on every network, and what became of the adaptive ones.

    The item is whether the quickest adaptive period is faster than the best fixed one.
    """
    told, items = [], []
    for network, part in times.groupby("network", sort=False):
        best = part[part["best_fixed"]].iloc[0]
        adaptive = part[~part["fixed"]]
        words = adaptive["verdict"].replace(OPEN, "not clearly different")
        speeds = adaptive["over_fixed"].map("{:.2f} times its speed".format)
        judged = words + " (" + speeds + ")"
        beside = "; ".join(adaptive["method"] + " is " + judged)
        told.append(
            f"{network}: the best fixed period is that of {best['method']}, "
            f"{show_seconds(best['seconds'])}. Beside it, {beside}."
        )
        first = adaptive["seconds"].idxmin()
        verdict = VERDICTS[adaptive["verdict"][first]]
        said = f"{network}, {adaptive['method'][first]}: {judged[first]}"
        items.append(item_verdict("A60", [verdict], "measured, simulated", said))
    return findings(
        f"All methods need {times['steps'].min():.0f} to {times['steps'].max():.0f} gradients per "
        f"worker to a test loss of {times['target'].iloc[0]:g}.",
        *told,
        items=items,
    )


@styled
def period_bars(times: pd.DataFrame) -> Figure:
    """Milliseconds to the target loss by the period H of local SGD: bars, a panel per network.

    ``times`` are `period_times`. Whiskers are 95 % intervals over seeds. Grey: the time of the best
    fixed H.
    """
    methods = list(times["method"].unique()) if len(times) else []
    height = 1.3 + 0.36 * len(methods)
    figure, panels = facets(times, "machine", width=(2.8, 3.0), height=height, **BOTH)
    for ax, _, part in panels:
        for number, row in enumerate(part.to_dict("records")):
            colour = FIXED if row["fixed"] else ADAPTIVE
            draw_time(ax, number, row, colour, unit=MS)
        best = part.loc[part["best_fixed"], "seconds"].iloc[0] / MS
        ax.axvline(best, color=GREY, linestyle="--", linewidth=1)
        ax.set(title=part["network"].iloc[0], xlabel=target_label("ms", times))
    panels[0][0].set_xlim(0, None)  # of all panels, once all bars are there
    names_down(panels[0][0], [short(name).partition(" on ")[0] for name in methods])
    legend(figure, [legend_line(GREY, "the best fixed H", "--")], "upper right")
    return say_source(figure, times, target_of(times))
