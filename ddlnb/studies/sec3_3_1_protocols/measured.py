"""What a message costs by the channel that carries it, measured between two processes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ddlnb.errors import require, require_whole
from ddlnb.launch.emulation.links import Link
from ddlnb.launch.emulation.network import lacking
from ddlnb.launch.ranks import Ranks
from ddlnb.provenance import machine
from ddlnb.studies.sec3_2_architectures import emulated_ranks
from ddlnb.studies.sec3_3_1_protocols.channels import KINDS, TCP
from ddlnb.studies.sec3_3_1_protocols.published import quoted_protocols
from ddlnb.studies.sec3_3_1_protocols.trips import time_trips
from ddlnb.units import KIB, MIB, US, gigabits_per_second, size_in_words

SIZES = (8, KIB, 16 * KIB, 128 * KIB, MIB, 4 * MIB)
TRIP_SECONDS = 0.15  # of one size and round: few trips of a large message, many of a small one


def measure_protocols(
    network: str | Link,
    sizes: Sequence[int] = SIZES,
    *,
    trips: int = 200,
    seconds: float = TRIP_SECONDS,
    rounds: int = 3,
) -> pd.DataFrame:
    """Return the seconds of one message by channel and size, and the cores that it keeps busy.

    ``seconds`` is half of the median round trip of the quickest round, because other programs on
    the cores only add to it; ``slowest_round`` says how much they did. A round has at most
    ``trips`` trips of a size, or as many as ``seconds`` allow. ``busy_cores`` is the CPU time of
    both processes over the time that passed. The channels are those of KINDS, and TCP over the
    emulated network, whose rows are absent where `lacking` says why there can be none.
    """
    require_whole(trips=trips, rounds=rounds)
    require_whole(**{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    require(seconds > 0, f"seconds={seconds!r} must be above 0")
    arguments = (tuple(sizes), trips, seconds)
    found: list[dict[str, object]] = []
    with Ranks(2, imports=(time_trips.__module__,)) as ranks:
        for _ in range(rounds):
            for kind in KINDS:
                name = "TCP, loopback" if kind == TCP else kind
                found += _round(name, ranks, kind, arguments)
    if (shaped := emulated_ranks(2, network, time_trips.__module__)) is not None:
        with shaped:
            for _ in range(rounds):
                found += _round(f"TCP, {network}", shaped, TCP, arguments)
    runs = pd.DataFrame(found)
    cells = runs.groupby(["network", "bytes"], sort=False)["seconds"]
    quickest = runs.loc[cells.idxmin()].assign(slowest_round=cells.max().to_numpy())
    rates = gigabits_per_second(quickest["bytes"] / quickest["seconds"])
    return quickest.assign(gigabits_per_second=rates, machine=machine()).reset_index(drop=True)


def about_the_link(network: str) -> str:
    """Say which link is emulated, or why none is."""
    return lacking() or f"the shaped link is {network}"


def beside_quoted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `measure_protocols` followed by the survey's messages."""
    return pd.concat([rows, quoted_protocols()], ignore_index=True)


def latency_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the microseconds of the smallest message and the Gb/s of the largest, by channel.

    The busy cores are those of the largest message.
    """
    small, large = rows["bytes"].min(), rows["bytes"].max()
    lines = []
    for channel, part in rows.groupby("network", sort=False):
        first = part[part["bytes"] == small].iloc[0]
        last = part[part["bytes"] == large].iloc[0]
        lines.append(
            {
                "channel": channel,
                "source": first["source"],
                "latency (us)": first["seconds"] / US,
                "slowest round (us)": first["slowest_round"] / US,
                f"Gb/s at {size_in_words(large)}": last["gigabits_per_second"],
                "best Gb/s": part["gigabits_per_second"].max(),
                "busy cores": last["busy_cores"],
            }
        )
    return pd.DataFrame(lines).set_index("channel").round(2)


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
