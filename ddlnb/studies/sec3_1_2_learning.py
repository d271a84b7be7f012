"""What relaxed synchronisation costs in convergence: at equal steps, seconds and traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddlnb.errors import require, require_whole
from ddlnb.results.statistics import t_interval
from ddlnb.studies.sec3_1_2_synchronisation import (
    MESSAGE_SECONDS,
    METHODS,
    mean_staleness,
    timed,
    virtual_clock,
)
from ddlnb.training.optimizers import default_rate
from ddlnb.training.runs.by_cell import final_losses, runs_by
from ddlnb.training.runs.kept_runs import Run
from ddlnb.training.runs.orderings import (
    CONTRADICTED,
    HOLDS,
    diverged_text,
    pair_of,
    paired_verdict,
)
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


# What the survey's section 3.1.2 lets one expect, and which of it held.
NEAR = 0.05  # relative, of a mean staleness
SLOWER = 4.0  # times: a worker that others run away from
ROUNDING = 1e-9  # seconds


def law_verdicts(
    waits: pd.DataFrame, staleness: pd.DataFrame, periods: pd.DataFrame, workers: int
) -> pd.DataFrame:
    """One row per law: of the frames of `waits`, `staleness` and `period_table`.

    ``workers`` are those of the staleness. The lead is looked for with a worker four times slower.
    """
    bounds = sorted(set(waits["bound"]))
    clock = virtual_clock(f"one-slow({SLOWER})")
    leads = [timed(f"ssp({bound})", clock, 4, 8 * bound + 8).lead for bound in bounds]
    rises = waits.sort_values("bound").groupby(["straggler", "seed"])["waiting_seconds"].diff()
    mean = float(mean_staleness(staleness)["asp on PS"])
    traffic = float((periods["traffic"] * periods.index / periods.index[0] - 1).abs().max())
    return _table(
        [
            _law(
                "SSP: the fastest worker gets s iterations ahead, and not more",
                leads == bounds and bool((waits["lead"] <= waits["bound"]).all()),
                f"leads {leads} with bounds {bounds}",
                "A21",
            ),
            _law(
                "SSP: waiting falls, or stays, as s grows",
                not bool((rises > ROUNDING).any()),
                f"{int((rises < -ROUNDING).sum())} falls, {int((rises > ROUNDING).sum())} rises",
                "A21",
            ),
            _law(
                "ASP: the mean staleness is about n - 1",
                abs(mean - (workers - 1)) <= NEAR * (workers - 1),
                f"{mean:.2f} with {workers} workers",
                "A23",
            ),
            _law(
                "local SGD: traffic falls as 1/H",
                traffic < ROUNDING,
                f"farthest from it by a share of {traffic:.1g}",
                "A22",
            ),
        ]
    )


def learning_verdicts(curves: pd.DataFrame, rivals: pd.DataFrame) -> pd.DataFrame:
    """One row per expectation about learning, judged on pairs of runs of equal seeds.

    ``curves`` are those of `converging`, with BSP, ASP and local SGD; ``rivals`` those of
    `same_traffic`. ``difference`` is in test loss: how much lower the better side's is.
    """
    steps, seconds = at_equal(curves, "step"), at_equal(curves, "seconds")
    names = list(dict.fromkeys(curves["method"]))
    ssp = [name for name in names if name.startswith("ssp")]
    local = [name for name in names if name.startswith("local")]
    require(bool(ssp) and bool(local), f"no ssp or no local SGD among {names}")
    rarest, bsp, asp = local[-1], "bsp on PS", "asp on PS"
    rival = next(name for name in dict.fromkeys(rivals["method"]) if name.startswith("local"))
    rows = [
        _pair("stale updates cost: BSP ahead of ASP at equal steps", steps, bsp, asp, "Table 1"),
        _pair("no waiting pays: ASP ahead of BSP at equal seconds", seconds, asp, bsp, "A23"),
        _pair(f"{ssp[0]} ahead of BSP at equal seconds", seconds, ssp[0], bsp, "A21"),
        _pair(f"rare averages cost: BSP ahead of {rarest} at equal steps", steps, bsp, rarest,
              "A22"),
        _pair(f"rare averages pay: {rarest} ahead of BSP at equal seconds", seconds, rarest, bsp,
              "A22"),
        _pair(f"{rival} ahead of BSP with as large a batch, equal traffic", rivals, rival, bsp,
              "A22"),
    ]  # fmt: skip
    return _table(rows)


def _law(expected: str, holds: bool, found: str, source: str) -> dict[str, Any]:
    verdict = HOLDS if holds else CONTRADICTED
    return {"expected": expected, "found": found, "verdict": verdict, "source": source}


def _pair(expected: str, ends: pd.DataFrame, better: str, worse: str, source: str) -> dict:
    cells = runs_by(ends, "method")
    judged = paired_verdict(*pair_of(*(cells.get((name,), {}) for name in (better, worse))))
    found = f"{judged['difference']:+.3f} ± {judged['half_width']:.3f} of test loss"
    return {
        "expected": expected,
        "found": ", ".join(filter(None, [found, diverged_text(judged)])),
        "verdict": judged["verdict"],
        "source": source,
    }


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows).set_index("expected")
