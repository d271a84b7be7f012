"""Section 3.3.1: what a message costs by the way it takes, measured here and as published."""

from __future__ import annotations

import csv
import ctypes.util
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError, require, require_whole
from ddlnb.launch.emulation.links import Link
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.paths import PUBLISHED
from ddlnb.provenance import machine
from ddlnb.studies.sec2_message_size import quoted_bandwidth, quoted_fits
from ddlnb.studies.sec3_2_architectures import emulated_ranks
from ddlnb.studies.sec3_3_1_channels import KINDS, TCP, Line, connect
from ddlnb.units import KIB, MIB, US, gigabits_per_second, size_in_words

if TYPE_CHECKING:
    import pandas as pd

SIZES = (8, KIB, 16 * KIB, 128 * KIB, MIB, 4 * MIB)
TRIP_SECONDS = 0.15  # of one size and round: few trips of a large message, many of a small one
LEAST_TRIPS = 2
FACT_COLUMNS = ("id", "section", "protocol", "property", "value", "tag")


@dataclass(frozen=True)
class Trips:
    """Round trips of one size as one rank saw them, per message of the two in each."""

    seconds: float  # median
    mean_seconds: float
    cpu_seconds: float  # mean, of this rank
    count: int


def measure_protocols(
    network: str | Link,
    sizes: Sequence[int] = SIZES,
    *,
    trips: int = 200,
    seconds: float = TRIP_SECONDS,
    rounds: int = 3,
) -> pd.DataFrame:
    """One message by way and size: half of a round trip, and the cores that it keeps busy.

    One row per way and size. ``seconds`` is half of the median round trip of the quickest round,
    for other programs on the cores only add to it; ``slowest_round`` says how much they did. A
    round has at most so many trips of a size, or ``seconds`` of them. ``busy_cores`` is the CPU
    time of both processes over the time that passed. The ways are those of `ddlnb.studies.sec3_3_1_channels`, and TCP
    over the emulated network, whose rows are absent where `lacking` says that there can be none.
    """
    import pandas as pd

    require_whole(trips=trips, rounds=rounds)
    require_whole(**{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    require(seconds > 0, f"seconds={seconds!r} must be above 0")
    arguments = (tuple(sizes), trips, seconds)
    found: list[dict[str, object]] = []
    with Ranks(2) as ranks:
        for _ in range(rounds):
            for kind in KINDS:
                name = "TCP, loopback" if kind == TCP else kind
                found += _round(name, ranks, kind, arguments)
    if (shaped := emulated_ranks(2, network)) is not None:
        with shaped:
            for _ in range(rounds):
                found += _round(f"TCP, {network}", shaped, TCP, arguments)
    runs = pd.DataFrame(found)
    cells = runs.groupby(["network", "bytes"], sort=False)["seconds"]
    quickest = runs.loc[cells.idxmin()].assign(slowest_round=cells.max().to_numpy())
    rates = gigabits_per_second(quickest["bytes"] / quickest["seconds"])
    return quickest.assign(gigabits_per_second=rates, machine=machine()).reset_index(drop=True)


def quoted_protocols() -> pd.DataFrame:
    """The survey's messages (A14, A15) by network and protocol, in columns of ours."""
    rows = quoted_bandwidth()
    carried = {fact["value"]: fact["protocol"] for fact in facts() if fact["property"] == "network"}
    return rows.assign(network=[f"{name}, {carried[name]}" for name in rows["network"]])


def facts(path: Path = PUBLISHED / "protocols.csv") -> list[dict[str, str]]:
    """What the survey says of protocols in words, line by line. Raises ResultsError."""
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    for number, row in enumerate(found, start=2):
        if tuple(row) != FACT_COLUMNS or None in row.values():
            raise ResultsError(
                f"{path.name} line {number} is not a fact; write {','.join(FACT_COLUMNS)}"
            )
    return found


def survey_table() -> pd.DataFrame:
    """The survey's protocols: latency in its word, and what its quoted messages make of it.

    ``latency_us`` and ``gigabits_per_second`` come from the line through two quoted messages each
    (`quoted_fits`): they are derived, not printed there. RoCE has no measured network.
    """
    import pandas as pd

    said = pd.DataFrame(facts())
    latency = said[said["property"] == "latency"]
    networks = said[said["property"] == "network"].rename(columns={"value": "network"})
    table = latency[["protocol", "value", "tag"]].rename(columns={"value": "latency"})
    table = table.merge(networks[["protocol", "network"]], on="protocol", how="left")
    table["network"] = table["network"].fillna("-")
    fitted = quoted_fits()[["latency_us", "gigabits_per_second"]]
    return table.join(fitted, on="network").set_index(["protocol", "network"])


def latency_table(rows: pd.DataFrame) -> pd.DataFrame:
    """By way: microseconds of the smallest message, Gb/s of the largest, and best Gb/s of any.

    ``busy_cores`` is that of the largest message.
    """
    import pandas as pd

    small, large = rows["bytes"].min(), rows["bytes"].max()
    lines = []
    for way, part in rows.groupby("network", sort=False):
        first = part[part["bytes"] == small].iloc[0]
        last = part[part["bytes"] == large].iloc[0]
        lines.append(
            {
                "way": way,
                "source": first["source"],
                "latency_us": first["seconds"] / US,
                "slowest_round_us": first["slowest_round"] / US,
                f"Gb/s at {size_in_words(large)}": last["gigabits_per_second"],
                "best Gb/s": part["gigabits_per_second"].max(),
                "busy_cores": last["busy_cores"],
            }
        )
    return pd.DataFrame(lines).set_index("way")


def rdma_parts(root: Path = Path("/")) -> pd.DataFrame:
    """What RDMA and GPUDirect RDMA need, part by part, and whether it is there; nothing is started.

    ``root`` is where /sys, /dev and /proc are looked for.
    """
    import pandas as pd

    modules = root / "proc/modules"
    loaded = {line.split()[0] for line in _lines(modules)}
    devices = root / "sys/class/infiniband"
    cards = bool(devices.exists() and any(devices.iterdir()))
    gpu = (root / "proc/driver/nvidia/version").exists()
    parts = [
        ("a card that speaks InfiniBand or RoCE", "RDMA", cards),
        ("its verbs, open to programs", "RDMA", (root / "dev/infiniband").exists()),
        ("libibverbs", "RDMA", ctypes.util.find_library("ibverbs") is not None),
        ("an NVIDIA GPU and its driver", "GDR", gpu),
        ("nvidia_peermem: the GPU's memory, open to the card", "GDR", "nvidia_peermem" in loaded),
    ]
    return pd.DataFrame(parts, columns=["part", "for", "here"]).set_index("part")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _round(
    name: str, ranks: Ranks, kind: str, arguments: tuple[tuple[int, ...], int, float]
) -> list[dict[str, object]]:
    asked, answered = ranks.run(time_trips, kind, *arguments, count=2)
    return [
        {
            "network": name,
            "bytes": size,
            "seconds": trips.seconds,
            "busy_cores": (trips.cpu_seconds + answered[size].cpu_seconds) / trips.mean_seconds,
            "trips": trips.count,
            "source": ranks.site.source,
        }
        for size, trips in asked.items()
    ]


def time_trips(
    context: RankContext, kind: str, sizes: tuple[int, ...], trips: int, seconds: float
) -> dict[int, Trips]:
    """The round trips of every size over a line of this kind, after one that warms up.

    Rank 0 asks and decides when it is enough; rank 1 sends every message back. First and last byte
    are the number of the trip, 0 in the last one. Raises ConnectionError if one arrives torn.
    """
    line = connect(context, kind, max(sizes))
    try:
        return {size: _trips_of(line, context.rank, size, trips, seconds) for size in sizes}
    finally:
        line.close()


def _trips_of(line: Line, rank: int, size: int, trips: int, seconds: float) -> Trips:
    message = memoryview(bytearray(size))
    lasted: list[float] = []
    number, until, busy = 1, 0.0, 0.0
    while number:
        start = time.perf_counter()
        if rank == 0:
            number = _next(len(lasted), trips, start > until)
            message[0] = message[-1] = number
            line.send(message)
            _check(line.receive(size), number)
        else:
            arrived = line.receive(size)
            number = arrived[0]
            _check(arrived, number)
            message[0] = message[-1] = number
            line.send(message)
        lasted.append((time.perf_counter() - start) / 2)
        if len(lasted) == 1:
            until, busy = time.perf_counter() + seconds, _cpu_seconds()
    counted = len(lasted) - 1
    cpu = (_cpu_seconds() - busy) / 2 / counted
    return Trips(statistics.median(lasted[1:]), statistics.fmean(lasted[1:]), cpu, counted)


def _next(done: int, trips: int, is_late: bool) -> int:
    """The number of the trip that follows so many, from 1 to 255; 0 if it is to be the last."""
    is_last = done >= trips or (is_late and done >= LEAST_TRIPS)
    return 0 if is_last else 1 + done % 255


def _check(arrived: memoryview, number: int) -> None:
    if arrived[0] != number or arrived[-1] != number:
        raise ConnectionError(f"message {number} arrived as {arrived[0]} ... {arrived[-1]}")


def _cpu_seconds() -> float:
    """Of this thread, in the program and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime
