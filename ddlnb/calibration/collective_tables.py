"""Measured collectives, and those whose times are asked for: the columns of their tables.

Sizes and rates are those of nccl-tests (its PERFORMANCE.md): the size is that of the whole
buffer, also where a rank holds only its part of it, and the bus bandwidth is the size over the time
times a factor that makes rates of unlike collectives and numbers of ranks comparable.

A table of questions has the same columns without times. Its cells may be empty where the others
imply them. What cannot be told from a row is refused, with the row, its value, the rule and the way
out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ddlnb.errors import InputError, look_up
from ddlnb.files import PUBLISHED
from ddlnb.results.schema import Column, Kind, Rule, Schema, read_cells
from ddlnb.units import BITS_PER_BYTE, GB, MIB, US

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
        Column("nvlink_domain", Kind.NUMBER, optional=True),
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
    return look_up("collective", collective, _SHARES)(ranks)


def bus_factors(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the `bus_factor` of every row."""
    pairs = zip(rows["collective"], rows["ranks"], strict=True)
    return pd.Series([bus_factor(*pair) for pair in pairs], rows.index, dtype=float)


def read_collectives(path: str | Path = OPEN_ROWS) -> pd.DataFrame:
    """Return the measured collectives in a CSV file, with a column ``seconds``.

    The time is that of the out-of-place run; where there is none, it is computed from a rate, and
    where there is neither, it is that of the in-place run. Without a path these are the published
    rows of this edition, of one and two nodes. Raises ResultsError.

    >>> import ddlnb
    >>> rows = ddlnb.results.read_collectives()
    >>> len(rows), int(rows["nodes"].max())
    (158, 2)
    """
    return with_seconds(MEASURED.read(Path(path)))


def with_seconds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the seconds of one collective, from the first of `RATES` that is there.

    A rate of zero is a rounded one, and says nothing.
    """
    empty = pd.Series(float("nan"), rows.index)
    known = {name: rows[name].where(rows[name] > 0) if name in rows else empty for name in RATES}
    out, algorithm, bus, inside = (known[name] for name in RATES)
    by_algorithm = rows["size_bytes"] / (algorithm * GB)
    by_bus = rows["size_bytes"] * bus_factors(rows) / (bus * GB)
    seconds = (out * US).fillna(by_algorithm).fillna(by_bus).fillna(inside * US)
    return rows.assign(**{SECONDS: seconds})


OLD_NCCL = ("nccl issue 209", "nccl issue 398")  # versions 2.4, which send much along rings
UNSTATED_SIZE = 128 * MIB  # of a "large" message, where a source gives no number
OSU_SIZES = [2**power for power in range(2, 21)]  # of every doubling, as others have them


def read_published() -> pd.DataFrame:
    """Return all measured collectives of data/published, as `read_collectives`, of any network.

    Beside nccl-tests' logs these are bus bandwidths that large messages got over TCP, as seconds at
    the largest size that is named, and all-reduces of MPI over 10GbE.
    """
    logs = [read_collectives(OPEN_ROWS), read_collectives(PUBLISHED / "collectives_4nodes.csv")]
    rows = pd.concat([*logs, _read_tcp(), _read_osu()], ignore_index=True)
    return rows.assign(source_url=rows["source_url"].fillna(rows["source"]))


def _read_tcp() -> pd.DataFrame:
    """Return what NCCL gets of a TCP link: the middle of the bus bandwidths that are named."""
    rows = pd.read_csv(PUBLISHED / "effective_bandwidth_tcp.csv", comment="#")
    ends = rows[["busbw_gbps_low", "busbw_gbps_high"]].mean(axis=1)
    counts = rows["nodes"].astype(str) + "x" + rows["gpus_per_node"].astype(str)
    stated = rows["min_message"].str.extract(r"(\d+)Mi?B?$")[0].astype(float)
    table = rows.assign(
        block=rows["source"] + " " + counts,
        network="TCP " + rows["nominal_gbps"].astype(str) + " Gb/s per node",
        settings=["Ring" if source in OLD_NCCL else "" for source in rows["source"]],
        size_bytes=stated.mul(MIB).fillna(UNSTATED_SIZE),
        busbw_GBps=rows["busbw_gbps_mid"].fillna(ends) / BITS_PER_BYTE,
    )
    return _of_all_reduces(table)


def _read_osu() -> pd.DataFrame:
    """Return all-reduces of OSU's benchmark, with MPI, a rank and a 10GbE port on each node."""
    rows = pd.read_csv(PUBLISHED / "bcaffe_osu_allreduce_10gbe.csv", comment="#")
    facts = {
        "source": "B-Caffe, OSU's benchmark",
        "gpu": "none: memory of the host",
        "network": "TCP 10 Gb/s per node",
        "library": "MPI",
        "gpus_per_node": 1,
    }
    names = {"bytes": "size_bytes", "latency_us": "time_us_out_of_place"}
    table = rows[rows["bytes"].isin(OSU_SIZES)].rename(columns=names)
    return _of_all_reduces(
        table.assign(**facts, block="bcaffe-" + table["nodes"].astype(str) + "n")
    )


