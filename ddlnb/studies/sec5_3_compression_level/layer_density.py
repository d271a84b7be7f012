"""Section 5.3: a density for every layer, beside one density for all.

Seconds of an iteration are simulated for any built-in model on any cluster. Time to a target loss
is simulated and measured for the model of one learning task, which is both the workload and what is
trained: densities by layer belong to one model, and cannot be carried over to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.top_k import TopK
from ddlnb.errors import require
from ddlnb.results.statistics import ratio_interval
from ddlnb.training.cost.estimate import best_lossless, iteration_cost
from ddlnb.training.cost.layer_densities import DENSITIES, HIDDEN, density_table, layer_densities
from ddlnb.training.cost.recommendation import MARGIN
from ddlnb.training.cost.time_to_target import iterations_to_target, time_to_target
from ddlnb.training.method import training_method
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

LONGER = (HIDDEN, 0.1)  # of the computation: all hidden, and a tenth exposed
FASTER, SLOWER, OPEN = "faster", "slower", "no clear difference"


def by_layer(chosen: LayerTopK) -> str:
    """Return the method that trains with these densities."""
    return f"bsp + {chosen} + feedback"


def layer_methods(
    workload: Workload,
    clusters: Sequence[str | Cluster],
    workers: int,
) -> list[str]:
    """Return what has to be trained: the methods chosen for these clusters, each once."""
    chosen = [
        layer_densities(workload, cluster, workers=workers, longer=longer)
        for cluster in clusters
        for longer in LONGER
    ]
    return list(dict.fromkeys(map(by_layer, chosen)))


def hidden_table(
    workload: Workload,
    clusters: Sequence[str | Cluster],
    workers: int | None = None,
) -> pd.DataFrame:
    """Return a row per cluster: an iteration with densities by layer, and with the best for all.

    ``sent`` is the share of entries that travel by layer, with densities from ``least`` to
    ``largest``; ``fixed`` is the largest one of DENSITIES that for all layers takes no longer.
    Seconds are those of an iteration: ``seconds`` by layer, ``fixed_seconds``, ``dense_seconds`` of
    the best lossless method on the workers' machines, and ``computing`` alone.
    """
    import pandas as pd

    rows = []
    for name in clusters:
        cluster = get_cluster(name, workers)
        chosen = layer_densities(workload, cluster)
        cost = iteration_cost(workload, cluster, by_layer(chosen))
        fixed = {
            density: iteration_cost(
                workload, cluster, by_layer(alike(density, chosen))
            ).iteration_seconds
            for density in sorted(DENSITIES)
        }
        allowed = cost.iteration_seconds * (1 + 1e-9)
        within = [density for density, seconds in fixed.items() if seconds <= allowed]
        best = max(within, default=math.nan)
        tensors = density_table(workload, chosen)
        rows.append(
            {
                "network": cluster.network,
                "workers": cluster.workers,
                "sent": float(np.average(tensors["density"], weights=tensors["elements"])),
                "least": tensors["density"].min(),
                "largest": tensors["density"].max(),
                "fixed": best,
                "seconds": cost.iteration_seconds,
                "fixed_seconds": fixed.get(best, math.nan),
                "dense_seconds": best_lossless(
                    workload, cluster, most_machines=0
                ).iteration_seconds,
                "computing": cost.compute_seconds,
                "machine": cluster.name,
                "model": workload.model,
                "source": "simulated",
            }
        )
    return pd.DataFrame(rows)


def alike(density: float, chosen: LayerTopK) -> LayerTopK:
    """Return one density for all layers; at 1 nothing is compressed, as by layer."""
    return LayerTopK((density,) * len(chosen.densities))


def density_by_layer(
    workload: Workload,
    clusters: Sequence[str | Cluster],
    workers: int | None = None,
) -> pd.DataFrame:
    """Return the rows of `density_table` for every cluster, and when each gradient is ready.

    ``ready`` is in seconds from the start of the backward pass.
    """
    import pandas as pd

    parts = []
    for name in clusters:
        cluster = get_cluster(name, workers)
        chosen = layer_densities(workload, cluster)
        table = density_table(workload, chosen)
        on = {"network": cluster.network, "workers": cluster.workers}
        parts.append(table.assign(**on, ready=workload.ready_seconds))
    require(bool(parts), "there are no clusters to choose densities for")
    return pd.concat(parts, ignore_index=True).assign(model=workload.model, source="simulated")


def layer_times(
    curves: pd.DataFrame,
    target: float,
    workload: Workload,
    clusters: Sequence[str | Cluster],
    workers: int,
) -> pd.DataFrame:
    """Return `time_to_target` of fixed densities, and of those by layer of each cluster.

    ``kind`` is "dense", "fixed" or "by layer", and ``label`` says which. ``over_fixed`` is the mean
    ratio of the time of the best fixed density, chosen after the fact, to this one's, run by run,
    with the ends of its interval; ``verdict`` is FASTER or SLOWER where all of that is beyond 1 by
    more than MARGIN, else OPEN.
    Raises InputError if no fixed density reaches the target in all runs, and for curves that lack
    `layer_methods`.
    """
    import pandas as pd

    needed = iterations_to_target(curves, target)
    found = []
    for name in clusters:
        cluster = get_cluster(name, workers)
        chosen: dict[str, float] = {}
        for longer in LONGER:
            text = by_layer(layer_densities(workload, cluster, longer=longer))
            chosen.setdefault(str(training_method(text)), longer)
        missing = sorted(set(chosen) - set(curves["method"]))
        require(not missing, f"curves lack {missing}; train layer_methods, too")
        kinds = {method: _kind(method, chosen) for method in dict.fromkeys(curves["method"])}
        here = curves[[kinds[method] is not None for method in curves["method"]]]
        table = time_to_target(here, target, workload, [cluster])
        table["kind"] = [kinds[method] for method in table["method"]]
        table["label"] = [_label(method, chosen) for method in table["method"]]
        fixed = table[table["kind"] == "fixed"]
        best = fixed.loc[fixed["seconds"].idxmin()]
        require(
            math.isfinite(best["seconds"]),
            f"no fixed density reaches a loss of {target:g} in all runs; take more steps",
        )
        ratios = [_over(best, row, needed) for row in table.to_dict("records")]
        found.append(table.join(pd.DataFrame(ratios, index=table.index)))
    require(bool(found), "there are no clusters to compare on")
    return pd.concat(found, ignore_index=True)


def _kind(method: str, chosen: dict[str, float]) -> str | None:
    """Return the kind of a method, None for one that was chosen for another cluster."""
    compressor = training_method(method).compressor
    if compressor is None:
        return "dense"
    if isinstance(compressor, LayerTopK):
        return "by layer" if method in chosen else None
    require(isinstance(compressor, TopK), f"{method} is not top-k; make curves of level_methods")
    return "fixed"


def _label(method: str, chosen: dict[str, float]) -> str:
    if method in chosen:
        return f"by layer, up to {100 * chosen[method]:g} % longer"
    compressor = training_method(method).compressor
    return f"k/D = {compressor.density:g}" if isinstance(compressor, TopK) else "best lossless"


def _over(best: pd.Series, row: dict, needed: pd.DataFrame) -> dict[str, object]:
    if row["method"] == best["method"]:
        return {"over_fixed": 1.0, "over_low": math.nan, "over_high": math.nan, "verdict": ""}
    theirs, ours = (
        needed[needed["method"] == one["method"]].sort_values("seed")[["since", "iterations"]]
        * one["iteration_seconds"]
        for one in (best, row)
    )
    over = ratio_interval(theirs.to_numpy(), ours.to_numpy())
    missed = not np.isfinite(ours).all(axis=None)
    return {
        "over_fixed": over.estimate,
        "over_low": over.low,
        "over_high": over.high,
        "verdict": SLOWER if missed else over.above(1, MARGIN).worded(FASTER, SLOWER, OPEN),
    }
