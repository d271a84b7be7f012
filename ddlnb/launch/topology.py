"""What an emulated network consists of: hosts, links in both directions of every cable, routes.

A link has a bandwidth, a latency, and perhaps jitter and loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from ddlnb.errors import InputError, UnknownName, require


def _show_rate(bytes_per_second: float) -> str:
    bits = 8 * bytes_per_second
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits >= size:
            return f"{bits / size:g}{unit}b/s"
    return f"{bits:g}b/s"


@dataclass(frozen=True)
class Link:
    """What joins a node to the switch, in both directions at once.

    ``bandwidth`` is in bytes per second and counts headers; ``latency`` is in seconds, one way from
    a node to another one with the same link; ``jitter`` is the most that is added to it; ``loss``
    the share of packets that get lost at this node.
    """

    bandwidth: float
    latency: float
    jitter: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        numbers = (self.bandwidth, self.latency, self.jitter, self.loss)
        require(
            all(isinstance(n, int | float) and math.isfinite(n) for n in numbers),
            f"{self} must consist of finite numbers",
        )
        require(self.bandwidth > 0, f"bandwidth {self.bandwidth} bytes per second must be positive")
        require(self.latency >= 0, f"latency {self.latency} s must not be negative")
        require(self.jitter >= 0, f"jitter {self.jitter} s must not be negative")
        require(0 <= self.loss < 1, f"loss {self.loss} must be from 0 to below 1")

    def slowed(self, scale: float) -> Link:
        """Return the link slowed to ``scale`` of its real speed.

        >>> Link(1.25e9, 20e-6).slowed(1 / 100)
        Link(bandwidth=12500000.0, latency=0.002, jitter=0.0, loss=0.0)
        """
        return replace(
            self,
            bandwidth=self.bandwidth * scale,
            latency=self.latency / scale,
            jitter=self.jitter / scale,
        )

    def __str__(self) -> str:
        parts = [_show_rate(self.bandwidth), f"{1e6 * self.latency:g}us"]
        if self.jitter:
            parts.append(f"jitter {1e6 * self.jitter:g}us")
        if self.loss:
            parts.append(f"loss {100 * self.loss:g}%")
        return " ".join(parts)


# Nominal rates, and latencies one way between two hosts over one switch as such networks have them.
LINKS = {
    "100MbE": Link(100e6 / 8, 100e-6),
    "1GbE": Link(1e9 / 8, 50e-6),
    "10GbE": Link(10e9 / 8, 20e-6),
    "100GbE": Link(100e9 / 8, 10e-6),
    "100GbIB": Link(100e9 / 8, 2e-6),
}
# Apart from `ddlnb.units`: links are written without spaces inside a value and also in plain bits,
# and 50us is 50 / 1e6 here but 50 * 1e-6 there, which differ in the last bit.
_NUMBER = r"(\d[\d.]*(?:e[+-]?\d+)?)"
_RATE = re.compile(_NUMBER + r"\s*(k|M|G)?b(?:it)?/?s?$")
_TIME = re.compile(_NUMBER + r"\s*(s|ms|us)$")
_OPTIONS = {"jitter": _TIME, "loss": re.compile(_NUMBER + r"(%)$")}
_TIMES = {"k": 1e3, "M": 1e6, "G": 1e9}  # a prefix multiplies, a smaller unit divides
_PARTS = {"ms": 1e3, "us": 1e6, "%": 100}
_HOW = "write a name or, for example, '1Gb/s 50us', '100Mb/s 1ms jitter 200us loss 1%'"


def get_link(text: str | Link) -> Link:
    """Return the link of that name, or the one described in words. Raises InputError.

    >>> get_link("1Gb/s 50us")
    Link(bandwidth=125000000.0, latency=5e-05, jitter=0.0, loss=0.0)
    """
    if isinstance(text, Link):
        return text
    if text in LINKS:
        return LINKS[text]
    words = str(text).replace(",", " ").split()
    if len(words) < 2:
        raise UnknownName("network", str(text), [*LINKS, "1Gb/s 50us"])
    bandwidth = _number(text, words[0], _RATE) / 8
    values = {"latency": _number(text, words[1], _TIME)}
    require(len(words) % 2 == 0, f"network {text!r} cannot be read; {_HOW}")
    for name, value in zip(words[2::2], words[3::2], strict=True):
        require(name in _OPTIONS, f"network {text!r}: {name!r} {value!r} cannot be read; {_HOW}")
        values[name] = _number(text, value, _OPTIONS[name])
    return Link(bandwidth, **values)


def links_of(network: str | Link | Sequence[str | Link], nodes: int) -> list[Link]:
    """Return one link per node: all alike, or as listed. Raises InputError for another number."""
    if isinstance(network, str | Link):
        return [get_link(network)] * nodes
    links = [get_link(one) for one in network]
    require(
        len(links) == nodes,
        f"network={list(map(str, network))} has {len(links)} links for {nodes} nodes; "
        f"give one for each node, or one for all",
    )
    return links


def _number(text: object, word: str, pattern: re.Pattern) -> float:
    if found := pattern.match(word):
        unit = found[2] or ""
        with suppress(ValueError):  # 1.2.3, say
            return float(found[1]) * _TIMES.get(unit, 1.0) / _PARTS.get(unit, 1.0)
    raise InputError(f"network {text!r}: {word!r} cannot be read; {_HOW}")


Route = tuple[int, ...]  # the numbers of its wires, in order
Routes = Mapping[tuple[int, int], tuple[Route, ...]]

SHOWN_PAIRS = 3


@dataclass(frozen=True)
class Wire:
    """One direction of a cable between two devices; ``link`` says what it does to packets.

    The latency of the link is that of this direction alone.
    """

    start: str
    end: str
    link: Link

    def __str__(self) -> str:
        return f"{self.start} -> {self.end}"


@dataclass(frozen=True)
class EmulatedTopology:
    """Hosts by name, the wires between them and switches, and the routes from host to host.

    ``routes`` has, for a pair of hosts by their numbers, one route or several; a connection keeps
    to one of them. What is neither the first nor the last device of a route passes packets on,
    switch or host. Raises InputError for a wire without the other direction, and for a route that
    does not lead from one host to the other.
    """

    name: str
    hosts: tuple[str, ...]
    wires: tuple[Wire, ...]
    routes: Routes = field(repr=False)

    def __post_init__(self) -> None:
        require(len(self._ends) == len(self.wires), f"network {self.name!r} has a wire twice")
        for start, end in self._ends:
            require(
                (end, start) in self._ends,
                f"network {self.name!r} has a wire from {start} to {end} and none back",
            )
        for (source, target), routes in self.routes.items():
            for route in routes:
                self._check(self.hosts[source], self.hosts[target], route)

    def _check(self, source: str, target: str, route: Route) -> None:
        at = source
        for number in route:
            wire = self.wires[number]
            require(
                wire.start == at,
                f"network {self.name!r}: the route from {source} to {target} is at {at} and goes "
                f"on with {wire}",
            )
            at = wire.end
        require(
            at == target and bool(route),
            f"network {self.name!r}: the route from {source} to {target} ends at {at}",
        )

    @cached_property
    def _ends(self) -> dict[tuple[str, str], int]:
        return {(wire.start, wire.end): number for number, wire in enumerate(self.wires)}

    def ports(self, host: int) -> list[tuple[int, int]]:
        """Return the wires that lead from a host and to it, cable by cable."""
        ends, name = self._ends, self.hosts[host]
        return [(ends[name, end], ends[end, name]) for start, end in ends if start == name]

    def at(self, device: str) -> tuple[int, ...]:
        """Return the wires that begin or end at a device. Raises InputError if none does."""
        found = tuple(number for ends, number in self._ends.items() if device in ends)
        require(bool(found), f"network {self.name!r} has no device {device!r}")
        return found

    def cable(self, one: str, other: str) -> tuple[int, int]:
        """Return both wires between two devices. Raises InputError if no cable joins them."""
        near = sorted(end for start, end in self._ends if start == one)
        require(
            other in near,
            f"no cable joins {one!r} and {other!r} in network {self.name!r}"
            + (f"; {one!r} is joined to {', '.join(near)}" if near else f"; it has no {one!r}"),
        )
        return self._ends[one, other], self._ends[other, one]

    def require_can_become(self, other: EmulatedTopology) -> None:
        """Raise InputError unless a network that was built as this one can turn into the other.

        The other has the same hosts and no further cable. None of its cables is faster, because
        hosts have queues for the bandwidth they were built with; and it loses packets only if this
        one does, because packets that may be lost travel one by one, others in segments.
        """
        mine = {str(wire): wire.link for wire in self.wires}
        theirs = {str(wire): wire.link for wire in other.wires}
        require(
            other.hosts == self.hosts and set(theirs) <= set(mine),
            f"network {other.name!r} has other hosts or cables than {self.name!r}, which it is to "
            f"take the place of; keep to its hosts and cables, or start ranks on the other",
        )
        faster = [name for name, link in theirs.items() if link.bandwidth > mine[name].bandwidth]
        require(
            not faster,
            f"network {other.name!r} is faster than {self.name!r} from which it is to be made, "
            f"whose hosts send no faster; begin with the larger bandwidth",
        )
        loses = any(wire.link.loss for wire in self.wires)
        require(
            loses or not any(link.loss for link in theirs.values()),
            f"network {other.name!r} loses packets and {self.name!r}, from which it is to be made, "
            f"none; begin with one that loses some, such as 'loss 0.0001%'",
        )

    def slowed(self, scale: float) -> EmulatedTopology:
        """Return the network slowed to ``scale`` of its real speed."""
        wires = (replace(wire, link=wire.link.slowed(scale)) for wire in self.wires)
        return replace(self, wires=tuple(wires))

    def with_one_route(self, turn: int) -> EmulatedTopology:
        """Return the network in which every pair has one of its routes, another one each turn."""
        one = {pair: (many[turn % len(many)],) for pair, many in self.routes.items()}
        return replace(self, routes=one)

    def apart(self, cut: Collection[int] = ()) -> list[tuple[int, int]]:
        """Return the pairs of hosts that no route joins while these wires are cut."""
        return [
            pair
            for pair in _pairs(len(self.hosts))
            if all(any(number in cut for number in way) for way in self.routes.get(pair, ()))
        ]

    def why_apart(self, cut: Collection[int] = ()) -> str:
        """Return words on the hosts that no route joins while these wires are cut; "" if none."""
        lost = list(dict.fromkeys((min(pair), max(pair)) for pair in self.apart(cut)))
        if not lost:
            return ""
        names = [f"{self.hosts[one]} and {self.hosts[other]}" for one, other in lost]
        rest = len(names) - SHOWN_PAIRS
        more = f" and {rest} more pair{'s' * (rest > 1)} of hosts" if rest > 0 else ""
        ends = [(self.wires[number].start, self.wires[number].end) for number in sorted(cut)]
        cables: dict[frozenset[str], str] = {}
        for pair in ends:
            cables.setdefault(frozenset(pair), " - ".join(pair))
        is_cut = f"{', '.join(cables.values())} {'is' if len(cables) == 1 else 'are'} cut"
        while_cut = f" while {is_cut}" if cut else ""
        return (
            f"{', '.join(names[:SHOWN_PAIRS])}{more} have lost each other: no route is left"
            f"{while_cut}"
        )


def _pairs(hosts: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(hosts) for b in range(hosts) if a != b)


def star(links: Sequence[Link], name: str = "star") -> EmulatedTopology:
    """Return nodes with these links to one switch; the latency of each is half on either side."""
    nodes = tuple(f"host{number}" for number in range(len(links)))
    wires = [
        Wire(*ends, replace(link, latency=link.latency / 2, jitter=link.jitter / 2))
        for node, link in zip(nodes, links, strict=True)
        for ends in ((node, "switch0"), ("switch0", node))
    ]
    routes = {(a, b): ((2 * a, 2 * b + 1),) for a, b in _pairs(len(nodes))}
    return EmulatedTopology(name, nodes, tuple(wires), routes)
