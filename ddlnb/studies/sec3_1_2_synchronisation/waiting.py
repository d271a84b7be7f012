"""Who waits for whom, how far ahead the fastest worker gets, and how stale updates are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from ddlnb.errors import require, require_whole
from ddlnb.studies.sec3_1_2_synchronisation.virtual_clock import timed, virtual_clock
from ddlnb.training.executors.activity import activity_table

# On these, the server applies pushes one by one.
SERVED = ("ssp(3) on PS", "dssp(1, 8) on PS", "r2sp on PS", "asp on PS")
METHODS = ("bsp on PS", *SERVED, "local(4) on PS")
BOUNDS = (0, 1, 2, 3, 4, 6, 8, 12)
RANDOM = ("log-normal(0.5)", "exponential(0.5)")
SOURCE = "simulated"


def activities(
    methods: Sequence[str] = METHODS,
    straggler: str = "one-slow(2)",
    *,
    workers: int = 4,
    steps: int = 12,
) -> pd.DataFrame:
    """Return the `activity_table` of every method: what each worker did when."""
    clock = virtual_clock(straggler)
    runs = [timed(method, clock, workers, steps) for method in methods]
    require(bool(runs), "methods is empty; give at least one method")
    return pd.concat(
        [activity_table(run.activities, run.method) for run in runs], ignore_index=True
    )


def comparison(
    methods: Sequence[str] = METHODS,
    stragglers: Sequence[str] = ("constant", "one-slow(2)", *RANDOM),
    *,
    workers: int = 8,
    steps: int = 60,
) -> pd.DataFrame:
    """Return waiting, lead, staleness and seconds per iteration, by law and method.

    ``waiting_seconds`` are per gradient and include messages; ``staleness`` is a mean, NaN where
    no server applies pushes one by one.
    """
    rows = []
    for straggler in stragglers:
        clock = virtual_clock(straggler)
        for method in methods:
            run = timed(method, clock, workers, steps)
            rows.append(
                {
                    "straggler": straggler,
                    "method": run.method,
                    "iteration_seconds": run.iteration_seconds,
                    "waiting_seconds": run.waiting_seconds,
                    "lead": run.lead,
                    "staleness": run.mean_staleness,
                }
            )
    frame = pd.DataFrame(rows).assign(source=SOURCE)
    return frame.set_index(["straggler", "method"])


def comparison_table() -> pd.DataFrame:
    """Return `comparison` with units in its headers, rounded."""
    units = {
        "iteration_seconds": "iteration (s)",
        "waiting_seconds": "waiting per gradient (s)",
        "lead": "lead (iterations)",
        "staleness": "mean staleness (updates)",
    }
    return comparison()[[*units]].rename(columns=units).round(2)


def waits(
    bounds: Sequence[int] = BOUNDS,
    stragglers: Sequence[str] = RANDOM,
    *,
    workers: int = 8,
    steps: int = 40,
    seeds: int = 2,
) -> pd.DataFrame:
    """Return rows of straggler, bound, seed, waiting_seconds (per gradient) and lead, of SSP.

    The seconds of a gradient depend on seed, rank and step alone, so that bounds are compared on
    the same delays. All workers do the same number of steps; a wait after the last gradient counts.
    """
    require_whole(seeds=seeds)
    require(list(bounds) == sorted(set(bounds)), f"bounds {list(bounds)} must rise")
    rows = []
    for straggler in stragglers:
        for seed in range(seeds):
            clock = virtual_clock(straggler, seed=seed)
            for bound in bounds:
                run = timed(f"ssp({bound})", clock, workers, steps)
                rows.append((straggler, bound, seed, run.waiting_seconds, run.lead))
    columns = ["straggler", "bound", "seed", "waiting_seconds", "lead"]
    return pd.DataFrame(rows, columns=columns).assign(source=SOURCE)


def staleness(
    methods: Sequence[str] = SERVED,
    straggler: str = "log-normal(0.3)",
    *,
    workers: int = 8,
    steps: int = 100,
) -> pd.DataFrame:
    """Return rows of method, staleness and pushes: the histogram of staleness by method.

    The staleness of a push is the number of updates by other workers that were applied since its
    worker was last answered. Raises InputError for methods whose server does not apply pushes one
    by one.
    """
    clock = virtual_clock(straggler, 0.0)
    rows = []
    for method in methods:
        run = timed(method, clock, workers, steps)
        require(
            bool(run.staleness),
            f"{run.method} has no staleness: no server applies its pushes one by one; "
            f"choose among {', '.join(SERVED)}",
        )
        counts = sorted(Counter(run.staleness).items())
        rows += [(run.method, value, count) for value, count in counts]
    return pd.DataFrame(rows, columns=["method", "staleness", "pushes"]).assign(source=SOURCE)


def mean_staleness(table: pd.DataFrame) -> pd.Series:
    """Return the mean over pushes, by method, of what `staleness` returns."""
    weighted = (table["staleness"] * table["pushes"]).groupby(table["method"], sort=False).sum()
    return weighted / table.groupby("method", sort=False)["pushes"].sum()
