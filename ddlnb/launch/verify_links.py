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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ddlnb.errors import DdlnbError, require
from ddlnb.launch.emulation.network import EmulatedNetwork
from ddlnb.launch.emulation.topology import EmulatedTopology, Route
from ddlnb.launch.rank import RankContext

if TYPE_CHECKING:
    import pandas as pd


FULL = 0.999  # of a wire's bandwidth


def fair_shares(bandwidths: Sequence[float], routes: Sequence[Route]) -> list[float]:
    """Return the max-min fair rate of a transfer along each route, all at once.

    >>> fair_shares([10.0, 4.0], [(0,), (0, 1), (1,)])
    [8.0, 2.0, 2.0]
    """
    room, rates = list(bandwidths), [0.0] * len(routes)
    growing = set(range(len(routes)))
    while growing:
        users = {
            wire: [one for one in growing if wire in routes[one]]
            for wire in {wire for one in growing for wire in routes[one]}
        }
        share, tightest = min((room[wire] / len(users[wire]), wire) for wire in users)
        for one in users[tightest]:
            rates[one] = share
            growing.discard(one)
            for wire in routes[one]:
                room[wire] -= share
    return rates


@dataclass(frozen=True)
class Trial:
    """Every host sends to the one ``shift`` places after it, along the routes of this ``turn``."""

    topology: EmulatedTopology
    hosts: int
    shift: int
    turn: int

    @property
    def is_across(self) -> bool:
        """Return whether every host sends to the other half."""
        return self.shift == self.hosts // 2

    def target(self, host: int) -> int:
        """Return the host that one sends to."""
        return (host + self.shift) % self.hosts

    def route(self, source: int, target: int) -> Route:
        """Return the only route from one host to another during the trial."""
        ways = self.topology.routes[source, target]
        return ways[self.turn % len(ways)]

    @cached_property
    def routes(self) -> list[Route]:
        """Return the route of every host's transfer."""
        return [self.route(host, self.target(host)) for host in range(self.hosts)]

    def round_trip(self, host: int) -> float:
        """Return the seconds to a host's target and back."""
        back = self.route(self.target(host), host)
        return sum(self.topology.wires[wire].link.latency for wire in (*self.routes[host], *back))

    @cached_property
    def shares(self) -> list[float]:
        """Return the fair bytes per second of every host's transfer, headers included."""
        return fair_shares([wire.link.bandwidth for wire in self.topology.wires], self.routes)

    def senders(self, wire: int) -> list[int]:
        """Return the hosts whose transfers pass a wire."""
        return [host for host, route in enumerate(self.routes) if wire in route]

    def load(self, wire: int) -> float:
        """Return the bytes per second that are to pass a wire."""
        return sum(self.shares[host] for host in self.senders(wire))

    @cached_property
    def full(self) -> dict[int, int]:
        """Return the wires that the trial fills, each with its number of transfers."""
        return {
            wire: len(self.senders(wire))
            for wire in range(len(self.topology.wires))
            if self.load(wire) >= FULL * self.topology.wires[wire].link.bandwidth
        }


def trials(topology: EmulatedTopology, hosts: int) -> list[Trial]:
    """Return trials that fill what can be filled, by several transfers where half send across.

    First the ring, then the one in which all send to the other half, if that shares any wire; then
    those that fill a wire which none before them fills.
    """
    chosen: list[Trial] = []
    filled: dict[int, int] = {}
    for trial in _candidates(topology, hosts):
        news = (
            wire not in filled or (trial.is_across and count > filled[wire])
            for wire, count in trial.full.items()
        )
        if any(news):
            chosen.append(trial)
            for wire, count in trial.full.items():
                filled[wire] = max(count, filled.get(wire, 0))
    return chosen or [Trial(topology, hosts, 1, 0)]


def _candidates(topology: EmulatedTopology, hosts: int) -> Iterator[Trial]:
    require(len(topology.hosts) > 1, "a topology of one host has nothing to try; take at least two")
    require(not topology.apart(), topology.why_apart())
    turns = max(map(len, topology.routes.values()))
    shifts = dict.fromkeys((1, hosts // 2, *range(2, hosts)))
    return (Trial(topology, hosts, shift, turn) for shift in shifts for turn in range(turns))


Run = Callable[..., list]  # as `Ranks.run`: calls a function on every rank

PAYLOAD_SHARE = 1448 / 1538  # of a full Ethernet frame on the wire, with its preamble and gap
START_SECONDS, BULK_SECONDS = 0.3, 0.5  # of sending: before bytes are counted, and while they are
START_TRIPS = 10  # the start lasts at least as many round trips
BLOCK = 1 << 16
ROUND_TRIPS = 20
ATTEMPTS = 3  # before links are refused: a moment of other work on the machine must not decide
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
    packets. Warns of doubtful links; raises DdlnbError if the bandwidth of a full one is off by
    more than 30 %, so that no run is labelled with a network it did not have. Links that lose
    packets have no bandwidth to verify, nor has a single node: the table is empty then.
    """
    import pandas as pd

    topology = network.topology
    if hosts < 2 or any(wire.link.loss for wire in topology.wires):
        return pd.DataFrame()
    planned = trials(topology, hosts)
    for _ in range(ATTEMPTS):
        found = []
        for trial in planned:
            network.route(topology.with_one_route(trial.turn).routes)
            found.append(run(_measure, _orders(trial), ranks_per_node)[::ranks_per_node])
        network.route(topology.routes)
        table = _table(planned, found, network.statistics()["late"])
        if _off(table).max() <= UNUSABLE:
            break
    _judge(table)
    return table


def _off(table: pd.DataFrame) -> pd.Series:
    full = table[table["full"]]
    return (full["bandwidth"] / full["asked_bandwidth"] - 1).abs()


def _orders(trial: Trial) -> list[tuple[int, float]]:
    """Return for every host whom it sends to, and the seconds before bytes are counted."""
    start = max(START_SECONDS, START_TRIPS * max(map(trial.round_trip, range(trial.hosts))))
    return [(trial.target(host), start) for host in range(trial.hosts)]


def _table(
    planned: Sequence[Trial], found: Sequence[Sequence[tuple[float, float]]], late: float
) -> pd.DataFrame:
    """Return one row per wire in use: what was asked and what was found."""
    import pandas as pd

    topology = planned[0].topology
    rows = []
    for number, wire in enumerate(topology.wires):
        using = [index for index, trial in enumerate(planned) if trial.senders(number)]
        if not using:
            continue
        at = max(using, key=lambda i: (number in planned[i].full, len(planned[i].senders(number))))
        near, host = min(
            ((index, host) for index in using for host in planned[index].senders(number)),
            key=lambda one: planned[one[0]].round_trip(one[1]),
        )
        rows.append(
            {
                "link": str(wire),
                "asked": str(wire.link),
                "transfers": len(planned[at].senders(number)),
                "full": number in planned[at].full,
                "asked_bandwidth": PAYLOAD_SHARE * planned[at].load(number),
                "bandwidth": sum(found[at][sender][0] for sender in planned[at].senders(number)),
                "asked_round_trip": planned[near].round_trip(host),
                "round_trip": found[near][host][1],
                "late": late,
            }
        )
    return pd.DataFrame(rows)


def _judge(table: pd.DataFrame) -> None:
    off = _off(table)
    late = table["round_trip"] - table["asked_round_trip"]
    slow = late > DOUBTFUL_TRIP * table["asked_round_trip"] + TIMER_SECONDS
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
        worst = table.loc[late.idxmax()]
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
