"""Barriers that a trace does not record: workers that wait for one another and do not say so.

Averaging the loss over data-parallel ranks, or a barrier before gradients are exchanged, leaves no
operation behind, only workers that do nothing. A group of workers is taken to pass a barrier before
a kind of operation if in every iteration none of them begins it before the last one could have, if
some are kept waiting for long, and if that explains most of their waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.traces.jobs.kinds import DATA, JOB, PIPELINE
from ddlnb.traces.jobs.order import ROUNDING_SECONDS
from ddlnb.traces.jobs.peers import COLUMNS_OF
from ddlnb.traces.jobs.table import Job
from ddlnb.traces.longest_path import Indices, Seconds

LONG_SECONDS = 10e-3  # a gap that is no launch delay
HOLDS = 0.98  # of the iterations
EXPLAINS = 0.8  # of the seconds that are waited
SCOPES = (JOB, PIPELINE, DATA)


@dataclass(frozen=True)
class Barriers:
    """Operations ``members`` begin when all of the same number in ``group`` could have begun.

    ``found`` names them: the kind of operation, the group, and its coordinates.
    """

    members: Indices
    group: Indices
    layer: Indices
    found: tuple[str, ...]

    @property
    def count(self) -> int:
        """Return the number of groups, over all iterations."""
        return int(self.group.max(initial=-1)) + 1

    def layers(self) -> Iterator[tuple[Indices, Indices]]:
        """Yield members with their groups, so that no operation is in two groups of a layer."""
        _, layer = np.unique(self.layer, return_inverse=True)
        for one in range(int(layer.max(initial=-1)) + 1):
            yield self.members[layer == one], self.group[layer == one]


def find_barriers(job: Job, ready: Seconds) -> Barriers:
    """Return the barriers of a job; ``ready`` is when each operation could have begun."""
    rows = job.rows[["step", "number", "optype", "dp_rank", "stage", "lane", "mc", "start_ts"]]
    rows = rows.assign(ready=ready, waits=rows["start_ts"] - ready)
    members: list[Indices] = []
    groups: list[Indices] = []
    found: list[str] = []
    number = 0
    for kind in rows.loc[rows["waits"] > LONG_SECONDS, "optype"].unique():
        own = rows[rows["optype"] == kind]
        for scope in SCOPES:
            at = own[_held(own, COLUMNS_OF[scope])]
            if at.empty:
                continue
            joined = at.groupby(["step", "number", *COLUMNS_OF[scope]]).ngroup().to_numpy()
            members.append(at.index.to_numpy())
            groups.append(joined + number)
            number += int(joined.max()) + 1
            found += _names(str(kind), at[COLUMNS_OF[scope]])
            if scope == JOB:
                break
    nothing = np.zeros(0, np.int64)
    layers = [np.full(len(part), layer) for layer, part in enumerate(members)]
    return Barriers(
        np.concatenate([nothing, *members]),
        np.concatenate([nothing, *groups]),
        np.concatenate([nothing, *layers]),
        tuple(found),
    )


def _held(own: pd.DataFrame, place: list[str]) -> pd.Series[bool]:
    """Return which of these operations a barrier of the workers of one place holds back."""
    latest = own.groupby(["step", "number", *place])["ready"].transform("max")
    passed = own["start_ts"] >= latest - ROUNDING_SECONDS
    seen = own[["waits"]].assign(passed=passed, kept=(latest - own["ready"]).clip(lower=0))
    # By group of workers, over all iterations; the whole job is one group.
    group = own.groupby(place).ngroup() if place else pd.Series(0, own.index)
    means = seen.groupby(group).mean()
    holds = (means["passed"] >= HOLDS) & (means["kept"] > LONG_SECONDS)
    holds &= means["kept"] >= EXPLAINS * means["waits"]
    return group.map(holds) & passed


def _names(kind: str, places: pd.DataFrame) -> list[str]:
    words = {"dp_rank": "data-parallel rank", "stage": "stage"}
    shown = [column for column in places if column in words]
    if not shown:
        return [f"before {kind}, all workers"]
    return [
        f"before {kind}, all of "
        + ", ".join(f"{words[column]} {value}" for column, value in row.items())
        for row in places[shown].drop_duplicates().to_dict("records")
    ]
