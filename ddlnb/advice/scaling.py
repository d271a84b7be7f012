"""How far training scales: the best method at every size, and what limits it beyond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddlnb.advice.explain import LIMITS, NEGLIGIBLE
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require
from ddlnb.plans.methods import Method
from ddlnb.registry import several
from ddlnb.simulator.draws import DRAWS
from ddlnb.simulator.forecast import forecast_cells, sound_pairs
from ddlnb.simulator.profiles import workload_on
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.units import gpus_in_words
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.workloads.task import Task

GOOD = 0.8  # of linear scaling


@dataclass(frozen=True)
class Scaling:
    """Throughput by the number of GPUs, and what limits it; ``str`` says both in a sentence.

    ``rows`` are those of `ddlnb.forecast` with a column ``efficiency``, the share of linear
    scaling. ``reach`` is the largest size up to which the best method has ``share`` of it, 0 if not
    even the smallest one has; ``beyond`` is the next size, None where there is none, and
    ``bottleneck`` what limits it there.
    """

    rows: pd.DataFrame
    share: float
    reach: int
    beyond: int | None
    bottleneck: str

    def __str__(self) -> str:
        best = best_by_size(self.rows)
        if self.beyond is not None:
            row = best.set_index("gpus").loc[self.beyond]
            there = f"{row['efficiency']:.0%} by {row['method']}"
        if self.reach == 0:
            return (
                f"Less than {self.share:.0%} of linear on {gpus_in_words(int(best['gpus'].min()))} "
                f"already: {there}. The bottleneck is {self.bottleneck}."
            )
        least = best.loc[best["gpus"] <= self.reach, "efficiency"].min()
        said = f"At least {self.share:.0%} of linear up to {gpus_in_words(self.reach)}"
        if self.beyond is None:
            return f"{said}, the largest size asked for ({least:.0%} there or better)."
        return f"{said}; on {self.beyond}, {there}: beyond, the bottleneck is {self.bottleneck}."


def scaling(
    model: str | Task | Workload,
    cluster: str | Cluster,
    methods: str | Method | Sequence[str | Method] = "all",
    *,
    gpus: int | Sequence[int] | None = None,
    local_batch: int | None = None,
    sequence: int | None = None,
    throughput: float | None = None,
    precision: str = "",
    share: float = GOOD,
    draws: int = DRAWS,
    seed: int = 0,
) -> Scaling:
    """Return how far training scales on a cluster, at a constant batch per GPU.

    Arguments are those of `ddlnb.forecast`; ``gpus`` are by default one, two, four and so on to
    all workers in use. ``share`` is the share of linear scaling that is good enough. The
    bottleneck is the effect without which the best method at the first size below it would be the
    fastest.

    >>> import ddlnb
    >>> found = ddlnb.scaling("bert-base", "survey-10GbE", draws=0)
    >>> found.reach, found.bottleneck
    (4, 'the bandwidth between nodes')
    """
    require(0 < share <= 1, f"share {share!r} must be above 0 and at most 1")
    on = get_cluster(cluster)
    workload = workload_on(
        model,
        on,
        local_batch,
        sequence=sequence,
        throughput=throughput,
        precision=precision,
    )
    sizes = sorted(set(sizes_of(on) if gpus is None else several(gpus)))
    pairs = sound_pairs(on, methods, sizes)
    cells = [Cell(workload, one, method) for one, method in pairs]
    rows = forecast_cells(cells, draws=draws, seed=seed)
    rows["efficiency"] = rows["speedup"] / rows["gpus"]
    best = best_by_size(rows)
    poor = best[best["efficiency"] < share]
    if poor.empty:
        return Scaling(rows, share, int(best["gpus"].max()), None, "")
    beyond = int(poor["gpus"].min())
    reach = int(best.loc[best["gpus"] < beyond, "gpus"].max()) if beyond > sizes[0] else 0
    number = int(poor.index[poor["gpus"] == beyond][0])
    return Scaling(rows, share, reach, beyond, _bottleneck(cells[number]))


def best_by_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the fastest method at every number of GPUs, smallest first."""
    fastest = rows.groupby("gpus")["throughput_samples_per_s"].idxmax()
    return rows.loc[fastest].sort_values("gpus")


def sizes_of(cluster: Cluster) -> Iterator[int]:
    """Yield the sizes to look at: one, two, four and so on GPUs of a node, then of nodes.

    The last one is the number of workers in use.

    >>> import ddlnb
    >>> list(sizes_of(ddlnb.get_cluster("survey-10GbE")))
    [1, 2, 4, 8, 16, 32]
    """
    size = 1
    while size < cluster.workers_per_node:
        yield size
        size *= 2
    nodes = 1
    while nodes < cluster.nodes_in_use:
        yield nodes * cluster.workers_per_node
        nodes *= 2
    yield cluster.workers


def _bottleneck(cell: Cell) -> str:
    """Return the effect without which the cell would gain most."""
    planned = replace(cell, planned_on=cell.planned_on or cell.cluster)
    without = [
        replace(planned, cluster=cell.cluster.with_effects(**effects))
        for effects in LIMITS.values()
    ]
    now, *then = (one.iteration_seconds for one in steady_seconds([planned, *without]))
    gains = {name: now / seconds for name, seconds in zip(LIMITS, then, strict=True)}
    name = max(gains, key=lambda one: gains[one])
    return name if gains[name] > 1 + NEGLIGIBLE else "several effects, none of them alone"
