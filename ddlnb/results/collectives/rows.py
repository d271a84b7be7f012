"""The table of measured collectives: one row per size, and how its times and rates belong together.

Sizes and rates are those of nccl-tests (its PERFORMANCE.md): the size is that of the whole
buffer, also where a rank holds only its part of it, and the bus bandwidth is the size over the time
times a factor that makes rates of unlike collectives and numbers of ranks comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import UnknownName
from ddlnb.paths import PUBLISHED
from ddlnb.results.schema import Column, Kind, Rule, Schema
from ddlnb.units import GB, US

if TYPE_CHECKING:
    import pandas as pd

OPEN_ROWS = PUBLISHED / "collectives_upto2nodes.csv"
TEXTS = ("source", "source_url", "block", "collective", "gpu")
COUNTS = ("nodes", "gpus_per_node", "ranks")
WORDS = ("network", "library", "settings")
RATES = ("time_us_out_of_place", "algbw_GBps", "busbw_GBps", "time_us_in_place")
COLUMNS = (*TEXTS, *COUNTS, *WORDS, "size_bytes", "dtype", *RATES, "busbw_in_place_GBps", "notes")
SECONDS = "seconds"

# Of each collective: bus bandwidth over size over time, with n ranks.
_SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
COLLECTIVES = tuple(_SHARES)

_TIMED = Rule(
    lambda rows: rows[[name for name in RATES if name in rows]].isna().all(axis=1),
    f"the row has no time; write a number into one of {', '.join(RATES)}",
)
MEASURED = Schema(
    (
        *(Column(name, Kind.TEXT, optional=True) for name in ("source", "source_url", "block")),
        Column("collective", Kind.NAME, allowed=COLLECTIVES),
        Column("gpu", Kind.TEXT),
        *(Column(name, Kind.COUNT) for name in COUNTS),
        *(Column(name, Kind.TEXT, optional=True) for name in WORDS),
        Column("size_bytes", Kind.POSITIVE),
        *(Column(name, Kind.NOT_NEGATIVE, optional=True) for name in RATES),
        Column("dtype", Kind.TEXT, optional=True),
        Column("notes", Kind.TEXT, optional=True),
    ),
    rules=(
        _TIMED,
        Rule(
            lambda rows: rows["nodes"] * rows["gpus_per_node"] != rows["ranks"],
            "ranks must be nodes times gpus_per_node",
        ),
        Rule(lambda rows: rows["ranks"] < 2, "ranks must be at least 2: one exchanges nothing"),
    ),
    what="table of measured collectives",
)


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over size over time (nccl-tests, PERFORMANCE.md). Raises UnknownName.

    >>> bus_factor("all_reduce", 16), bus_factor("all_gather", 16)
    (1.875, 0.9375)
    """
    if collective not in _SHARES:
        raise UnknownName("collective", collective, COLLECTIVES)
    return _SHARES[collective](ranks)


def bus_factors(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the `bus_factor` of every row."""
    import pandas as pd

    pairs = zip(rows["collective"], rows["ranks"], strict=True)
    return pd.Series([bus_factor(*pair) for pair in pairs], rows.index, dtype=float)


def read_collectives(path: str | Path = OPEN_ROWS) -> pd.DataFrame:
    """Return the measured collectives in a CSV file, with a column ``seconds``.

    The time is that of the out-of-place run; where there is none, it is computed from a rate, and
    where there is neither, it is that of the in-place run. Without a path these are the published
    rows of this edition, of one and two nodes. Raises ResultsError.

    >>> import ddlnb
    >>> rows = ddlnb.read_collectives()
    >>> len(rows), int(rows["nodes"].max())
    (158, 2)
    """
    return with_seconds(MEASURED.read(Path(path)))


def with_seconds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the seconds of one collective, from the first of `RATES` that is there.

    A rate of zero is a rounded one, and says nothing.
    """
    import pandas as pd

    empty = pd.Series(float("nan"), rows.index)
    known = {name: rows[name].where(rows[name] > 0) if name in rows else empty for name in RATES}
    out, algorithm, bus, inside = (known[name] for name in RATES)
    by_algorithm = rows["size_bytes"] / (algorithm * GB)
    by_bus = rows["size_bytes"] * bus_factors(rows) / (bus * GB)
    seconds = (out * US).fillna(by_algorithm).fillna(by_bus).fillna(inside * US)
    return rows.assign(**{SECONDS: seconds})
