"""Protocols: what a message costs by the channel that carries it (3.3.1).

A channel sends from the caller's memory and receives into memory of its own. Data that goes through
a socket is copied twice, into the kernel and out of it; data in shared memory is copied once, by
the sender, to where the receiver reads it, and the kernel has no part in it. That resembles RDMA,
where a card makes that one copy from machine to machine (survey, section 3.3.1).
"""

from __future__ import annotations

import ctypes.util
import json
import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from ddlnb.emulation.network import lacking
from ddlnb.errors import require, require_whole
from ddlnb.figures.style import (
    NETWORK_COLOURS,
    PALETTE,
    doubling_axis,
    legend,
    say_source,
    styled,
)
from ddlnb.files import PUBLISHED, machine, temporary_folder
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.topology import Link
from ddlnb.results.schema import read_cells
from ddlnb.survey.sec2_message_size import quoted_bandwidth, quoted_fits
from ddlnb.survey.sec3_2_architectures import emulated_ranks
from ddlnb.units import KIB, MIB, US, gigabits_per_second, size_in_words

FACT_COLUMNS = ("id", "section", "protocol", "property", "value", "tag")


def facts() -> pd.DataFrame:
    """Return what the survey says of protocols in words, line by line."""
    return pd.DataFrame(read_cells(PUBLISHED / "protocols.csv", FACT_COLUMNS))


def quoted_protocols() -> pd.DataFrame:
    """Return the survey's messages (A14, A15) by network and protocol, in columns of ours."""
    rows = quoted_bandwidth()
    protocols = facts().query("property == 'network'").set_index("value")["protocol"]
    return rows.assign(network=rows["network"] + ", " + rows["network"].map(protocols))


def survey_table() -> pd.DataFrame:
    """Return the survey's protocols: its word for the latency, and what quoted messages imply.

    Microseconds and Gb/s come from the line through two quoted messages each (`quoted_fits`): they
    are derived, not printed in the survey. RoCE has no measured network.
    """
    said = facts()
    latency = said[said["property"] == "latency"].rename(columns={"value": "latency"})
    networks = said[said["property"] == "network"].rename(columns={"value": "network"})
    table = latency[["protocol", "latency", "tag"]].merge(
        networks[["protocol", "network"]], on="protocol", how="left"
    )
    table["network"] = table["network"].fillna("-")
    units = {"latency_us": "latency (us)", "gigabits_per_second": "bandwidth (Gb/s)"}
    fitted = quoted_fits()[[*units]].rename(columns=units).round(1)
    return table.join(fitted, on="network").set_index(["protocol", "network"])


def rdma_parts(root: Path = Path("/")) -> pd.DataFrame:
    """Return what RDMA and GPUDirect RDMA need, part by part, and whether it is here.

    Nothing is started. ``root`` is where /sys, /dev and /proc are looked for.
    """
    modules, devices = root / "proc/modules", root / "sys/class/infiniband"
    loaded = modules.read_text().split() if modules.exists() else []
    cards = devices.exists() and any(devices.iterdir())
    gpu = (root / "proc/driver/nvidia/version").exists()
    parts = [
        ("a card that speaks InfiniBand or RoCE", "RDMA", cards),
        ("its verbs, open to programs", "RDMA", (root / "dev/infiniband").exists()),
        ("libibverbs", "RDMA", ctypes.util.find_library("ibverbs") is not None),
        ("an NVIDIA GPU and its driver", "GDR", gpu),
        ("nvidia_peermem: the GPU's memory, open to the card", "GDR", "nvidia_peermem" in loaded),
    ]
    return pd.DataFrame(parts, columns=["part", "for", "here"]).set_index("part")


TCP, UNIX = "TCP", "Unix socket"
BELL, POLLED = "shared memory, bell", "shared memory, polled"
KINDS = (TCP, UNIX, BELL, POLLED)
_FLAG_BYTES = 64  # Each counter has a cache line of its own.
_LOOKS = 1000  # at the counter between two looks at the clock


