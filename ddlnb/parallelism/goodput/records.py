"""Published failures and stragglers of large training jobs, as rates that can be compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError
from ddlnb.paths import PUBLISHED
from ddlnb.results.schema import Column, Kind, Schema

if TYPE_CHECKING:
    import pandas as pd

PATH = PUBLISHED / "failures_stragglers.csv"
HOUR, DAY = 3600.0, 86400.0
MONTH_DAYS = 30.4
GPUS_PER_NODE = 8  # of the clusters of the table
SCHEMA = Schema(
    (
        Column("source", Kind.NAME),
        Column("source_url", Kind.NAME),
        Column("quantity", Kind.NAME),
        Column("value", Kind.POSITIVE),
        Column("unit", Kind.NAME),
        Column("scale", Kind.TEXT),
        Column("notes", Kind.TEXT),
    )
)


@dataclass(frozen=True)
class FailureRecord:
    """How often a job of some GPUs was interrupted: seconds between failures, and how it is known.

    ``count`` is the number of failures behind it, None where the source gives a rate alone.
    ``is_projected`` marks what the source extrapolated: it tests a model, and is not fitted.
    """

    source: str
    gpus: int
    seconds_between: float
    count: int | None
    is_projected: bool = False

    @property
    def per_gpu_second(self) -> float:
        """Failures per GPU and second."""
        return 1.0 / (self.seconds_between * self.gpus)


def failure_records() -> list[FailureRecord]:
    """Return the published rates of failures, the interruptions of one job added up."""
    rows = published_failures()
    interruptions = rows[rows["quantity"].str.startswith("unexpected interruptions")]
    count = int(interruptions["value"].sum())
    days = _number(interruptions["unit"].iloc[0], r"in (\d+) days")
    llama = FailureRecord("Llama 3", 16384, days * DAY / count, count)
    rsc = "Revisiting Reliability"
    return [
        llama,
        *(
            FailureRecord(f"{rsc}, {name}", gpus, 1000 * DAY / (rate * gpus / GPUS_PER_NODE), None)
            for name, gpus, rate in (
                ("RSC-1", 16384, _value(rows, "node failure rate RSC-1")),
                ("RSC-2", 8192, _value(rows, "node failure rate RSC-2")),
            )
        ),
        *(
            FailureRecord(
                f"{rsc}, job of {gpus} GPUs",
                gpus,
                _value(rows, f"MTTF of a {gpus}-GPU job") * HOUR,
                None,
                is_projected=gpus > 1024,
            )
            for gpus in (1024, 16384, 131072)
        ),
        FailureRecord(
            "OPT-175B",
            992,
            2 * MONTH_DAYS * DAY / _value(rows, "restarts by hardware failures"),
            int(_value(rows, "restarts by hardware failures")),
        ),
        FailureRecord("BLOOM", 384, 7 * DAY / _value(rows, "GPU failures"), None),
        FailureRecord("Acme", 1000, _value(rows, "interval between failures") * DAY, None),
    ]


def hardware_share() -> float:
    """Return the share of Llama 3's interruptions that took a node out: not software, not unknown.

    Planned and unplanned maintenance take a node out as well.
    """
    rows = published_failures()
    rows = rows[rows["quantity"].str.startswith("unexpected interruptions")]
    stays = rows["notes"].isin(["Dependency", "Unknown"])
    return float(rows.loc[~stays, "value"].sum() / rows["value"].sum())


@cache
def published_failures() -> pd.DataFrame:
    """Return the table as published; see data/published/README.md for its sources."""
    return SCHEMA.read(PATH)


def _value(rows: pd.DataFrame, quantity: str) -> float:
    found = rows.loc[rows["quantity"] == quantity, "value"]
    if len(found) != 1:
        raise ResultsError(f"{PATH} has {len(found)} rows of {quantity!r}; it must have one")
    return float(found.iloc[0])


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise ResultsError(f"{PATH} says {text!r}, without the number of {pattern!r}")
    return float(found.group(1))