def _of_all_reduces(table: pd.DataFrame) -> pd.DataFrame:
    table = table.assign(collective="all_reduce", ranks=table["nodes"] * table["gpus_per_node"])
    return with_seconds(table[[name for name in COLUMNS if name in table]])


USUAL_GPUS = 8  # of a node, where a row has only its number of ranks or of nodes
NEEDED = ("collective", "size_bytes")
_ALIASES = {re.sub("_", "", name): name for name in COLLECTIVES} | {
    "bcast": "broadcast",
    "sendreceive": "sendrecv",
}


def read_questions(path: str | Path) -> pd.DataFrame:
    """Return the table in a CSV file, every cell as its text; "-" is the standard input.

    Raises ResultsError for a file that is no table.
    """
    return pd.DataFrame(read_cells(path, NEEDED), dtype=str)


def completed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with numbers as numbers, and with nodes, GPUs per node and ranks in each.

    Names of collectives may be written otherwise ("AllReduce"). Where only one of the three counts
    is there, nodes have eight GPUs; ranks over nodes counts before GPUs per node, some of which
    may idle. Raises InputError that names the row.
    """
    missing = [name for name in NEEDED if name not in table]
    if missing or not any(name in table for name in ("nodes", "ranks")):
        raise InputError(
            f"the table lacks the columns {', '.join(missing or ['nodes'])}; it needs "
            f"{', '.join(NEEDED)} and nodes or ranks"
        )
    rows = [_completed(row, n) for n, row in enumerate(table.to_dict("records"), start=1)]
    return pd.DataFrame(rows, index=table.index)


def _completed(row: dict[str, object], number: int) -> dict[str, object]:
    where = f"row {number} of the table"
    name = _ALIASES.get(re.sub(r"[^a-z]", "", str(row["collective"]).casefold()))
    if name is None:
        raise InputError(
            f"{where} has the collective {row['collective']!r}; write one of "
            f"{', '.join(COLLECTIVES)}"
        )
    size = _number(row, "size_bytes", where)
    if size is None:
        raise InputError(f"{where} has no size_bytes; write the number of bytes of the buffer")
    nodes, each, ranks = (_number(row, count, where, whole=True) for count in COUNTS)
    if nodes is None and ranks is None:
        raise InputError(f"{where} has neither nodes nor ranks; write one of them")
    if nodes is None:
        assert ranks is not None
        nodes = math.ceil(ranks / min(ranks, each or USUAL_GPUS))
    ranks = ranks or nodes * (each or USUAL_GPUS)
    if ranks < 2:
        raise InputError(f"{where} has 1 rank, which exchanges nothing; remove it")
    if ranks % nodes:
        raise InputError(
            f"{where} has {ranks:g} ranks on {nodes:g} nodes; a node needs the same number of "
            "ranks as any other: write such counts"
        )
    counts = {"nodes": int(nodes), "gpus_per_node": int(ranks // nodes), "ranks": int(ranks)}
    return {**row, "collective": name, "size_bytes": size, **counts}


def _number(row: dict[str, object], column: str, where: str, whole: bool = False) -> float | None:
    """Return the positive number in a cell; None if the cell is empty. Raises InputError."""
    text = str(row.get(column, "")).strip()
    if text.casefold() in ("", "nan", "none"):
        return None
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or (whole and value % 1):
        kind = "whole number" if whole else "number"
        raise InputError(f"{where} has {column} {text!r}; write a positive {kind}, or leave it out")
    return value
