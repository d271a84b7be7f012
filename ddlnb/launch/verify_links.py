"""Emulated links, verified before use: what plain sockets carry, against what was asked."""

from __future__ import annotations

import socket
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddlnb.errors import DdlnbError
from ddlnb.launch.emulation.links import Link
from ddlnb.launch.emulation.network import EmulatedNetwork
from ddlnb.launch.rank import RankContext

if TYPE_CHECKING:
    import pandas as pd

Run = Callable[..., list]  # as `Ranks.run`: calls a function on every rank

PAYLOAD_SHARE = 1448 / 1538  # of a full Ethernet frame on the wire, with its preamble and gap
BULK_SECONDS, LEAST_BULK, MOST_BULK = 0.5, 1 << 18, 1 << 26
ROUND_TRIPS = 20
ATTEMPTS = 3  # before links are refused: a moment of other work on the machine must not decide
UNUSABLE, DOUBTFUL = 0.3, 0.1  # relative difference of the bandwidth
DOUBTFUL_TRIP, TIMER_SECONDS = 0.25, 200e-6  # of the round trip; what timers may add on their own


def verify(
    run: Run, network: EmulatedNetwork, links: Sequence[Link], ranks_per_node: int = 1
) -> pd.DataFrame:
    """Return what every node's link to the next one carries, all at once, as a ring does.

    One row per node, in the seconds of the slowed network: ``asked_bandwidth`` of the payload in
    bytes per second, the ``bandwidth`` measured, ``asked_round_trip`` in seconds and the
    ``round_trip`` measured (median), ``late`` the mean lateness of the switch's packets. Warns of
    doubtful links; raises DdlnbError if a bandwidth is off by more than 30 %, so that no run is
    labelled with a network it did not have. Links that lose packets have no bandwidth to verify,
    nor has a single node: the table is empty then.
    """
    import pandas as pd

    if len(links) < 2 or any(link.loss for link in links):
        return pd.DataFrame()
    for _ in range(ATTEMPTS):
        found = run(_measure, links, ranks_per_node)[::ranks_per_node]
        table = _table(links, found, network.statistics()["late"])
        if _off(table).max() <= UNUSABLE:
            break
    _judge(table)
    return table


def _off(table: pd.DataFrame) -> pd.Series:
    return (table["bandwidth"] / table["asked_bandwidth"] - 1).abs()


def _table(
    links: Sequence[Link], found: Sequence[tuple[float, float]], late: float
) -> pd.DataFrame:
    """Return one row per node of what was asked and what was found."""
    import pandas as pd

    following = [*links[1:], links[0]]
    return pd.DataFrame(
        {
            "node": node,
            "link": str(link),
            "asked_bandwidth": PAYLOAD_SHARE * min(link.bandwidth, after.bandwidth),
            "bandwidth": bandwidth,
            "asked_round_trip": link.latency + after.latency,
            "round_trip": round_trip,
            "late": late,
        }
        for node, (link, after, (bandwidth, round_trip)) in enumerate(
            zip(links, following, found, strict=True)
        )
    )


def _judge(table: pd.DataFrame) -> None:
    off = _off(table)
    late = table["round_trip"] - table["asked_round_trip"]
    slow = late > DOUBTFUL_TRIP * table["asked_round_trip"] + TIMER_SECONDS
    worst = table.loc[off.idxmax()]
    if off.max() > UNUSABLE:
        raise DdlnbError(
            f"the emulated network is not the one asked for: node {worst['node']} was to have "
            f"{_rate(worst['asked_bandwidth'])} and has {_rate(worst['bandwidth'])}; this machine "
            f"is too slow or too busy for it, so take a smaller scale or fewer nodes, or try again"
        )
    doubts = []
    if off.max() > DOUBTFUL:
        doubts.append(
            f"node {worst['node']} was to have {_rate(worst['asked_bandwidth'])} and has "
            f"{_rate(worst['bandwidth'])}"
        )
    if slow.any():
        worst = table.loc[late.idxmax()]
        doubts.append(
            f"{slow.sum()} of {len(table)} round trips are long, the worst "
            f"{1e3 * worst['round_trip']:.3g} ms instead of "
            f"{1e3 * worst['asked_round_trip']:.3g} ms"
        )
    if doubts:
        warnings.warn(f"emulated network: {'; '.join(doubts)}", stacklevel=4)


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e6:.3g} MB/s"


def _measure(
    context: RankContext, links: Sequence[Link], ranks_per_node: int
) -> tuple[float, float]:
    """Return (bytes per second, seconds of a round trip) to the first rank of the next node."""
    if context.rank % ranks_per_node:
        return 0.0, 0.0
    store, nodes = context.store(), len(links)
    node = context.rank // ranks_per_node
    with socket.create_server((context.host, 0)) as listener:
        listener.settimeout(context.timeout_seconds)
        store.set(f"node {node}", f"{context.host} {listener.getsockname()[1]}")
        host, port = store.get(f"node {(node + 1) % nodes}").decode().split()
        answering = threading.Thread(target=_answer, args=(listener,), name="answering")
        answering.start()
        with socket.create_connection((host, int(port)), context.timeout_seconds) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            round_trip = statistics.median(_trip(line) for _ in range(ROUND_TRIPS))
            store.add("tripped", 1)
            while store.add("tripped", 0) < nodes:  # all send at once
                time.sleep(0.002)
            slower = min(links[node].bandwidth, links[(node + 1) % nodes].bandwidth)
            size = int(BULK_SECONDS * slower)
            rate = _bulk(line, max(LEAST_BULK, min(MOST_BULK, size)))
            line.shutdown(socket.SHUT_WR)
            answering.join()
    return rate, round_trip


def _trip(line: socket.socket) -> float:
    start = time.perf_counter()
    line.sendall(b"?")
    line.recv(1)
    return time.perf_counter() - start


def _bulk(line: socket.socket, size: int) -> float:
    """Return bytes per second by the receiver's clock, over the second half of the bytes."""
    line.sendall(b"!" + size.to_bytes(8, "big") + bytes(size))
    answer = b""
    while len(answer) < 8 and (more := line.recv(8 - len(answer))):
        answer += more
    return size / 2 / (int.from_bytes(answer, "big") / 1e9)


def _answer(listener: socket.socket) -> None:
    """Echo single bytes; receive bulk and answer with the nanoseconds of its second half."""
    line, _ = listener.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while word := line.recv(1):
            if word == b"?":
                line.sendall(b".")
                continue
            size = int.from_bytes(_exactly(line, 8), "big")
            _exactly(line, size - size // 2)
            start = time.perf_counter_ns()
            _exactly(line, size // 2)
            line.sendall((time.perf_counter_ns() - start).to_bytes(8, "big"))


def _exactly(line: socket.socket, size: int) -> bytes:
    """Return the next bytes; more than 8 are counted and thrown away."""
    kept, left = b"", size
    while left:
        data = line.recv(min(left, 1 << 18))
        if not data:
            raise ConnectionError("the peer went away")
        left -= len(data)
        kept = kept + data if size <= 8 else b""
    return kept
