"""Section 5.2: relaxed synchronisation together with compression, at equal bytes.

Bytes are those that pass a worker's link in both directions. A parameter server's answers are
dense, whatever workers push, so that compressing pushes alone saves at most half of the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.errors import InputError, require
from ddlnb.results.items import ItemVerdict
from ddlnb.results.statistics import Verdict, mean_interval
from ddlnb.studies.findings import Findings, findings, item_verdict
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.stragglers import LogNormal
from ddlnb.training.runs.by_cell import Runs, final_loss, runs_by
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import spent

if TYPE_CHECKING:
    import pandas as pd

COMPRESSIONS = ("", " + top-k(0.01) + feedback", " + ef-sign + feedback")
SYNCHRONISATIONS = ("bsp", "local(4)", "ssp(3)")
DENSE = "bsp on A2A"
STRAGGLERS = Clock(LogNormal(0.5))  # so that SSP has something to relax
BETTER, WORSE, OPEN = "better", "worse", "no clear difference"


def combined_methods(
    synchronisations: Sequence[str] = SYNCHRONISATIONS, compressions: Sequence[str] = COMPRESSIONS
) -> list[str]:
    """Return every synchronisation with every compression.

    >>> combined_methods(["ssp(3)"])[1]
    'ssp(3) + top-k(0.01) + feedback'
    """
    return [one + other for one in synchronisations for other in compressions]


def link_bytes(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the curves with ``link_bytes``: sent and received by a worker on average, as `spent`.

    Raises InputError if there are none.
    """
    require(not curves.empty, "there are no curves")
    return curves.assign(link_bytes=spent(curves, "bytes"))


def at_equal_bytes(curves: pd.DataFrame, dense_iterations: Sequence[int]) -> pd.DataFrame:
    """Return a row per budget and method: the loss when a link has carried that many bytes.

    A budget is what the given number of iterations of dense BSP takes. ``loss`` is the mean over
    seeds of the test loss in the last row within the budget, ``steps`` where that is; ``ended`` if
    the whole run is within it, so that more steps could still lower the loss. ``gap`` is the loss
    minus that of dense BSP, paired by seeds, with its 95 % ``gap_half_width``; ``verdict`` is
    BETTER or WORSE where that interval leaves out 0. Runs that diverged have infinite loss. Raises
    InputError for curves without dense BSP.
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
            loss = mean_interval(losses["loss"].to_numpy())
            rows.append(
                {
                    "dense_iterations": iterations,
                    "bytes": budget,
                    "method": method,
                    "loss": loss.estimate,
                    "half_width": loss.half_width,
                    "steps": float(losses["step"].mean()),
                    "ended": bool(losses["ended"].all()),
                    **_gap(losses["loss"].to_numpy(), of_dense, method == DENSE),
                }
            )
    return pd.DataFrame(rows).assign(source="lockstep, bytes counted")


def _within(runs: Runs, budget: float) -> pd.DataFrame:
    """Return the last row within the budget, by seed."""
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
    gap = mean_interval(losses - dense)
    diverged = math.isinf(gap.estimate)
    return {
        "gap": gap.estimate,
        "gap_half_width": gap.half_width,
        "verdict": WORSE if diverged else gap.above(0).worded(WORSE, BETTER, OPEN),
    }


def train_combined(*, workers: int, seeds: int, steps: int) -> pd.DataFrame:
    """Train digits with all `combined_methods` while gradients take log-normal times."""
    return compare(
        "digits", combined_methods(), workers=workers, seeds=seeds, steps=steps, clock=STRAGGLERS
    ).curves


def bytes_table(equal: pd.DataFrame) -> pd.DataFrame:
    """Return `at_equal_bytes` to read, by budget and method."""
    import pandas as pd

    table = equal.set_index(["dense_iterations", "method"])
    return pd.DataFrame(
        {
            "test loss": table["loss"].round(3),
            "steps": table["steps"].round(1),
            "ran out of steps": table["ended"].map({True: "yes", False: "no"}),
            "loss over dense BSP": table["gap"].round(3),
            "±": table["gap_half_width"].round(3),
            "verdict": table["verdict"],
        }
    ).rename_axis(["iterations of dense BSP", "method"])


def bytes_findings(equal: pd.DataFrame) -> Findings:
    """Return what every budget buys: who is better than dense BSP, and who ran out of steps."""
    return findings(
        *(_answer(part) for _, part in equal.groupby("dense_iterations", sort=False)),
        items=[_item(part) for _, part in equal.groupby("dense_iterations", sort=False)],
    )


def _item(part: pd.DataFrame) -> ItemVerdict:
    """Judge whether a relaxed method with compression is better than dense BSP at equal bytes."""
    both = part[part["method"].map(_is_relaxed_and_compressed)]
    found = set(both["verdict"])
    verdict = Verdict.UNDECIDED if OPEN in found else Verdict.CONTRADICTED
    if BETTER in found:
        verdict = Verdict.HOLDS
    better = (both["verdict"] == BETTER).sum()
    said = (
        f"{better} of {len(both)} combinations are better than dense BSP with the bytes of "
        f"{both['dense_iterations'].iloc[0]} of its iterations"
    )
    return item_verdict("A61", [verdict], "measured", said)


def _is_relaxed_and_compressed(method: str) -> bool:
    synchronisation, *compression = method.split(" + ")
    return not synchronisation.startswith("bsp") and bool(compression)


def _answer(part: pd.DataFrame) -> str:
    dense, others = part[part["method"] == DENSE].iloc[0], part[part["method"] != DENSE]
    best = others.loc[others["loss"].idxmin()]
    better, ended = (others["verdict"] == BETTER).sum(), others["ended"].sum()
    return (
        f"With the bytes of {dense['dense_iterations']} iterations of dense BSP, which leave it at "
        f"a loss of {dense['loss']:.2f}, {better} of {len(others)} other methods are better. The "
        f"best, {best['method']}, is at {best['loss']:.2f} after {best['steps']:.0f} steps; "
        f"{ended} methods ran out of steps before they had used their bytes."
    )
