"""The table of a job: one row per operation, read from CSV and checked, and the kinds it may have.

Names and groups are those of Megatron-LM, as in the traces published with "Understanding
Stragglers in Large Model Training Using What-if Analysis" (arXiv 2505.05713, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.reading import read_bytes, reading
from ddlnb.units import counted

COMPUTE, POINT_TO_POINT, COLLECTIVE, OTHER = "compute", "point-to-point", "collective", "other"
# Who takes part in a collective: workers that share all but one coordinate, or everyone.
DATA, TENSOR, PIPELINE, JOB = "data", "tensor", "pipeline", "job"


@dataclass(frozen=True)
class OperationKind:
    """``scopes`` are the groups that the kind may synchronise, the widest first.

    Of several, the first that agrees with the trace holds: nobody leaves a collective before the
    last one has come.
    """

    name: str
    family: str
    scopes: tuple[str, ...] = ()


# Collectives as a profiler names them; ``mc`` then numbers the groups of ranks.
BY_PROFILER = (
    *("all_reduce", "all_gather", "reduce_scatter", "alltoall", "dispatch", "combine"),
    *("broadcast", "barrier", "sendrecv", "reduce", "gather", "scatter", "other"),
)
KINDS = {
    kind.name: kind
    for kind in (
        OperationKind("forward-compute", COMPUTE),
        OperationKind("backward-compute", COMPUTE),
        OperationKind("forward-send", POINT_TO_POINT),
        OperationKind("forward-recv", POINT_TO_POINT),
        OperationKind("backward-send", POINT_TO_POINT),
        OperationKind("backward-recv", POINT_TO_POINT),
        OperationKind("params-all-gather", COLLECTIVE, (DATA,)),
        OperationKind("params-sync", COLLECTIVE, (DATA,)),
        OperationKind("grads-reduce-scatter", COLLECTIVE, (DATA,)),
        OperationKind("grads-all-reduce", COLLECTIVE, (DATA,)),
        OperationKind("grads-sync", COLLECTIVE, (DATA,)),
        OperationKind("layernorm-grads-all-reduce", COLLECTIVE, (TENSOR,)),
        OperationKind("embedding-grads-all-reduce", COLLECTIVE, (PIPELINE,)),
        OperationKind("optimizer-clip-main-grad", COLLECTIVE, (JOB, PIPELINE, DATA)),
        OperationKind("optimizer", OTHER),
        OperationKind("gc", OTHER),
        OperationKind("compute", COMPUTE),
        *(OperationKind(name, COLLECTIVE, (DATA,)) for name in BY_PROFILER),
    )
}
# A message is a send and the receive of the same number on the next stage in this direction.
MESSAGES = (("forward-send", "forward-recv", 1), ("backward-send", "backward-recv", -1))


def family_of(name: str) -> str:
    """Return the family of a kind by its name; a kind that nobody knows is OTHER."""
    return KINDS[name].family if name in KINDS else OTHER


NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
OPTIONAL = {"rank": -1, "seq_id": -1, "mc": 0, "mb_id": -1}  # and what stands for "not given"
MOST_BYTES = 2 * 2**30  # of the uncompressed file: some 30 million operations


@dataclass(frozen=True)
class JobTrace:
    """The operations of a job, ``rows``, in order of step, worker and start.

    Columns are those of the file and ``end_ts``, ``worker`` (a number for each rank), ``lane``
    (which of the ranks of its stage and data-parallel rank, from 0) and ``number`` (the how
    manieth of its kind on its worker in this step). Times are seconds from the start of the step.
    ``clocks_set_seconds`` is by how much a worker's clock was set at most.
    """

    name: str
    rows: pd.DataFrame
    clocks_set_seconds: float = 0.0

    @cached_property
    def family(self) -> pd.Series[str]:
        """Return the family of every operation."""
        return self.rows["optype"].map(family_of)

    @property
    def data_ranks(self) -> int:
        """Return the number of data-parallel ranks."""
        return int(self.rows["dp_rank"].nunique())

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return int(self.rows["stage"].max()) + 1

    @property
    def chunks(self) -> int:
        """Return the number of model chunks on a stage."""
        return int(self.rows["mc"].max()) + 1

    @property
    def workers(self) -> int:
        """Return the number of ranks that were recorded."""
        return int(self.rows["worker"].nunique())

    @property
    def steps(self) -> list[int]:
        """Return the numbers of the iterations that were recorded."""
        return [int(step) for step in self.rows["step"].unique()]

    @property
    def unknown_kinds(self) -> dict[str, int]:
        """Return how many operations there are of each kind that we do not know."""
        counts = self.rows["optype"].value_counts()
        return {str(name): int(count) for name, count in counts.items() if name not in KINDS}

    def __repr__(self) -> str:
        return (
            f"JobTrace({self.name!r}, {counted(len(self.rows), 'operation')}, "
            f"{counted(len(self.steps), 'iteration')}, "
            f"{counted(self.data_ranks, 'data-parallel rank')} x {counted(self.stages, 'stage')}"
            + (f" x {self.chunks} chunks)" if self.chunks > 1 else ")")
        )


def read_job(path: str | Path) -> JobTrace:
    """Return the job of a CSV file, which may be compressed (.gz).

    It has the columns dp_rank, stage, step, optype, start_ts and duration (seconds), and may have
    rank, seq_id, mc (the model chunk of an interleaved pipeline) and mb_id (the micro batch).
    Raises InputError for a file that cannot be read, lacks a column or has impossible values.
    """
    path = Path(path)
    content = read_bytes(path, MOST_BYTES, "cut it to fewer iterations, or check the path")
    with reading(f"job trace {str(path)!r}"):
        rows = pd.read_csv(BytesIO(content))
        del content
        return job_of(rows, path.name.removesuffix(".gz").removesuffix(".csv"))


def job_of(rows: pd.DataFrame, name: str) -> JobTrace:
    """Return the job of these rows, checked and put in order. Raises InputError."""
    lacking = [column for column in NEEDED if column not in rows]
    require(
        not lacking,
        f"job trace {name!r} lacks the columns {', '.join(lacking)}; it has "
        f"{', '.join(map(str, rows.columns))}, and one row per operation needs {', '.join(NEEDED)}",
    )
    require(len(rows) > 0, f"job trace {name!r} has no operations")
    kept = rows[[*NEEDED, *(column for column in OPTIONAL if column in rows)]].copy()
    for column, missing in OPTIONAL.items():
        kept[column] = kept[column].fillna(missing) if column in kept else missing
    for column in kept.columns.drop("optype"):
        _require_numbers(kept, column, name)
    kept["mc"] = kept["mc"].clip(lower=0)
    for column in ("dp_rank", "stage", "duration"):
        wrong = kept[column] < 0
        require(not wrong.any(), _where(name, kept, wrong, column, "must be 0 or more"))
    require(
        kept["optype"].map(lambda kind: isinstance(kind, str)).all(),
        f"job trace {name!r} has operations without an optype; remove them",
    )
    twice = kept.duplicated([*NEEDED[:5], "rank", "mb_id", "seq_id"])
    return JobTrace(name, ordered(kept[~twice]))


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the operations in order, with worker, lane, number, end_ts, and times of steps."""
    place = ["dp_rank", "stage", "rank"]
    rows = rows.assign(worker=rows.groupby(place, sort=True).ngroup())
    lanes = rows[[*place, "worker"]].drop_duplicates().sort_values(place)
    lane_of = lanes.assign(lane=lanes.groupby(["dp_rank", "stage"]).cumcount())
    rows["lane"] = rows["worker"].map(lane_of.set_index("worker")["lane"])
    rows["end_ts"] = rows["start_ts"] + rows["duration"]
    rows = rows.sort_values(["step", "worker", "start_ts", "end_ts"], kind="stable")
    rows["number"] = _numbers(rows)
    return from_zero(rows).reset_index(drop=True)


