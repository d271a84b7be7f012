"""What a cluster's network costs where that is no formula: a graph, which networks supply.

The core knows a topology as a text, and asks for what is made of it: seconds of collectives against
bytes, and the loads of parameter servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.effects import Effects
from ddlnb.plans.transfers import Primitive
from ddlnb.registry import supplied

Numbers = NDArray[np.float64]
AUTO = "auto"  # the best all-reduce for every size


class Links(NamedTuple):
    """Effects that a graph takes: seconds of a message, bytes per second of a link."""

    inside_latency: float
    inside_bandwidth: float
    between_latency: float
    between_bandwidth: float

    @classmethod
    def of(
        cls,
        effects: Effects,
        between: float | None = None,
        *,
        computing: bool = False,
        closed: bool = False,
    ) -> Links:
        """Return those of a cluster, or what is left of them while its workers compute.

        ``between`` is the rate from node to node, by default that of a node's link; ``closed`` when
        all workers are in one node, whose ring closes inside.
        """
        inside = effects.inside_bandwidth * (effects.closed_ring_share if closed else 1.0)
        between = effects.between_bandwidth if between is None else between
        if computing:
            inside, between = inside * effects.inside_share, between * effects.between_share
        return cls(effects.inside_latency, inside, effects.between_latency, between)


@dataclass(frozen=True)
class Curve:
    """Seconds against bytes, straight between ``sizes`` and beyond the last."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def latency(self) -> float:
        """Return the seconds of an empty message."""
        return self.seconds[0]

    def at(self, sizes: Numbers) -> Numbers:
        """Return the seconds for messages of these bytes."""
        found = np.interp(sizes, self.sizes, self.seconds)
        beyond = np.maximum(np.asarray(sizes, float) - self.sizes[-1], 0.0)
        return np.asarray(found + beyond * self.per_byte, np.float64)

    @property
    def per_byte(self) -> float:
        """Return the seconds of one more byte of a large message."""
        (low, high), (first, last) = self.sizes[-2:], self.seconds[-2:]
        return (last - first) / (high - low)


class ServerLoads(NamedTuple):
    """Seconds per byte when all nodes send one message to a server at once.

    ``uplink`` are those of the slowest node's own cables, ``into`` those of the server's cables,
    ``fabric`` those of the busiest link between, whose number is ``link``; -1 if there is none.
    """

    uplink: float
    into: float
    fabric: float
    link: int


class Fabric(Protocol):
    """How the machines of a cluster are joined; hosts beyond its nodes are for servers."""

    def curve(
        self, links: Links, nodes: int, per_node: int, name: str, primitive: Primitive
    ) -> Curve:
        """Return the seconds of a collective against bytes, among workers of the first nodes."""

    def large_seconds(
        self, links: Links, nodes: int, per_node: int, name: str, primitive: Primitive
    ) -> float:
        """Return the seconds of the largest message, which bandwidth alone decides."""

    def require_all_reduce(self, links: Links, name: str) -> None:
        """Raise InputError for an all-reduce that cannot be, and for what differs and is not."""

    @property
    def spare_hosts(self) -> int:
        """Hosts beyond the nodes."""

    @property
    def takes_servers(self) -> bool:
        """Whether parameter servers have a place."""

    def server_loads(
        self, links: Links, nodes: Sequence[int], servers: Sequence[int]
    ) -> list[ServerLoads]:
        """Return the loads of every server, of machines by number."""


def fabric_of(
    nodes: int, gpus_per_node: int, topology: str, routing: str, changes: tuple[str, ...]
) -> Fabric:
    """Return how so many nodes are joined: by a topology, a routing and changes, as texts.

    Raises InputError or UnknownName for a text that says none, and for a topology with fewer hosts
    than nodes; MissingPart where networks are not here.
    """
    fabric: Fabric = supplied("network as a graph")(
        nodes, gpus_per_node, topology, routing, changes
    )
    return fabric
