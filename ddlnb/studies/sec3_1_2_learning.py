"""What relaxed synchronisation costs in convergence: at equal steps, seconds and traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddlnb.errors import require, require_whole
from ddlnb.results.statistics import t_interval
from ddlnb.studies.sec3_1_2_synchronisation import MESSAGE_SECONDS, METHODS, virtual_clock
from ddlnb.training.optimizers import default_rate
from ddlnb.training.runs.by_cell import final_losses, runs_by
from ddlnb.training.runs.kept_runs import Run
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.runs.study import StudyResult, study
from ddlnb.training.runs.summaries import spent
from ddlnb.training.runs.tuning import tuned_rate
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.task import LearningTask

if TYPE_CHECKING:
    import pandas as pd

PERIODS = (1, 2, 4, 8, 16)


def converging(
    methods: Sequence[str] = METHODS,
    *,
    workers: int = 8,
    steps: int = 160,
    seeds: int = 5,
    straggler: str = "log-normal(0.5)",
    message_seconds: float = MESSAGE_SECONDS,
    task: str | LearningTask = "digits",
    split: str = "iid",
    tune: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> StudyResult:
    """`study` of these methods on a virtual clock with stragglers, plain SGD.

    Every worker takes as many steps. So stragglers should be as fast as others in the mean: behind
    one that is always slow, methods without barriers would end with its steps alone.
    """
    return study(
        task,
        methods,
        workers=workers,
        steps=steps,
        seeds=seeds,
        tune=tune,
        split=split,
        clock=virtual_clock(straggler, message_seconds),
        jobs=jobs,
        progress=progress,
    )


def local_methods(periods: Sequence[int] = PERIODS) -> list[str]:
    """The names of local SGD with these periods, on parameter servers as all methods here.

    >>> local_methods([1, 4])
    ['local(1) on PS', 'local(4) on PS']
    """
    return [f"local({period}) on PS" for period in periods]


def at_equal(curves: pd.DataFrame, cost: str = "step") -> pd.DataFrame:
    """The row of every method and seed at the same cost for all.

    The cost, as `spent` counts it, is the least that any run has in its last row; of every run the
    last row within it counts. Raises UnknownName, and InputError for curves without that cost.
    """
    import pandas as pd

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
    """One row per period of local SGD: traffic, and how good the model is in the end.

    ``bytes_sent`` is counted, of a worker in the mean, ``traffic`` in units of the first period's.
    """
    import pandas as pd

    cells, rows = runs_by(curves, "method"), []
    for period, method in zip(periods, local_methods(periods), strict=True):
        require((method,) in cells, f"the curves have no {method}")
        runs = cells[method,]
        ends = pd.concat([run.tail(1) for run in runs.values()])
        loss, loss_half = t_interval(final_losses(runs))
        accuracy, accuracy_half = t_interval(ends["test_accuracy"].to_numpy(dtype=float))
        rows.append(
            {
                "period": period,
                "bytes_sent": float(ends["bytes_sent"].mean()),
                "seeds": len(ends),
                "test_loss": loss,
                "test_loss_half_width": loss_half,
                "test_accuracy": accuracy,
                "test_accuracy_half_width": accuracy_half,
                "consensus_distance": float(ends["consensus_distance"].mean()),
            }
        )
    frame = pd.DataFrame(rows)
    frame.insert(2, "traffic", frame["bytes_sent"] / frame["bytes_sent"].iloc[0])
    return frame.assign(source="measured in lockstep").set_index("period")


def same_traffic(
    period: int = 8,
    *,
    workers: int = 8,
    steps: int = 160,
    seeds: int = 5,
    task: str | LearningTask = "digits",
    split: str = "iid",
    jobs: int | None = None,
) -> pd.DataFrame:
    """Curves of local SGD and of BSP with a batch as many times as large: equal samples and bytes.

    Both at a rate of their own, tuned as by `study`; plain SGD.
    ``steps`` are those of local SGD. Raises InputError unless they are a multiple of the period.
    """
    import pandas as pd

    task = get_learning_task(task)
    require_whole(period=period, workers=workers, steps=steps, seeds=seeds)
    require(steps % period == 0, f"steps {steps} must be a multiple of the period {period}")
    guess = default_rate(task, "sgd")
    local = Run(task, f"local({period}) on PS", workers, steps, guess, 0, split=split)
    rounds = steps // period
    large = replace(local, method="bsp on PS", steps=rounds, local_batch=period * task.local_batch)
    cells = [replace(one, evaluate_every=one.steps) for one in (local, large)]
    rates = [rate for rate, _ in in_parallel(tuned_rate, [(cell,) for cell in cells], jobs)]
    runs = [
        replace(cell, lr=rate, seed=seed)
        for cell, rate in zip(cells, rates, strict=True)
        for seed in range(seeds)
    ]
    curves = in_parallel(Run.curve, [(run,) for run in runs], jobs)
    return pd.concat(curves, ignore_index=True)
