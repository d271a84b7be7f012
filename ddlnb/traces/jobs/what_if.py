"""What an iteration would have taken without one cause of waste, or without all of them.

Each cause is taken out by playing the job again with other durations, everything else as it was;
the difference in seconds is what the cause costs on its own. Without all of them nobody straggles.
Causes overlap: the parts need not add up to the whole, and their interaction is shown.

An operation of some kind lasts as long as the average one of the job, times the factor of its stage
(and chunk), times that of its worker among those of the stage, times that of its micro batch, times
the pace of the iteration as a whole (which nobody is behind in), times what is left. The stage is
as slow as the median of its workers (of two, the faster one), because a slow worker is no property
of the stage; work that a stage or a micro batch has too much of could be done by others, so those
factors are relative to means. A micro batch goes through all stages, forward and backward: its
factor is what these have in common, their median, relative to the mean of its iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.traces.jobs.replay import Replay, with_agreeing_clocks
from ddlnb.traces.jobs.table import COLLECTIVE, COMPUTE, POINT_TO_POINT, JobTrace
from ddlnb.traces.longest_path import Seconds
from ddlnb.units import counted, show_seconds


@dataclass(frozen=True)
class Factors:
    """Factors of every operation; all are 1 for messages, collectives and what lasts no time.

    Their product, times the average of the kind and the pace of the iteration, is the duration.
    ``of_worker`` and ``of_stage`` are the factors of computation by worker and by stage, and
    ``correlation`` that of forward and backward durations of the micro batches of one iteration on
    one worker: near 1 where sequences differ, near 0 where single operations do, NaN if unknown.
    """

    stage: Seconds
    worker: Seconds
    sequence: Seconds
    rest: Seconds
    of_worker: pd.DataFrame
    of_stage: pd.DataFrame
    correlation: float

    @classmethod
    def of(cls, job: JobTrace) -> Factors:
        """Return the factors of a job's operations."""
        moves = job.family.isin((POINT_TO_POINT, COLLECTIVE))
        own = job.rows[~moves & (job.rows["duration"] > 0)]
        computes = job.family[own.index] == COMPUTE
        place = ["optype", "stage", "mc"]
        by_worker = own.groupby([*place, "worker"])["duration"].mean()
        by_place = by_worker.groupby(place).quantile(0.5, interpolation="lower")
        average = by_place.groupby("optype").mean()
        at_place = _looked_up(by_place, own, place)
        worker = _looked_up(by_worker, own, [*place, "worker"])
        worker = worker / _of_data_ranks(own, computes, worker, at_place)
        overall = _looked_up(average, own, ["optype"])
        left = own["duration"] / worker
        left = left / left.groupby([own["step"], own["optype"]]).transform("median")
        common, mean, correlation = _of_sequences(own[computes & (own["mb_id"] >= 0)], left)

        def of_job(values: pd.Series[float]) -> Seconds:
            return np.asarray(values.reindex(range(len(job.rows)), fill_value=1.0))

        return cls(
            stage=of_job(at_place / overall),
            worker=of_job(worker / at_place),
            sequence=of_job(common / mean),
            rest=of_job(left / common),
            of_worker=_weighted(own[computes], worker / at_place, at_place, ["dp_rank", "stage"]),
            of_stage=_weighted(own[computes], at_place / overall, overall, ["stage"]),
            correlation=correlation,
        )


def _of_data_ranks(
    own: pd.DataFrame,
    computes: pd.Series[bool],
    worker: pd.Series[float],
    at_place: pd.Series[float],
) -> pd.Series[float]:
    """Return by how much all stages of an operation's data-parallel rank take longer than others'.

    What stages have in common, the median of their workers (of two, the faster one), are the micro
    batches that the rank was given. With one stage it cannot be told, and is the worker's.
    """
    if own["stage"].nunique() < 2 or not computes.any():
        return pd.Series(1.0, own.index)
    by_worker = _weighted(own[computes], worker / at_place, at_place, ["dp_rank", "stage"])
    common = by_worker.groupby("dp_rank")["factor"].quantile(0.5, interpolation="lower")
    return own["dp_rank"].map(common).fillna(1.0).where(computes, 1.0)


def _of_sequences(
    known: pd.DataFrame, left: pd.Series[float]
) -> tuple[pd.Series[float], pd.Series[float], float]:
    """Return what operations of a micro batch have in common, and the mean of that in the step.

    Also returned is how forward and backward times of micro batches correlate. ``known`` are the
    computations of known micro batches, ``left`` what is left to explain of every operation.
    """
    own = left[known.index]
    same = own.groupby([known[key] for key in ("step", "dp_rank", "mb_id")]).transform("median")
    mean = same.groupby(known["step"]).transform("mean")
    pace = own.groupby([known["step"], known["worker"], known["optype"]]).transform("mean")
    ways = known.assign(left=own / pace).pivot_table(
        index=["step", "worker", "mc", "mb_id"], columns="optype", values="left"
    )
    both = ("forward-compute", "backward-compute")
    is_told = set(both) <= set(ways) and len(ways) >= 3 and bool((ways.std() > 0).all())
    correlation = float(ways[both[0]].corr(ways[both[1]])) if is_told else math.nan
    return (
        same.reindex(left.index, fill_value=1.0),
        mean.reindex(left.index, fill_value=1.0),
        correlation,
    )


