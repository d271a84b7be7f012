"""Emulated links, verified before use: what plain sockets carry, against what was asked.

Transfers that run at once fill every wire of the network, and each should get its fair share.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddlnb.emulation.network import EmulatedNetwork
from ddlnb.errors import DdlnbError, require
from ddlnb.launch.rank import RankContext
from ddlnb.launch.topology import EmulatedTopology, Wire

if TYPE_CHECKING:
    import pandas as pd


FULL = 0.999  # of a wire's bandwidth


def fair_shares(bandwidths: Sequence[float] | np.ndarray, uses: np.ndarray) -> np.ndarray:
    """Return the max-min fair rates of transfers, all at once: ``uses`` has a row for each.

    A column of it says which transfers pass a wire.

    >>> fair_shares([10.0, 4.0], np.array([[True, False], [True, True], [False, True]])).tolist()
    [8.0, 2.0, 2.0]
    """
    room, rates = np.array(bandwidths, float), np.zeros(len(uses))
    growing = np.ones(len(uses), bool)
    while growing.any():
        users = uses[growing].sum(axis=0)
        shares = np.where(users > 0, room / np.maximum(users, 1), np.inf)
        tightest = shares.argmin()
        filling = growing & uses[:, tightest]
        rates[filling] = shares[tightest]
        room -= uses[filling].sum(axis=0) * shares[tightest]
        growing &= ~filling
    return rates


class Trial(NamedTuple):
    """Every host sends to the one ``shift`` places after it, along the routes of this ``turn``.

    ``uses`` says whether the transfer of a host (rows) passes a wire (columns); ``round_trips`` are
    the seconds from every host to its target and back, ``load`` the bytes per second that are to
    pass every wire, headers included, and ``full`` says whether they fill it.
    """

    shift: int
    turn: int
    targets: list[int]
    uses: np.ndarray
    round_trips: np.ndarray
    load: np.ndarray
    full: np.ndarray


def trial(topology: EmulatedTopology, hosts: int, shift: int, turn: int) -> Trial:
    """Return one trial among the first hosts."""
    targets = [(host + shift) % hosts for host in range(hosts)]
    uses, round_trips = np.zeros((hosts, len(topology.wires)), bool), np.zeros(hosts)
    for host, target in enumerate(targets):
        pairs = topology.routes[host, target], topology.routes[target, host]
        there, back = (ways[turn % len(ways)] for ways in pairs)
        uses[host, list(there)] = True
        round_trips[host] = sum(topology.wires[wire].link.latency for wire in (*there, *back))
    bandwidths = np.array([wire.link.bandwidth for wire in topology.wires])
    load = fair_shares(bandwidths, uses) @ uses
    return Trial(shift, turn, targets, uses, round_trips, load, load >= FULL * bandwidths)


def trials(topology: EmulatedTopology, hosts: int) -> list[Trial]:
    """Return trials that fill what can be filled, by several transfers where half send across.

    First the ring, then the one in which all send to the other half, if that shares any wire; then
    those that fill a wire which none before them fills.
    """
    require(len(topology.hosts) > 1, "a topology of one host has nothing to try; take at least two")
    require(not topology.apart(), topology.why_apart())
    chosen: list[Trial] = []
    filled = np.zeros(len(topology.wires), int)  # by how many transfers, so far
    turns = range(max(map(len, topology.routes.values())))
    for shift, turn in product(dict.fromkeys((1, hosts // 2, *range(2, hosts))), turns):
        one = trial(topology, hosts, shift, turn)
        filling = one.full * one.uses.sum(axis=0)
        news = filling > filled if shift == hosts // 2 else filling * (filled == 0)
        if news.any():
            chosen.append(one)
            filled = np.maximum(filled, filling)
    return chosen or [trial(topology, hosts, 1, 0)]


Run = Callable[..., list]  # as `Ranks.run`: calls a function on every rank

PAYLOAD_SHARE = 1448 / 1538  # of a full Ethernet frame on the wire, with its preamble and gap
START_SECONDS, BULK_SECONDS = 0.3, 0.5  # of sending: before bytes are counted, and while they are
START_TRIPS = 10  # the start lasts at least as many round trips
BLOCK = 1 << 16
ROUND_TRIPS = 20
# Before links are doubted, and before they are refused: other work on the machine must not decide.
ATTEMPTS, MOST_ATTEMPTS = 3, 6
UNUSABLE, DOUBTFUL = 0.3, 0.1  # relative difference of the bandwidth
DOUBTFUL_TRIP, TIMER_SECONDS = 0.25, 200e-6  # of the round trip; what timers may add on their own


def verify(run: Run, network: EmulatedNetwork, hosts: int, ranks_per_node: int = 1) -> pd.DataFrame:
    """Return what every wire between these first hosts carries, filled by as few trials as do it.

    In a trial every host sends to another one, all at once: a ring first, and where hosts share
    links also each half to the other, so that they carry several transfers. One row per ``link``,
    in the seconds of the slowed network: ``asked_bandwidth`` of the payload in bytes per second
    that max-min fair shares put on it and the ``bandwidth`` measured, ``transfers`` how many shared
    it, ``full`` whether they fill it, ``asked_round_trip`` in seconds between the nearest two hosts
    that use it and the ``round_trip`` measured (median), ``late`` the mean lateness of the switch's
    packets. Tries again while a link is doubtful, twice at most, and five times while one is too
    far off for any run; returns the best of its attempts, and warns of what is doubtful in it.
    Raises DdlnbError if the bandwidth of a full link is off by more than 30 %, so that no run is
    labelled with a network it did not have. Links that lose packets have no bandwidth to verify,
    nor has a single node: the table is empty then.
    """
    import pandas as pd

    topology = network.topology
    if hosts < 2 or any(wire.link.loss for wire in topology.wires):
        return pd.DataFrame()
    planned = trials(topology, hosts)
    tables: list[pd.DataFrame] = []
    while _goes_on([_doubt(table) for table in tables]):
        found = []
        for one in planned:
            network.route(topology.with_one_route(one.turn).routes)
            start = max(START_SECONDS, START_TRIPS * one.round_trips.max())
            orders = [(target, start) for target in one.targets]
            found.append(run(_measure, orders, ranks_per_node)[::ranks_per_node])
        network.route(topology.routes)
        tables.append(_table(topology.wires, planned, found, network.statistics()["late"]))
    table = min(tables, key=_doubt)
    _judge(table)
    return table


def _goes_on(doubts: Sequence[tuple[bool, float]]) -> bool:
    """Return whether attempts with these doubts ask for another one."""
    if not doubts:
        return True
    is_unusable, _ = min(doubts)
    return doubts[-1] > (False, 1) and len(doubts) < (MOST_ATTEMPTS if is_unusable else ATTEMPTS)


def _doubt(table: pd.DataFrame) -> tuple[bool, float]:
    """Return whether a table is unusable, and how doubtful its worst link is: up to 1 it is not."""
    off = _off(table).max()
    return bool(off > UNUSABLE), float(max(off / DOUBTFUL, _lateness(table).max()))


def _off(table: pd.DataFrame) -> pd.Series:
    full = table[table["full"]]
    return (full["bandwidth"] / full["asked_bandwidth"] - 1).abs()


def _lateness(table: pd.DataFrame) -> pd.Series:
    """Return by how much round trips are late, in units of what makes them doubtful."""
    late = table["round_trip"] - table["asked_round_trip"]
    return late / (DOUBTFUL_TRIP * table["asked_round_trip"] + TIMER_SECONDS)


def _table(
    wires: Sequence[Wire],
    planned: Sequence[Trial],
    found: Sequence[Sequence[tuple[float, float]]],
    late: float,
) -> pd.DataFrame:
    """Return one row per wire in use: what was asked and what was found."""
    import pandas as pd

    uses = np.array([one.uses for one in planned])  # by trial, host and wire
    transfers = uses.sum(axis=1)
    full = np.array([one.full for one in planned])
    asked_trips = np.array([one.round_trips for one in planned])
    rates, trips = np.moveaxis(np.array(found), -1, 0)
    # Bandwidth is that of the fullest trial, the round trip that of the nearest transfer.
    fullest = (transfers + (1 + uses.shape[1]) * full).argmax(axis=0), np.arange(len(wires))
    nearest = np.where(uses, asked_trips[..., None], np.inf).reshape(-1, len(wires)).argmin(axis=0)
    table = pd.DataFrame(
        {
            "link": list(map(str, wires)),
            "asked": [str(wire.link) for wire in wires],
            "transfers": transfers[fullest],
            "full": full[fullest],
            "asked_bandwidth": PAYLOAD_SHARE * np.array([one.load for one in planned])[fullest],
            "bandwidth": (uses * rates[..., None]).sum(axis=1)[fullest],
            "asked_round_trip": asked_trips.ravel()[nearest],
            "round_trip": trips.ravel()[nearest],
            "late": late,
        }
    )
    return table[table["transfers"] > 0].reset_index(drop=True)


def _judge(table: pd.DataFrame) -> None:
    off, slow = _off(table), _lateness(table) > 1
    doubts = []
    if off.max() > DOUBTFUL:
        worst = table.loc[off.idxmax()]
        has = (
            f"{worst['link']} was to have {_rate(worst['asked_bandwidth'])} and has "
            f"{_rate(worst['bandwidth'])}"
        )
        if off.max() > UNUSABLE:
            raise DdlnbError(
                f"the emulated network is not the one asked for: {has}; this machine is too slow "
                f"or too busy for it, so take a smaller scale or fewer nodes, or try again"
            )
        doubts.append(has)
    if slow.any():
        worst = table.loc[(table["round_trip"] - table["asked_round_trip"]).idxmax()]
        doubts.append(
            f"the round trips over {slow.sum()} of {len(table)} links are long, the worst "
            f"{1e3 * worst['round_trip']:.3g} ms instead of "
            f"{1e3 * worst['asked_round_trip']:.3g} ms"
        )
    if doubts:
        warnings.warn(f"emulated network: {'; '.join(doubts)}", stacklevel=4)


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e6:.3g} MB/s"


def _measure(
    context: RankContext, orders: Sequence[tuple[int, float]], ranks_per_node: int
) -> tuple[float, float]:
    """Return (bytes per second, seconds of a round trip) from this node to the one it sends to."""
    if context.rank % ranks_per_node:
        return 0.0, 0.0
    store, node = context.store(), context.rank // ranks_per_node
    target, start = orders[node]
    with socket.create_server((context.host, 0)) as listener:
        listener.settimeout(context.timeout_seconds)
        store.set(f"node {node}", f"{context.host} {listener.getsockname()[1]}")
        host, port = store.get(f"node {target}").decode().split()
        counted: list[float] = []
        receiving = threading.Thread(target=_receive, args=(listener, counted), name="receiving")
        receiving.start()
        with socket.create_connection((host, int(port)), context.timeout_seconds) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            round_trip = statistics.median(_trip(line) for _ in range(ROUND_TRIPS))
            if store.add("tripped", 1) == len(orders):  # the last one says when all begin
                store.set("begin", str(time.monotonic() + 0.02))
            _send(line, float(store.get("begin")), start)
        receiving.join()
        store.set(f"to {node}", str(counted[0]))
    return float(store.get(f"to {target}")), round_trip


def _trip(line: socket.socket) -> float:
    start = time.perf_counter()
    line.sendall(b"?")
    line.recv(1)
    return time.perf_counter() - start


def _send(line: socket.socket, begin: float, start: float) -> None:
    """Send until the bytes have been counted, and drop what is still in the queue.

    All nodes are on one machine, so its clock is everyone's.
    """
    time.sleep(max(0.0, begin - time.monotonic()))
    line.sendall(b"!" + struct.pack("!dd", begin + start, begin + start + BULK_SECONDS))
    block = bytes(BLOCK)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it has counted enough
        while time.monotonic() < begin + start + BULK_SECONDS:
            line.sendall(block)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _receive(listener: socket.socket, counted: list[float]) -> None:
    """Echo single bytes, then note the bytes per second of what comes between two times."""
    line, _ = listener.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line.recv(1) == b"?":
            line.sendall(b".")
        first, last = struct.unpack("!dd", line.recv(16, socket.MSG_WAITALL))
        size = 0
        with contextlib.suppress(ConnectionResetError):
            while (now := time.monotonic()) < last and (data := line.recv(BLOCK)):
                size += len(data) * (now > first)
        counted.append(size / (last - first))
