"""What relaxed synchronisation costs in convergence: at equal steps, seconds and traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ddlnb.errors import require, require_whole
from ddlnb.results.statistics import mean_interval
from ddlnb.studies.findings import with_half_widths
from ddlnb.studies.sec3_1_2_synchronisation.virtual_clock import virtual_clock
from ddlnb.studies.sec3_1_2_synchronisation.waiting import METHODS
from ddlnb.training.runs.by_cell import final_losses, runs_by
from ddlnb.training.runs.compare import Comparison, compare
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.runs.summaries import spent
from ddlnb.training.runs.train import run
from ddlnb.training.runs.tuning import tuned_rate
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.units import MB

TASK = "digits"
PERIODS = (1, 2, 4, 8, 16)


def local_methods(periods: Sequence[int] = PERIODS) -> list[str]:
    """Return the names of local SGD with these periods, on parameter servers as all methods here.

    >>> local_methods([1, 4])
    ['local(1) on PS', 'local(4) on PS']
    """
    return [f"local({period}) on PS" for period in periods]


def converging(
    methods: Sequence[str] | None = None, *, straggler: str = "log-normal(0.5)", **options: Any
) -> Comparison:
    """Run `ddlnb.compare` on these methods and digits, by plain SGD on a clock with stragglers.

    By default the methods are METHODS and local SGD with PERIODS; ``options`` are those of
    `compare`. All workers take the same number of steps, so stragglers should be as fast as others
    on average: behind one that is always slow, methods without barriers would end with its steps
    alone.
    """
    chosen = methods or [*dict.fromkeys([*METHODS, *local_methods()])]
    return compare(TASK, chosen, clock=virtual_clock(straggler), **options)


def at_equal(curves: pd.DataFrame, cost: str = "step") -> pd.DataFrame:
    """Return the row of every method and seed at the same cost for all.

    That cost, as `spent` counts it, is the least that any run has in its last row; the last row
    of every run within it counts. Raises UnknownName, and InputError for curves without that cost.
    """
    cells = runs_by(curves.assign(_spent=spent(curves, cost)), "method")
    runs = [run for cell in sorted(cells) for run in cells[cell].values()]
    require(
        all(bool(run["_spent"].notna().any()) for run in runs),
        f"not every curve has {cost}; train on a clock",
    )
    least = min(run["_spent"].max() for run in runs)
    rows = pd.concat([run[run["_spent"] <= least].tail(1) for run in runs], ignore_index=True)
    return rows.drop(columns="_spent")


def period_table(curves: pd.DataFrame, periods: Sequence[int] = PERIODS) -> pd.DataFrame:
    """Return the traffic of local SGD and how good its model is in the end, one row per period.

    ``bytes_sent`` is counted, per worker on average; ``traffic`` is in units of the first period's.
    """
    cells, rows = runs_by(curves, "method"), []
    for period, method in zip(periods, local_methods(periods), strict=True):
        require((method,) in cells, f"the curves have no {method}")
        runs = cells[method,]
        ends = pd.concat([run.tail(1) for run in runs.values()])
        loss = mean_interval(final_losses(runs))
        accuracy = mean_interval(ends["test_accuracy"].to_numpy(dtype=float))
        rows.append(
            {
                "period": period,
                "bytes_sent": float(ends["bytes_sent"].mean()),
                "seeds": len(ends),
                "test_loss": loss.estimate,
                "test_loss_half_width": loss.half_width,
                "test_accuracy": accuracy.estimate,
                "test_accuracy_half_width": accuracy.half_width,
                "consensus_distance": float(ends["consensus_distance"].mean()),
            }
        )
    frame = pd.DataFrame(rows)
    frame.insert(2, "traffic", frame["bytes_sent"] / frame["bytes_sent"].iloc[0])
    return frame.assign(source="measured in lockstep").set_index("period")


def period_summary(periods: pd.DataFrame) -> pd.DataFrame:
    """Return a `period_table` with units in its headers, each measure with its interval."""
    table = pd.DataFrame({"sent per worker (MB)": (periods["bytes_sent"] / MB).round(3)})
    table["traffic, in units of H = 1"] = periods["traffic"].round(4)
    for measure in ("test_loss", "test_accuracy"):
        table[measure.replace("_", " ")] = with_half_widths(periods, measure)
    return table.rename_axis("period H")


def same_traffic(
    period: int = 8,
    *,
    workers: int = 8,
    steps: int = 160,
    seeds: int = 5,
    split: str = "iid",
    jobs: int | None = None,
) -> pd.DataFrame:
    """Return curves of local SGD and of BSP with a batch larger by the period.

    Both see the same samples and send the same bytes, by plain SGD, each at a rate of its own that
    is tuned as by `ddlnb.compare`. ``steps`` are those of local SGD. Raises InputError unless they
    are a multiple of the period.
    """
    task = get_learning_task(TASK)
    require_whole(period=period, workers=workers, steps=steps, seeds=seeds)
    require(steps % period == 0, f"steps {steps} must be a multiple of the period {period}")
    cells = [
        training_settings(
            task,
            method,
            workers=workers,
            steps=count,
            local_batch=steps // count * task.local_batch,
            split=split,
            evaluate_every=count,
        )
        for method, count in ((f"local({period}) on PS", steps), ("bsp on PS", steps // period))
    ]
    rates = [rate for rate, _ in in_parallel(tuned_rate, [(cell,) for cell in cells], jobs)]
    runs = [
        replace(cell, lr=rate, seed=seed)
        for cell, rate in zip(cells, rates, strict=True)
        for seed in range(seeds)
    ]
    curves = in_parallel(run, [(one,) for one in runs], jobs)
    return pd.concat(curves, ignore_index=True)