def _looked_up(values: pd.Series[float], rows: pd.DataFrame, keys: list[str]) -> pd.Series[float]:
    found = rows[keys].join(values.rename("value"), on=keys)["value"]
    return found.astype(float)


def _weighted(
    rows: pd.DataFrame, factor: pd.Series[float], weight: pd.Series[float], by: list[str]
) -> pd.DataFrame:
    """Return one factor per worker or stage: how much longer all of its computation takes."""
    sums = rows[by].assign(actual=factor * weight, fair=weight).groupby(by, as_index=False).sum()
    return sums.assign(factor=sums["actual"] / sums["fair"])[[*by, "factor"]]


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
    def job(self) -> JobTrace:
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


def what_if(job: JobTrace) -> WhatIf:
    """Replay a job with and without each cause of waste.

    The result has seconds: ``iterations`` (a row each: traced, replayed, error, without any
    straggler, and what every cause costs), ``causes`` (means of the job), ``workers`` (the slowest
    three) and ``slowdown`` (S of arXiv 2505.05713, section 3). Raises InputError for a job whose
    operations wait for one another in a circle.

    >>> import ddlnb
    >>> job = ddlnb.read_trace("data/published/traces/bytedance-trace-ST.csv.gz")
    >>> found = ddlnb.traces.what_if(job)
    >>> found.causes["cause"][found.causes["seconds"].idxmax()], found.worst_error < 0.02
    ('all together', True)
    >>> found.causes.set_index("cause").loc["slow stages", "share"].round(2)
    np.float64(0.13)
    """
    job = with_agreeing_clocks(job)
    replay, factors = Replay.of(job), Factors.of(job)
    work, launches, rows = replay.work, replay.launches, job.rows
    fair = _usual_transfers(replay)
    ideal_work = fair / (factors.worker * factors.stage * factors.sequence * factors.rest)
    without = {  # each cause on its own, in the order of CAUSES
        "slow workers": (work / factors.worker, launches.replayed),
        "slow stages": (work / factors.stage, launches.replayed),
        "uneven sequences": (work / factors.sequence, launches.replayed),
        "network": (fair, launches.replayed),
        "pauses": (work, launches.typical),
        "other variation": (work / factors.rest, launches.replayed),
    }
    seconds = {cause: replay.iteration_seconds(*without[cause]) for cause in CAUSES}
    played = replay.iteration_seconds(work, launches.replayed)
    plain = replay.iteration_seconds(work, np.zeros_like(work))
    means = replay.iteration_seconds(_means(replay), launches.replayed)
    slowest = factors.of_worker.sort_values("factor", ascending=False).head(SHOWN_WORKERS)
    alone = [  # one worker as fast as the others of its stage
        np.where((rows["dp_rank"] == rank) & (rows["stage"] == stage), work / factors.worker, work)
        for rank, stage in slowest[["dp_rank", "stage"]].to_numpy()
    ]
    saved = [(played - replay.iteration_seconds(one, launches.replayed)).mean() for one in alone]
    traced = replay.traced_seconds
    iterations = pd.DataFrame(
        {
            "step": job.steps,
            "traced_seconds": traced,
            "replayed_seconds": played,
            "error": _error(played, traced),
            "error_without_pauses": _error(seconds["pauses"], traced),
            "error_without_delays": _error(plain, traced),
            "error_of_busiest": _error(_busiest(replay), traced),
            "ideal_seconds": replay.iteration_seconds(ideal_work, launches.typical),
            **{cause: played - seconds[cause] for cause in CAUSES},
        }
    )
    return WhatIf(
        replay,
        factors,
        iterations,
        _causes(iterations),
        slowest.assign(saves_seconds=saved).reset_index(drop=True),
        float(played.sum() / means.sum()),
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
    return np.divide(seconds - traced, traced, out=np.zeros(len(traced)), where=traced > 0)


def _busiest(replay: Replay) -> Seconds:
    """Return what the worker with most work does in each iteration: no dependency is waited for."""
    rows = replay.job.rows
    work = pd.Series(replay.work).groupby([rows["step"], rows["worker"]], sort=False).sum()
    return np.asarray(work.groupby(level="step", sort=False).max())


def _usual_transfers(replay: Replay) -> Seconds:
    """Return the work with every transfer at its median: messages by kind, collectives by stage.

    A collective moves what its stage holds, which differs between stages; messages do not differ.
    """
    rows, work = replay.job.rows, pd.Series(replay.work)
    family, keys = replay.job.family, [rows["optype"], rows["mc"]]
    stage = rows["stage"].where(family == COLLECTIVE, -1)
    median = work.groupby([*keys, stage]).transform("median")
    return np.asarray(work.where(~family.isin((POINT_TO_POINT, COLLECTIVE)), median))


def _means(replay: Replay) -> Seconds:
    """Return the work as the paper makes it ideal (section 3.3).

    A computation lasts the mean of its kind, a transfer the median of its kind.
    """
    rows, work = replay.job.rows, pd.Series(replay.work)
    by_kind, computes = work.groupby(rows["optype"]), replay.job.family == COMPUTE
    return np.asarray(by_kind.transform("mean").where(computes, by_kind.transform("median")))


CLEAR_FACTOR = 1.02  # a worker or stage slower than this is named
ALIKE = 0.9  # correlation of forward and backward above which sequences are the reason (the paper)
TOLERATED = 0.02  # an error of replayed iterations that is said to be large beyond it


def sentences(found: WhatIf) -> Iterator[str]:
    """Yield what a reader should know beside the tables."""
    yield from _errors(found)
    yield (
        f"If nobody straggled, an iteration would take "
        f"{show_seconds(found.iterations['ideal_seconds'].mean())} instead of "
        f"{show_seconds(found.iterations['replayed_seconds'].mean())}: S = {found.slowdown:.3f} "
        f"(S = {found.mean_slowdown:.3f} with every computation at the mean of its kind and every "
        f"transfer at the median, as arXiv 2505.05713 defines it)."
    )
    yield from _reasons(found)
    if found.job.data_ranks == 1:
        yield "With one data-parallel rank, a slow worker cannot be told from a slow stage."
    yield from _remarks(found)


def _errors(found: WhatIf) -> Iterator[str]:
    errors = found.iterations.filter(like="error").abs().max()
    yield (
        f"The replay is off by at most {errors['error']:.2%} of an iteration; without the pauses "
        f"that it found by {errors['error_without_pauses']:.2%}, without any launch delay (from "
        f"durations and dependencies alone) by {errors['error_without_delays']:.2%}. Adding up the "
        f"work of the busiest worker would be off by {errors['error_of_busiest']:.1%}."
    )
    if errors["error"] > TOLERATED:
        yield f"That is more than {TOLERATED:.0%}: take what follows with care."


def _reasons(found: WhatIf) -> Iterator[str]:
    alone = found.causes.set_index("cause").loc[list(CAUSES), "seconds"]
    most = str(alone.idxmax())
    if alone[most] > 0:
        total = found.iterations["replayed_seconds"].mean()
        yield f"The largest cause is {most}: {alone[most] / total:.1%} of an iteration."
    worker = found.workers.iloc[0]
    if worker["factor"] > CLEAR_FACTOR:
        yield (
            f"The slowest worker is data-parallel rank {worker['dp_rank']:.0f} of stage "
            f"{worker['stage']:.0f}: it computes {worker['factor']:.2f} times as long as the "
            f"others of its stage, and replacing it alone saves "
            f"{show_seconds(max(0.0, worker['saves_seconds']))} per iteration."
        )
    stages = found.factors.of_stage
    stage = stages.loc[stages["factor"].idxmax()]
    if stage["factor"] > CLEAR_FACTOR:
        yield (
            f"Stage {stage['stage']:.0f} computes {stage['factor']:.2f} times as long as the "
            f"average stage."
        )
    correlation = found.factors.correlation
    if not math.isnan(correlation):
        verdict = "micro batches differ" if correlation >= ALIKE else "no sign of uneven sequences"
        yield (
            f"Forward and backward times of micro batches correlate by {correlation:.2f}: "
            f"{verdict}."
        )


def _remarks(found: WhatIf) -> Iterator[str]:
    job, peers, launches = found.job, found.replay.peers, found.replay.launches
    if job.clocks_set_seconds:
        yield (
            f"Clocks of workers differed by up to {show_seconds(job.clocks_set_seconds)} from "
            f"their mean, and were set by the ends of messages and collectives."
        )
    for barrier in found.replay.barriers.found:
        yield f"A barrier that the trace does not record was found {barrier}."
    pauses = launches.pauses[launches.pauses > 0]
    if len(pauses):
        yield (
            f"Workers paused {counted(len(pauses), 'time')} for {show_seconds(pauses.mean())} on "
            f"average (longest {show_seconds(pauses.max())}), kept by nothing that the trace "
            f"records."
        )
    for kind, count in job.unknown_kinds.items():
        yield (
            f"Replayed as work of one worker: {counted(count, 'operation')} of the unknown kind "
            f"{kind!r}."
        )
    if peers.lonely:
        yield (
            f"{peers.lonely:,} sends and receives lack the other half; they are replayed with the "
            f"time they took."
        )
    if peers.early:
        share = peers.early / len(job.rows)
        yield (
            f"Replayed alone, as they ended before a peer had begun: "
            f"{counted(peers.early, 'operation')} ({share:.1%}), whose numbers (seq_id) may not "
            f"match."
        )
