"""What the duration of a computation is made of: its stage, its worker, its sequences, the rest.

An operation of some kind lasts as long as the average one of the job, times the factor of its stage
(and chunk), times that of its worker among those of the stage, times that of its micro batch, times
the pace of the iteration as a whole (which nobody is behind in), times what is left. The stage is
as slow as the median of its workers (of two, the faster one), because a slow worker is no property
of the stage; work that a stage or a micro batch has too much of could be done by others, so those
factors are relative to means. A micro batch goes through all stages, forward and backward: its
factor is what these have in common, their median, relative to the mean of its iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.traces.jobs.kinds import COLLECTIVE, COMPUTE, POINT_TO_POINT, family_of
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Seconds


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
    def of(cls, job: Job) -> Factors:
        """Return the factors of a job's operations."""
        family = job.rows["optype"].map(family_of)
        own = job.rows[~family.isin((POINT_TO_POINT, COLLECTIVE)) & (job.rows["duration"] > 0)]
        place = ["optype", "stage", "mc"]
        seconds = own["duration"]
        by_worker = own.groupby([*place, "worker"])["duration"].mean()
        by_place = by_worker.groupby(place).quantile(0.5, interpolation="lower")
        average = by_place.groupby("optype").mean()
        at_place = _looked_up(by_place, own, place)
        worker = _looked_up(by_worker, own, [*place, "worker"])
        longer = _of_data_ranks(own, worker, at_place)
        worker = worker / longer
        overall = _looked_up(average, own, ["optype"])
        left = seconds / worker
        pace = left.groupby([own["step"], own["optype"]]).transform("median")
        left = left / pace
        common, mean, correlation = _of_sequences(own, left)
        computes = own["optype"].map(family_of) == COMPUTE
        factors = {
            "stage": at_place / overall,
            "worker": worker / at_place,
            "sequence": common / mean,
            "rest": left / common,
        }
        filled = {name: _filled(values, job) for name, values in factors.items()}
        return cls(
            **filled,
            of_worker=_weighted(own[computes], worker / at_place, at_place, ["dp_rank", "stage"]),
            of_stage=_weighted(own[computes], at_place / overall, overall, ["stage"]),
            correlation=correlation,
        )


def _of_data_ranks(
    own: pd.DataFrame, worker: pd.Series[float], at_place: pd.Series[float]
) -> pd.Series[float]:
    """Return by how much all stages of an operation's data-parallel rank take longer than others'.

    What stages have in common, the median of their workers (of two, the faster one), are the micro
    batches that the rank was given. With one stage it cannot be told, and is the worker's.
    """
    computes = own["optype"].map(family_of) == COMPUTE
    if own["stage"].nunique() < 2 or not computes.any():
        return pd.Series(1.0, own.index)
    by_worker = _weighted(own[computes], worker / at_place, at_place, ["dp_rank", "stage"])
    common = by_worker.groupby("dp_rank")["factor"].quantile(0.5, interpolation="lower")
    return own["dp_rank"].map(common).fillna(1.0).where(computes, 1.0)


def _of_sequences(
    own: pd.DataFrame, left: pd.Series[float]
) -> tuple[pd.Series[float], pd.Series[float], float]:
    """Return what operations of a micro batch have in common, and the mean of that in the step.

    Also returned is how forward and backward times of micro batches correlate.
    """
    known = own[(own["optype"].map(family_of) == COMPUTE) & (own["mb_id"] >= 0)]
    common, mean = pd.Series(1.0, own.index), pd.Series(1.0, own.index)
    if known.empty:
        return common, mean, float("nan")
    same = [known[key] for key in ("step", "dp_rank", "mb_id")]
    common[known.index] = left[known.index].groupby(same).transform("median")
    mean[known.index] = common[known.index].groupby(known["step"]).transform("mean")
    own_pace = left[known.index].groupby([known["step"], known["worker"], known["optype"]])
    ways = known.assign(left=left[known.index] / own_pace.transform("mean")).pivot_table(
        index=["step", "worker", "mc", "mb_id"], columns="optype", values="left"
    )
    if {"forward-compute", "backward-compute"} - set(ways) or len(ways) < 3:
        return common, mean, float("nan")
    if not (ways.std() > 0).all():
        return common, mean, float("nan")
    return common, mean, float(ways["forward-compute"].corr(ways["backward-compute"]))


def _looked_up(values: pd.Series[float], rows: pd.DataFrame, keys: list[str]) -> pd.Series[float]:
    found = rows[keys].join(values.rename("value"), on=keys)["value"]
    return found.astype(float)


def _filled(values: pd.Series[float], job: Job) -> Seconds:
    result = np.ones(len(job.rows))
    result[values.index.to_numpy()] = values.to_numpy()
    return result


def _weighted(
    rows: pd.DataFrame, factor: pd.Series[float], weight: pd.Series[float], by: list[str]
) -> pd.DataFrame:
    """Return one factor per worker or stage: how much longer all of its computation takes."""
    sums = rows[by].assign(actual=factor * weight, fair=weight).groupby(by, as_index=False).sum()
    return sums.assign(factor=sums["actual"] / sums["fair"])[[*by, "factor"]]