class SocketChannel:
    """One end of a two-way channel between two processes: a connected socket, TCP or Unix."""

    def __init__(self, connected: socket.socket, most_bytes: int):
        self._socket = connected
        self._room = memoryview(bytearray(most_bytes))

    def send(self, data: memoryview) -> None:
        """Send the data: when it is in the kernel, its memory may be written to again."""
        self._socket.sendall(data)

    def receive(self, size: int) -> memoryview:
        """Return the next message, of this size; read it before the next call.

        Raises ConnectionError if the other end has gone.
        """
        left = self._room[:size]
        while left:
            if not (count := self._socket.recv_into(left)):
                raise ConnectionError("the other process closed its socket")
            left = left[count:]
        return self._room[:size]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class SharedMemoryChannel:
    """A slot for each direction in shared memory, and two counters for each: filled and emptied.

    The receiver is woken by a byte through a socket, the bell; without one it polls the counter
    until that changes, and yields its core between two looks. Polling relies on stores becoming
    visible in their order, as they do on x86.
    """

    def __init__(
        self,
        memory: SharedMemory,
        rank: int,
        most_bytes: int,
        bell: socket.socket | None,
        timeout_seconds: float,
    ):
        self._memory, self._bell, self._timeout = memory, bell, timeout_seconds
        start, inside = 4 * _FLAG_BYTES, memory.buf
        assert inside is not None
        self._slots = [inside[start + i * most_bytes :][:most_bytes] for i in range(2)]
        flags = [inside[i * _FLAG_BYTES :][:8].cast("Q") for i in range(4)]
        self._filled, self._emptied = flags[:2], flags[2:]
        self._mine, self._other = rank, 1 - rank
        self._sent = self._received = 0
        self._shown = memoryview(b"")

    def send(self, data: memoryview) -> None:
        """As `SocketChannel.send`; the data is in the other's slot then."""
        self._emptied[self._other][0] = self._received
        self._until(self._emptied[self._mine], self._sent)
        self._slots[self._mine][: len(data)] = data
        self._sent += 1
        self._filled[self._mine][0] = self._sent
        if self._bell is not None:
            self._bell.sendall(b"!")

    def receive(self, size: int) -> memoryview:
        """As `SocketChannel.receive`. Raises TimeoutError, too, if the other end has gone."""
        self._emptied[self._other][0] = self._received
        self._received += 1
        if self._bell is not None and not self._bell.recv(1):
            raise ConnectionError("the other process closed its bell")
        self._until(self._filled[self._other], self._received)
        self._shown = self._slots[self._other][:size]
        return self._shown

    def _until(self, counter: memoryview, value: int) -> None:
        looks, deadline = 0, 0.0
        while counter[0] < value:
            os.sched_yield()
            looks += 1
            if looks % _LOOKS == 0:
                now = time.monotonic()
                deadline = deadline or now + self._timeout
                if now > deadline:
                    raise TimeoutError(f"the other process was silent for {self._timeout} s")

    def close(self) -> None:
        """Close this end; what was received is gone with it."""
        for view in (self._shown, *self._slots, *self._filled, *self._emptied):
            view.release()
        self._memory.close()
        if self._bell is not None:
            self._bell.close()


Channel = SocketChannel | SharedMemoryChannel


def connect(context: RankContext, kind: str, most_bytes: int) -> Channel:
    """Return this rank's end of a channel of this kind between ranks 0 and 1.

    No message may be larger than ``most_bytes``.
    """
    store = context.store()
    if kind in (TCP, UNIX):
        return SocketChannel(_connected(context, store, kind), most_bytes)
    bell = _connected(context, store, UNIX) if kind == BELL else None
    memory = _shared(context, store, 4 * _FLAG_BYTES + 2 * most_bytes)
    return SharedMemoryChannel(memory, context.rank, most_bytes, bell, context.timeout_seconds)


def _connected(context: RankContext, store: Any, kind: str) -> socket.socket:
    connected = socket.socket(socket.AF_INET if kind == TCP else socket.AF_UNIX)
    if context.rank == 0:
        with temporary_folder() as folder, connected as listener:
            listener.settimeout(context.timeout_seconds)
            listener.bind((context.host, 0) if kind == TCP else str(folder / "channel"))
            listener.listen()
            store.set("address", json.dumps(listener.getsockname()))
            connected, _ = listener.accept()
    else:
        address = json.loads(store.get("address"))
        connected.connect(tuple(address) if kind == TCP else address)
    connected.settimeout(context.timeout_seconds)
    if kind == TCP:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _shared(context: RankContext, store: Any, size: int) -> SharedMemory:
    """Return memory that loses its name once both ranks have it, so that nothing stays behind."""
    if context.rank == 0:
        memory = SharedMemory(create=True, size=size)
        try:
            store.set("memory", memory.name)
            store.wait(["memory attached"])
        finally:
            memory.unlink()
    else:
        memory = SharedMemory(name=store.get("memory").decode())
        # Python before 3.13 would remove the memory when this process ends.
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
        store.set("memory attached", "")
    return memory


LEAST_TRIPS = 2


