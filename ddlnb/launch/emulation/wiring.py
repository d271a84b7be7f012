"""What an emulated network consists of: hosts, links in both directions of every cable, routes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddlnb.errors import require
from ddlnb.launch.emulation.links import Link

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
class Wiring:
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
        ends = {(wire.start, wire.end) for wire in self.wires}
        require(len(ends) == len(self.wires), f"network {self.name!r} has a wire twice")
        for start, end in ends:
            require(
                (end, start) in ends,
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

    def ports(self, host: int) -> list[tuple[int, int]]:
        """Return the wires that lead from a host and to it, cable by cable."""
        name = self.hosts[host]
        ends = {(wire.start, wire.end): number for number, wire in enumerate(self.wires)}
        return [
            (number, ends[wire.end, name])
            for number, wire in enumerate(self.wires)
            if wire.start == name
        ]

    def at(self, device: str) -> tuple[int, ...]:
        """Return the wires that begin or end at a device. Raises InputError if none does."""
        found = [
            number for number, wire in enumerate(self.wires) if device in (wire.start, wire.end)
        ]
        require(bool(found), f"network {self.name!r} has no device {device!r}")
        return tuple(found)

    def cable(self, one: str, other: str) -> tuple[int, int]:
        """Return both wires between two devices. Raises InputError if no cable joins them."""
        ends = {(wire.start, wire.end): number for number, wire in enumerate(self.wires)}
        near = sorted(end for start, end in ends if start == one)
        require(
            (one, other) in ends,
            f"no cable joins {one!r} and {other!r} in network {self.name!r}"
            + (f"; {one!r} is joined to {', '.join(near)}" if near else f"; it has no {one!r}"),
        )
        return ends[one, other], ends[other, one]

    def require_can_become(self, other: Wiring) -> None:
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

    def slowed(self, scale: float) -> Wiring:
        """Return the network slowed to ``scale`` of its real speed."""
        wires = (replace(wire, link=wire.link.slowed(scale)) for wire in self.wires)
        return replace(self, wires=tuple(wires))

    def with_one_route(self, turn: int) -> Wiring:
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
        cables = list(dict.fromkeys(frozenset(pair) for pair in ends))
        cables_text = ", ".join(
            " - ".join(next(pair for pair in ends if frozenset(pair) == cable)) for cable in cables
        )
        while_cut = f" while {cables_text} {'is' if len(cables) == 1 else 'are'} cut" if cut else ""
        return (
            f"{', '.join(names[:SHOWN_PAIRS])}{more} have lost each other: no route is left"
            f"{while_cut}"
        )


def _pairs(hosts: int) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in range(hosts) for b in range(hosts) if a != b)


def star(links: Sequence[Link], name: str = "star") -> Wiring:
    """Return nodes with these links to one switch; the latency of each is half on either side."""
    nodes = tuple(f"host{number}" for number in range(len(links)))
    wires = [
        Wire(*ends, replace(link, latency=link.latency / 2, jitter=link.jitter / 2))
        for node, link in zip(nodes, links, strict=True)
        for ends in ((node, "switch0"), ("switch0", node))
    ]
    routes = {(a, b): ((2 * a, 2 * b + 1),) for a, b in _pairs(len(nodes))}
    return Wiring(name, nodes, tuple(wires), routes)
