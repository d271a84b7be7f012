"""What an iteration would have taken without one cause of waste, or without all of them.

Each cause is taken out by playing the job again with other durations, everything else as it was;
the difference in seconds is what the cause costs on its own. Without all of them nobody straggles.
Causes overlap: the parts need not add up to the whole, and their interaction is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.traces.jobs.clocks import with_agreeing_clocks
from ddlnb.traces.jobs.factors import Factors
from ddlnb.traces.jobs.kinds import COLLECTIVE, COMPUTE, POINT_TO_POINT, family_of
from ddlnb.traces.jobs.replay import Replay
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Seconds

CAUSES = (
    "slow workers",
    "slow stages",
    "uneven sequences",
    "network",
    "pauses",
    "other variation",
)
SHOWN_WORKERS = 3


@dataclass(frozen=True)
class WhatIf:
    """What stragglers cost a job.

    ``iterations`` has a row per iteration: ``step``, ``traced_seconds``, ``replayed_seconds``,
    ``error`` (relative), ``error_without_pauses`` and ``error_without_delays`` (of simpler
    replays), ``error_of_busiest`` (if the worker with most work set the time), ``ideal_seconds``
    (nobody straggles) and for every cause the seconds that taking it out alone saves. ``causes``
    has a row per cause: seconds per iteration, share of the replayed time; then their sum, the
    interaction, and all together. ``workers`` are the slowest ones with their factors, and the
    seconds per iteration that replacing only that worker saves. ``mean_slowdown`` is S as the paper
    defines it, ``ideal_work`` the seconds of every operation if nobody straggled.
    """

    replay: Replay
    factors: Factors
    iterations: pd.DataFrame
    causes: pd.DataFrame
    workers: pd.DataFrame
    mean_slowdown: float
    ideal_work: Seconds

    @property
    def job(self) -> Job:
        """The job."""
        return self.replay.job

    @property
    def worst_error(self) -> float:
        """The largest relative error of a replayed iteration time, as an absolute value."""
        return float(self.iterations["error"].abs().max())

    @property
    def typical_step(self) -> int:
        """The iteration of median length."""
        seconds = self.iterations["traced_seconds"]
        middle = (seconds - seconds.median()).abs().idxmin()
        return int(self.iterations.loc[middle, "step"])

    def operations(self, step: int) -> pd.DataFrame:
        """Return the operations of an iteration with their replayed and ideal starts and ends.

        Columns are those of the job's rows and ``start``, ``end``, ``ideal_start``, ``ideal_end``.
        Raises InputError for a step that the job does not have.
        """
        require(step in self.job.steps, f"step {step} is none of {self.job.name!r}")
        launches = self.replay.launches
        start, end = self.replay.instants(self.replay.work, launches.replayed)
        best_start, best_end = self.replay.instants(self.ideal_work, launches.typical)
        rows = self.job.rows.assign(
            start=start, end=end, ideal_start=best_start, ideal_end=best_end
        )
        return rows[rows["step"] == step]

    @property
    def slowdown(self) -> float:
        """S = T / T_ideal: how many times as long the job takes because somebody straggles."""
        totals = self.iterations[["replayed_seconds", "ideal_seconds"]].sum()
        return float(totals["replayed_seconds"] / totals["ideal_seconds"])


def what_if(job: Job) -> WhatIf:
    """Replay a job with and without each cause of waste.

    The result has seconds: ``iterations`` (a row each: traced, replayed, error, without any
    straggler, and what every cause costs), ``causes`` (means of the job), ``workers`` (the slowest
    three) and ``slowdown`` (S of arXiv 2505.05713, section 3). Raises InputError for a job whose
    operations wait for one another in a circle.

    >>> import ddlnb
    >>> job = ddlnb.read_trace("data/published/traces/bytedance-trace-ST.csv.gz")
    >>> found = ddlnb.what_if(job)
    >>> found.causes["cause"][found.causes["seconds"].idxmax()], found.worst_error < 0.02
    ('all together', True)
    >>> found.causes.set_index("cause").loc["slow stages", "share"].round(2)
    np.float64(0.13)
    """
    job = with_agreeing_clocks(job)
    replay, factors = Replay.of(job), Factors.of(job)
    work, launches = replay.work, replay.launches
    fair = _usual_transfers(replay)
    slowest = factors.of_worker.sort_values("factor", ascending=False).head(SHOWN_WORKERS)
    ideal_work = fair / (factors.worker * factors.stage * factors.sequence * factors.rest)
    scenarios = [
        (work, launches.replayed),
        (work / factors.worker, launches.replayed),
        (work / factors.stage, launches.replayed),
        (work / factors.sequence, launches.replayed),
        (fair, launches.replayed),
        (work, launches.typical),
        (work / factors.rest, launches.replayed),
        (ideal_work, launches.typical),
        (work, np.zeros_like(work)),
        (_means(replay), launches.replayed),
        *((_without(replay, factors, one), launches.replayed) for one in _pairs(slowest)),
    ]
    seconds = np.array([replay.iteration_seconds(*scenario) for scenario in scenarios])
    played, without, ideal, plain = seconds[0], seconds[1:7], seconds[7], seconds[8]
    traced = replay.traced_seconds
    iterations = pd.DataFrame(
        {
            "step": job.steps,
            "traced_seconds": traced,
            "replayed_seconds": played,
            "error": _error(played, traced),
            "error_without_pauses": _error(seconds[5], traced),
            "error_without_delays": _error(plain, traced),
            "error_of_busiest": _error(_busiest(replay), traced),
            "ideal_seconds": ideal,
            **{cause: played - less for cause, less in zip(CAUSES, without, strict=True)},
        }
    )
    return WhatIf(
        replay,
        factors,
        iterations,
        _causes(iterations),
        slowest.assign(saves_seconds=(played - seconds[10:]).mean(axis=1)).reset_index(drop=True),
        float(played.sum() / seconds[9].sum()),
        ideal_work,
    )


def _causes(iterations: pd.DataFrame) -> pd.DataFrame:
    """Return the mean seconds of every cause, their sum, the interaction, and all together."""
    alone = iterations[list(CAUSES)].mean()
    together = (iterations["replayed_seconds"] - iterations["ideal_seconds"]).mean()
    rows = {
        **alone.to_dict(),
        "sum of these": alone.sum(),
        "interaction": together - alone.sum(),
        "all together": together,
    }
    frame = pd.DataFrame({"cause": list(rows), "seconds": list(rows.values())})
    return frame.assign(share=frame["seconds"] / iterations["replayed_seconds"].mean())


def _error(seconds: Seconds, traced: Seconds) -> Seconds:
    return np.divide(seconds - traced, traced, out=np.zeros_like(traced), where=traced > 0)


def _busiest(replay: Replay) -> Seconds:
    """Return what the worker with most work does in each iteration: no dependency is waited for."""
    rows = replay.job.rows
    work = pd.Series(replay.work).groupby([rows["step"], rows["worker"]], sort=False).sum()
    seconds: Seconds = work.groupby(level="step", sort=False).max().to_numpy()
    return seconds


def _usual_transfers(replay: Replay) -> Seconds:
    """Return the work with every transfer at its median: messages by kind, collectives by stage.

    A collective moves what its stage holds, which differs between stages; messages do not differ.
    """
    rows, work = replay.job.rows, pd.Series(replay.work)
    family = rows["optype"].map(family_of)
    keys = rows[["optype", "mc"]].assign(stage=rows["stage"].where(family == COLLECTIVE, -1))
    median = work.groupby([keys[column] for column in keys]).transform("median")
    result: Seconds = work.where(~family.isin((POINT_TO_POINT, COLLECTIVE)), median).to_numpy()
    return result


def _means(replay: Replay) -> Seconds:
    """Return the work as the paper makes it ideal (section 3.3).

    A computation lasts the mean of its kind, a transfer the median of its kind.
    """
    rows, work = replay.job.rows, pd.Series(replay.work)
    by_kind = work.groupby(rows["optype"])
    computes = rows["optype"].map(family_of) == COMPUTE
    result: Seconds = (
        by_kind.transform("mean").where(computes, by_kind.transform("median")).to_numpy()
    )
    return result


def _pairs(workers: pd.DataFrame) -> list[tuple[int, int]]:
    return [(int(one["dp_rank"]), int(one["stage"])) for one in workers.to_dict("records")]


def _without(replay: Replay, factors: Factors, worker: tuple[int, int]) -> Seconds:
    """Return the work if this one worker computed as fast as the others of its stage."""
    rows = replay.job.rows
    is_it = (rows["dp_rank"] == worker[0]) & (rows["stage"] == worker[1])
    return np.where(is_it, replay.work / factors.worker, replay.work)