@dataclass(frozen=True)
class Trips:
    """Round trips of one size as one rank saw them; seconds are per message, half a trip."""

    seconds: float  # the median
    mean_seconds: float
    cpu_seconds: float  # mean, of this rank
    count: int


def time_trips(
    context: RankContext, kind: str, sizes: tuple[int, ...], trips: int, seconds: float
) -> dict[int, Trips]:
    """Time round trips of every size over a channel of this kind, after one that warms up.

    Rank 0 asks and decides when it is enough; rank 1 sends every message back. The first and the
    last byte are the number of the trip, 0 in the last one. Raises ConnectionError if one arrives
    torn.
    """
    channel = connect(context, kind, max(sizes))
    try:
        return {size: _trips_of(channel, context.rank, size, trips, seconds) for size in sizes}
    finally:
        channel.close()


def _trips_of(channel: Channel, rank: int, size: int, trips: int, seconds: float) -> Trips:
    message = memoryview(bytearray(size))
    lasted: list[float] = []
    number, until, busy = 1, 0.0, 0.0
    while number:
        start = time.perf_counter()
        if rank == 0:
            number = _next(len(lasted), trips, start > until)
            message[0] = message[-1] = number
            channel.send(message)
            _check(channel.receive(size), number)
        else:
            arrived = channel.receive(size)
            number = arrived[0]
            _check(arrived, number)
            message[0] = message[-1] = number
            channel.send(message)
        lasted.append((time.perf_counter() - start) / 2)
        if len(lasted) == 1:
            until, busy = time.perf_counter() + seconds, time.thread_time()
    counted = len(lasted) - 1
    cpu = (time.thread_time() - busy) / 2 / counted
    return Trips(statistics.median(lasted[1:]), statistics.fmean(lasted[1:]), cpu, counted)


def _next(done: int, trips: int, is_late: bool) -> int:
    """Return the number of the next trip, from 1 to 255, or 0 if it is to be the last."""
    is_last = done >= trips or (is_late and done >= LEAST_TRIPS)
    return 0 if is_last else 1 + done % 255


def _check(arrived: memoryview, number: int) -> None:
    if arrived[0] != number or arrived[-1] != number:
        raise ConnectionError(f"message {number} arrived as {arrived[0]} ... {arrived[-1]}")


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
    size = rows["bytes"].max()
    small = rows[rows["bytes"] == rows["bytes"].min()].set_index("network")
    large = rows[rows["bytes"] == size].set_index("network")
    table = {
        "source": small["source"],
        "latency (us)": small["seconds"] / US,
        "slowest round (us)": small["slowest_round"] / US,
        f"Gb/s at {size_in_words(size)}": large["gigabits_per_second"],
        "best Gb/s": rows.groupby("network", sort=False)["gigabits_per_second"].max(),
        "busy cores": large["busy_cores"],
    }
    return pd.DataFrame(table).rename_axis("channel").round(2)


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


# Of paths that the survey does not have: colours that its networks leave.
OURS = tuple(colour for colour in PALETTE if colour not in NETWORK_COLOURS.values())


@styled
def protocol_times(rows: pd.DataFrame) -> plt.Figure:
    """Microseconds (left) and Gb/s (right) of a message against its size, all logarithmic.

    ``rows`` have the columns network, bytes, seconds, gigabits_per_second and source. Emulated
    paths are dashed; published ones are hollow points, without a line.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    paths = rows.groupby(["network", "source"], sort=False)
    for number, ((network, source), points) in enumerate(paths):
        medium = str(network).partition(",")[0]
        colour = NETWORK_COLOURS.get(medium, OURS[number % len(OURS)])
        look = {
            "color": colour,
            "marker": "D" if source == "published" else "o",
            "markerfacecolor": "white" if source == "published" else colour,
            "linestyle": {"published": "none", "emulated": "--"}.get(source, "-"),
        }
        left.plot(points["bytes"], points["seconds"] / US, **look, label=f"{network} ({source})")
        right.plot(points["bytes"], points["gigabits_per_second"], **look)
    for ax in (left, right):
        ax.set_yscale("log")
        doubling_axis(ax, sorted(rows["bytes"].astype(int).unique()), size_in_words, rotation=45)
        ax.set_xlabel("message size")
    left.set_ylabel("time of a message (us)")
    right.set_ylabel("effective bandwidth (Gb/s)")
    left.set_title("Small messages: the latency of the path")
    right.set_title("Large messages: copies and the wire")
    legend(figure)
    return say_source(figure, rows, "half of the median round trip, quickest round")
