"""Which transfers at once fill every wire of an emulated network, and what each should then get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ddlnb.errors import require
from ddlnb.launch.emulation.wiring import Route, Wiring

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

    wiring: Wiring
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
        ways = self.wiring.routes[source, target]
        return ways[self.turn % len(ways)]

    @cached_property
    def routes(self) -> list[Route]:
        """Return the route of every host's transfer."""
        return [self.route(host, self.target(host)) for host in range(self.hosts)]

    def round_trip(self, host: int) -> float:
        """Return the seconds to a host's target and back."""
        back = self.route(self.target(host), host)
        return sum(self.wiring.wires[wire].link.latency for wire in (*self.routes[host], *back))

    @cached_property
    def shares(self) -> list[float]:
        """Return the fair bytes per second of every host's transfer, headers included."""
        return fair_shares([wire.link.bandwidth for wire in self.wiring.wires], self.routes)

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
            for wire in range(len(self.wiring.wires))
            if self.load(wire) >= FULL * self.wiring.wires[wire].link.bandwidth
        }


def trials(wiring: Wiring, hosts: int) -> list[Trial]:
    """Return trials that fill what can be filled, by several transfers where half send across.

    First the ring, then the one in which all send to the other half, if that shares any wire; then
    those that fill a wire which none before them fills.
    """
    chosen: list[Trial] = []
    filled: dict[int, int] = {}
    for trial in _candidates(wiring, hosts):
        news = (
            wire not in filled or (trial.is_across and count > filled[wire])
            for wire, count in trial.full.items()
        )
        if any(news):
            chosen.append(trial)
            for wire, count in trial.full.items():
                filled[wire] = max(count, filled.get(wire, 0))
    return chosen or [Trial(wiring, hosts, 1, 0)]


def _candidates(wiring: Wiring, hosts: int) -> Iterator[Trial]:
    require(len(wiring.hosts) > 1, "a wiring of one host has nothing to try; take at least two")
    require(not wiring.apart(), wiring.why_apart())
    turns = max(map(len, wiring.routes.values()))
    shifts = dict.fromkeys((1, hosts // 2, *range(2, hosts)))
    return (Trial(wiring, hosts, shift, turn) for shift in shifts for turn in range(turns))
