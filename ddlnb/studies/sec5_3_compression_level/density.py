"""Section 5.3: how much to compress. Is there a best density of top-k between the extremes?

Time to a target loss is iterations, measured on a small task, times seconds of one, simulated for
a large model on a cluster. Fewer entries make iterations quicker and more numerous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.top_k import TopK
from ddlnb.errors import require
from ddlnb.results.statistics import Verdict, ratio_interval
from ddlnb.training.cost.time_to_target import DENSE, iterations_to_target, time_to_target
from ddlnb.training.method import training_method
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
INTERIOR, AT_LEAST, AT_MOST, OPEN = (
    "interior",
    "at the least density",
    "at the largest density",
    "undecided",
)


def level_methods(densities: Sequence[float] = DENSITIES) -> list[str]:
    """Return dense BSP, and top-k with error feedback of every density. Raises InputError.

    >>> level_methods([0.1, 0.01, 0.001])[1]
    'bsp + top-k(0.001) + feedback'
    """
    require(len(set(densities)) > 2, f"densities {list(densities)} have no interior; take three")
    return ["bsp", *(f"bsp + top-k({one}) + feedback" for one in sorted(set(densities)))]


def level_times(
    curves: pd.DataFrame,
    target: float,
    workload: Workload,
    clusters: Sequence[str | Cluster],
) -> pd.DataFrame:
    """Return `time_to_target` with the column ``density``, the least first; 1 if dense.

    Curves of methods with a density by layer are left out.
    """
    by_layer = [
        name
        for name in curves["method"].unique()
        if isinstance(training_method(name).compressor, LayerTopK)
    ]
    fixed = curves[~curves["method"].isin(by_layer)]
    table = time_to_target(fixed, target, workload, clusters)
    density = [_density(method) for method in table["method"]]
    return table.assign(density=density).sort_values("density", kind="stable")


def level_verdicts(table: pd.DataFrame, curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return a row per machine: the density with the least time, and where in the sweep it is.

    Both ends of the sweep are compared with the best density, seed by seed. The minimum is
    INTERIOR if the best is no end and the intervals of the ratios of both ends to it are above 1;
    AT_LEAST or AT_MOST if the best is that end and the interval of its neighbour is above 1; else
    OPEN. ``least_over_best`` and
    ``largest_over_best`` are ratios of mean seconds. ``beats_dense`` says whether the best is
    quicker than the best lossless method. Raises InputError for curves of several tasks or numbers
    of workers.
    """
    import pandas as pd

    for name in ("task", "workers"):
        values = list(curves[name].unique())
        require(len(values) == 1, f"levels are of one {name}, and the curves have {values}")
    needed = iterations_to_target(curves, target)
    rows = []
    for machine, part in table.groupby("machine", sort=False):
        sparse = part[~part["is_dense"]].sort_values("density")
        dense = float(part.loc[part["is_dense"], "seconds"].iloc[0])
        seconds = [
            needed.loc[needed["method"] == row["method"]]
            .sort_values("seed")[["since", "iterations"]]
            .to_numpy()
            * row["iteration_seconds"]
            for row in sparse.to_dict("records")
        ]
        means = [float(np.mean(one[:, 1])) for one in seconds]
        require(
            any(math.isfinite(mean) for mean in means),
            f"no density reaches a loss of {target:g} in all runs; take more steps",
        )
        best = int(np.argmin(means))
        rows.append(
            {
                "machine": machine,
                "network": part["network"].iloc[0],
                "best_density": float(sparse["density"].iloc[best]),
                "seconds": means[best],
                "least_over_best": means[0] / means[best],
                "largest_over_best": means[-1] / means[best],
                "dense_over_best": dense / means[best],
                "beats_dense": means[best] < dense,
                "verdict": _where(seconds, best),
            }
        )
    return pd.DataFrame(rows)


def _where(seconds: Sequence[np.ndarray], best: int) -> str:
    last = len(seconds) - 1
    if best == 0:
        return AT_LEAST if _surely_longer(seconds[1], seconds[0]) else OPEN
    if best == last:
        return AT_MOST if _surely_longer(seconds[-2], seconds[-1]) else OPEN
    both = all(_surely_longer(seconds[end], seconds[best]) for end in (0, last))
    return INTERIOR if both else OPEN


def _surely_longer(one: np.ndarray, other: np.ndarray) -> bool:
    if np.isinf(one).all():
        return True
    finite = bool(np.isfinite(one).all())
    return finite and ratio_interval(one, other).above(1) is Verdict.HOLDS


def _density(method: str) -> float:
    if method == DENSE:
        return 1.0
    compressor = training_method(method).compressor
    require(isinstance(compressor, TopK), f"{method} is not top-k; make curves of level_methods")
    assert isinstance(compressor, TopK)
    return compressor.density
