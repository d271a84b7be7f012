"""Clocks of workers that do not agree, set by what ends at the same instant on several of them.

A send and its receive end together, and so does a collective on all that take part. From the median
differences of ends, the offset of every worker's clock follows in each iteration by least squares.
Sends that end early because they are buffered cancel out, as they go both ways between two stages.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ddlnb.traces.jobs.kinds import COLLECTIVE, DATA, KINDS, family_of
from ddlnb.traces.jobs.peers import COLUMNS_OF, message_numbers
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Seconds

AGREE_SECONDS = 2e-3  # ends of a collective may be as far apart as this without any clock


def with_agreeing_clocks(job: Job) -> Job:
    """Return the job on one clock; the same job if its clocks agree within 2 ms."""
    pairs = _pairs(job)
    if pairs.empty:
        return job
    offsets = pd.Series(0.0, job.rows.index)
    for step, own in pairs.groupby("step"):
        is_step = job.rows["step"] == step
        by_worker = _offsets(own, job.workers)
        offsets[is_step] = by_worker[job.rows.loc[is_step, "worker"].to_numpy()]
    largest = float(offsets.abs().max())
    if largest <= AGREE_SECONDS:
        return job
    rows = job.rows.assign(
        start_ts=job.rows["start_ts"] - offsets, end_ts=job.rows["end_ts"] - offsets
    )
    zero = rows.groupby("step")["start_ts"].transform("min")
    rows["start_ts"] -= zero
    rows["end_ts"] -= zero
    return replace(job, rows=rows, clocks_set_seconds=largest)


def _pairs(job: Job) -> pd.DataFrame:
    """Return pairs of workers with the differences of ends of what should end at once."""
    rows = job.rows
    messages = message_numbers(rows, job.stages)
    found = [_of_groups(rows, messages)]
    for name in rows["optype"].unique():
        if family_of(name) == COLLECTIVE and DATA in KINDS[name].scopes[:1]:
            own = rows[rows["optype"] == name]
            keys = own.groupby(["step", "number", *COLUMNS_OF[DATA]], sort=False).ngroup()
            found.append(_of_groups(own, keys))
    return pd.concat(found)


def _of_groups(rows: pd.DataFrame, keys: pd.Series[int]) -> pd.DataFrame:
    """Return for every group the differences of the others' ends from that of the first."""
    own = rows.loc[keys.index, ["step", "worker", "end_ts", "optype"]].assign(key=keys)
    own = own.sort_values(["key", "optype"], kind="stable")
    first = own.groupby("key")[["worker", "end_ts"]].transform("first")
    pairs = pd.DataFrame(
        {
            "step": own["step"],
            "one": first["worker"],
            "other": own["worker"],
            "kind": own["optype"],
            "difference": own["end_ts"] - first["end_ts"],
        }
    )
    return pairs[pairs["one"] != pairs["other"]]


def _offsets(pairs: pd.DataFrame, workers: int) -> Seconds:
    """Return the offset of each worker's clock in one iteration; their mean is 0."""
    medians = pairs.groupby(["one", "other", "kind"], as_index=False)["difference"].median()
    matrix = np.zeros((len(medians) + 1, workers))
    every = np.arange(len(medians))
    matrix[every, medians["other"]] = 1.0
    matrix[every, medians["one"]] = -1.0
    matrix[-1] = 1.0
    differences = np.r_[medians["difference"], 0.0]
    return np.asarray(np.linalg.lstsq(matrix, differences, rcond=None)[0])
