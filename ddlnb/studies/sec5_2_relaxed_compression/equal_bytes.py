"""Section 5.2: relaxed synchronisation together with compression, at equal bytes.

Bytes are those that pass a worker's link in both directions. What a parameter server answers is
dense, whatever workers push, so that compressing pushes alone saves half of the traffic at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.results.statistics import t_interval
from ddlnb.training.runs.by_cell import Runs, final_loss, runs_by
from ddlnb.training.runs.summaries import spent

if TYPE_CHECKING:
    import pandas as pd

COMPRESSIONS = ("", " + top-k(0.01) + feedback", " + ef-sign + feedback")
SYNCHRONISATIONS = ("bsp", "local(4)", "ssp(3)")
DENSE = "bsp on A2A"
BETTER, WORSE, OPEN = "better", "worse", "no clear difference"


def combined_methods(
    synchronisations: Sequence[str] = SYNCHRONISATIONS, compressions: Sequence[str] = COMPRESSIONS
) -> list[str]:
    """Every synchronisation with every compression.

    >>> combined_methods(["ssp(3)"])[1]
    'ssp(3) + top-k(0.01) + feedback'
    """
    return [one + other for one in synchronisations for other in compressions]


def link_bytes(curves: pd.DataFrame) -> pd.DataFrame:
    """The curves with ``link_bytes``: sent and received by a worker in the mean, as `spent` counts.

    Raises InputError if there are none.
    """
    require(not curves.empty, "there are no curves")
    return curves.assign(link_bytes=spent(curves, "bytes"))


def at_equal_bytes(curves: pd.DataFrame, dense_iterations: Sequence[int]) -> pd.DataFrame:
    """A row per budget and method: the loss when a worker's link has carried so many bytes.

    A budget is what so many iterations of dense BSP take. ``loss`` is the mean over seeds of the
    test loss in the last row within the budget, ``steps`` where that is; ``ended`` if the whole run
    is within it, so that more steps could still lower the loss. ``gap`` is the loss minus that of
    dense BSP, paired by seeds, with its 95 % ``gap_half_width``; ``verdict`` is BETTER or WORSE
    where that interval leaves out 0. Runs that diverged have infinite loss. Raises InputError for
    curves without dense BSP.
    """
    import pandas as pd

    known = link_bytes(curves)
    cells = runs_by(known, "method")
    require(DENSE in set(known["method"]), f"the curves lack {DENSE!r}, which others are beside")
    dense = known[(known["method"] == DENSE) & (known["step"] > 0)]
    per_iteration = float((dense["link_bytes"] / dense["step"]).iloc[0])
    rows = []
    for iterations in dense_iterations:
        budget = iterations * per_iteration
        found = {method: _within(runs, budget) for (method,), runs in cells.items()}
        of_dense = found[DENSE]["loss"].to_numpy()
        for method, losses in found.items():
            loss, half = t_interval(losses["loss"].to_numpy())
            rows.append(
                {
                    "dense_iterations": iterations,
                    "bytes": budget,
                    "method": method,
                    "loss": loss,
                    "half_width": half,
                    "steps": float(losses["step"].mean()),
                    "ended": bool(losses["ended"].all()),
                    **_gap(losses["loss"].to_numpy(), of_dense, method == DENSE),
                }
            )
    return pd.DataFrame(rows).assign(source="lockstep, bytes counted")


def _within(runs: Runs, budget: float) -> pd.DataFrame:
    """By seed: the last row within the budget."""
    import pandas as pd

    rows = []
    for run in runs.values():
        within = run[run["link_bytes"] <= budget * (1 + 1e-9)]
        last = within.iloc[-1]
        rows.append((last["step"], final_loss(within), last["step"] == run["step"].iloc[-1]))
    return pd.DataFrame(rows, columns=["step", "loss", "ended"])


def _gap(losses: np.ndarray, dense: np.ndarray, itself: bool) -> dict[str, object]:
    if itself:
        return {"gap": 0.0, "gap_half_width": 0.0, "verdict": ""}
    if len(losses) != len(dense):
        raise InputError("methods have other seeds than dense BSP; run the same seeds")
    gap, half = t_interval(losses - dense)
    choice = OPEN
    if math.isinf(gap):
        choice = WORSE
    elif gap + half < 0:
        choice = BETTER
    elif gap - half > 0:
        choice = WORSE
    return {"gap": gap, "gap_half_width": half, "verdict": choice}