def from_zero(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with times from the start of their step."""
    zero = rows.groupby("step")["start_ts"].transform("min")
    return rows.assign(start_ts=rows["start_ts"] - zero, end_ts=rows["end_ts"] - zero)


def _numbers(rows: pd.DataFrame) -> pd.Series[int]:
    """Return the file's own numbers of operations if it has them, else the order of starts."""
    of_a_kind = ["step", "worker", "optype", "mc"]
    given = rows["seq_id"] >= 0
    if given.all() and not rows.duplicated([*of_a_kind, "seq_id"]).any():
        return rows["seq_id"] - rows.groupby(["step", "optype"])["seq_id"].transform("min")
    return rows.groupby(of_a_kind).cumcount()


def _require_numbers(rows: pd.DataFrame, column: str, name: str) -> None:
    """Make the column one of numbers, in place. Raises InputError if one of them is none."""
    numbers = pd.to_numeric(rows[column], errors="coerce")
    wrong = ~np.isfinite(numbers)
    require(not wrong.any(), _where(name, rows, wrong, column, "must be a finite number"))
    if column not in ("start_ts", "duration"):
        wrong = numbers != numbers.round()
        require(not wrong.any(), _where(name, rows, wrong, column, "must be a whole number"))
        numbers = numbers.astype(np.int64)
    rows[column] = numbers


def _where(name: str, rows: pd.DataFrame, wrong: pd.Series[bool], column: str, rule: str) -> str:
    if not wrong.any():
        return ""
    line = int(wrong.to_numpy().argmax())
    value = rows[column].iloc[line]
    return f"job trace {name!r}: {column} {value} of operation {line + 1} {rule}"
