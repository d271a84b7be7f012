"""A cluster of named hardware, fitted to a log of its all-reduces.

A benchmark of collectives says what links do: their latencies and bandwidths. What an operation
costs beside them while a model trains, it does not say: that stays as the names of the hardware
have it, and what a call costs in the benchmark is fitted apart and thrown away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ddlnb.calibration.clusters import Calibration, calibrate_parameters
from ddlnb.calibration.collective_logs import Facts, Log, measured, read_log
from ddlnb.calibration.collective_tables import SECONDS, with_seconds
from ddlnb.calibration.observations import AllReduceTime, Observation, observe
from ddlnb.calibration.parameters import WITHIN, Parameter
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.fabric import NCCL, NCCL_TREE
from ddlnb.clusters.named import cluster_of, most_of
from ddlnb.errors import InputError, require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.units import counted, show_bytes, show_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

NORMAL_TAIL = 1.6449  # 90 % of normal numbers are within this many standard deviations
NOISE = 0.05  # of the logarithm of a time that nccl-tests averages over its iterations
OFF = 0.25  # a row that is farther from the fit is worth a word
OF_LINKS = ("inside_latency", "inside_bandwidth", "between_latency", "between_bandwidth")
OF_CALLS = "operation_latency"


@dataclass(frozen=True)
class FittedLog:
    """The fit, the cluster that follows from it, and how each row of the log compares."""

    calibration: Calibration
    cluster: Cluster
    left_out: str

    @property
    def residuals(self) -> list[dict[str, object]]:
        """Return a row for each fitted row of the log: what was measured, and what the fit says."""
        return [
            {
                "GPUs": one.labels.gpus,
                "message": show_bytes(one.quantity.message_bytes),
                "measured": show_seconds(one.value),
                "fitted": show_seconds(seconds),
                "error": f"{seconds / one.value - 1:+.1%}",
            }
            for one, seconds in zip(
                self.calibration.observations, self.calibration.predicted, strict=True
            )
            if isinstance(one.quantity, AllReduceTime)
        ]

    @property
    def in_words(self) -> str:
        """Return how far off the fit is, and what the log leaves open."""
        off = self.calibration.errors
        far = int((off > OFF).sum())
        said = (
            f"All-reduces of the log are off by {np.median(off):.1%} in the median and "
            f"{off.max():.1%} at worst"
        )
        if far:
            said += f"; {far} of {counted(len(off), 'row')} by more than {OFF:.0%}: the model of "
            said += "one latency and one bandwidth a link does not reproduce them"
        kept = show_seconds(self.cluster.effects.operation_latency)
        return (
            f"{said}. The {OF_CALLS} is that of a call in the benchmark: for training the cluster "
            f"keeps {kept}.{self.left_out}"
        )


def fit_log(
    log: str | Path,
    gpu: str,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    network: str = "",
    collective: str | None = None,
) -> FittedLog:
    """Return a cluster of a GPU by name whose links are fitted to the all-reduces of a log.

    The log is one that `read_collective_logs` reads. What it says of nodes and GPUs counts; where
    it says nothing, both are to be given, and the ``collective``, if it names none. With more
    ``nodes`` than it has, the cluster has these. Its all-reduce is the algorithm, of NCCL's choice,
    a ring and a double tree, that comes closest.
    Raises ResultsError for a file that is no log, and InputError for one that does not say enough.
    """
    require_whole(nodes=1 if nodes is None else nodes)
    try:
        rows = rows_of(log, gpu, nodes, gpus_per_node, network)
    except InputError:
        if collective is None:
            raise
        rows = rows_of(log, gpu, nodes, gpus_per_node, network, collective)
    reduced = rows[rows["collective"] == "all_reduce"]
    others = sorted(set(rows["collective"]) - {"all_reduce"})
    require(
        len(reduced) > 0,
        f"{log} has {', '.join(others)} and no all_reduce, which a cluster is fitted to; give a "
        f"log of all_reduce_perf",
    )
    most = max(nodes or 0, int(reduced["nodes"].max()))
    base = cluster_of(gpu, most, int(reduced["gpus_per_node"].max()), network)
    names = dict.fromkeys([base.all_reduce, NCCL, "ring", NCCL_TREE] if most > 1 else ["ring"])
    fits = [_fitted(replace(base, all_reduce=name), reduced) for name in names]
    best, found = min(fits, key=lambda one: one[1].cost)
    left_out = f" Left out: {', '.join(others)}." if others else ""
    if best.all_reduce != base.all_reduce:
        left_out += f" Its all-reduce is {best.all_reduce}, by name it was {base.all_reduce}."
    return FittedLog(found, _cluster(best, found, Path(log).name), left_out)


def rows_of(
    log: str | Path | Sequence[Log],
    gpu: str,
    nodes: int | None,
    gpus_per_node: int | None,
    network: str,
    collective: str | None = None,
) -> pd.DataFrame:
    """Return the rows of a log, or of several; counts that they do not say are the given ones."""
    logs = [read_log(Path(log), gpus_per_node)] if isinstance(log, str | Path) else log
    named = Facts(collective, gpu, network=network or None, gpus_of_a_node=gpus_per_node)
    try:
        return with_seconds(measured(logs, named))
    except InputError:
        facts = replace(named, nodes=nodes, gpus_per_node=gpus_per_node)
        return with_seconds(measured(logs, facts))


def _fitted(base: Cluster, rows: pd.DataFrame) -> tuple[Cluster, Calibration]:
    observed: list[Observation] = []
    alone = base.with_effects(level_latency=0.0)  # no other work of a rank delays a benchmark
    for row in rows.to_dict("records"):
        if row["nodes"] == 1 or row["gpus_per_node"] == base.gpus_per_node:
            on = alone.with_workers(int(row["ranks"]))
            timed = AllReduceTime(on, float(row["size_bytes"]))
            observed.append(observe(timed, row[SECONDS], NOISE, "measured"))
    parameters = [_parameter(base, name) for name in (*OF_LINKS, OF_CALLS) if name in base.fits]
    return base, calibrate_parameters(observed, parameters, robust=True)


def _parameter(base: Cluster, effect: str) -> Parameter:
    """Return an effect to be fitted, with what the names of the hardware say as its prior."""
    value, fit = getattr(base.effects, effect), base.fits[effect]
    joined = get_interconnect(base.network) if "between_bandwidth" in base.fits else None
    return Parameter(
        effect,
        low=value / WITHIN,
        high=min(value * WITHIN, most_of(effect, get_gpu(base.hardware), joined)),
        prior=value,
        prior_spread=max(0.3, math.log(fit.high / fit.low) / (2 * NORMAL_TAIL)),
    )


def _cluster(base: Cluster, found: Calibration, log: str) -> Cluster:
    """Return the cluster with fitted links; a call while training costs what it did by name."""
    [fitted] = found.clusters([base])
    fitted = fitted.with_effects(operation_latency=base.effects.operation_latency)
    return replace(
        fitted,
        name=f"{base.name}-fitted",
        fits={**fitted.fits, OF_CALLS: base.fits[OF_CALLS]},
        model_error=max(base.model_error, found.model_error),
        about=f"{base.about}; its links fitted to {log}",
    )
