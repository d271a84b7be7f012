"""What collectives put on a cluster's links: loads by algorithm, or a graph where none will do.

`Cluster.cost` turns a load into seconds. The closed forms of `ddlnb.plans.alpha_beta` know no
cluster: they are what a plan assumes of links that are all alike. Graphs are supplied by networks:
the core knows a topology as a text, and asks for what is made of it: seconds of collectives against
bytes, and the loads of parameter servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.effects import Effects
from ddlnb.plans.alpha_beta import double_tree_share, tree_levels
from ddlnb.plans.transfers import Primitive
from ddlnb.registry import supplied


@dataclass(frozen=True)
class Load:
    """The load of one all-reduce.

    Hops that follow one another on links inside and between nodes, and the bytes that the busiest
    link of each kind carries in one direction, as multiples of the message. ``overlaps`` when both
    kinds of links carry their bytes at the same time.
    """

    inside_hops: float
    between_hops: float
    inside_bytes: float
    between_bytes: float
    overlaps: bool


class Form(NamedTuple):
    """An all-reduce as a formula.

    Seconds of its hops, seconds per byte, and the share of the bandwidth while workers compute.
    """

    hops: float
    per_byte: float
    share: float


def ring(nodes: int, per_node: int) -> Load:
    """One ring through all workers, node by node: 2 (n-1) hops, one of every ``per_node`` between.

    >>> ring(nodes=2, per_node=4)
    Load(inside_hops=10.5, between_hops=3.5, inside_bytes=1.75, between_bytes=1.75, overlaps=True)
    """
    workers = nodes * per_node
    hops, share = 2 * (workers - 1), 2 * (workers - 1) / workers
    between = hops * nodes / workers if nodes > 1 else 0.0
    crossing = share if nodes > 1 else 0.0
    inside = share if per_node > 1 else 0.0
    return Load(hops - between, between, inside, crossing, overlaps=True)


def tree(nodes: int, per_node: int) -> Load:
    """Reduce and broadcast along a binary tree, whole messages: 2 log2 n hops of M bytes each.

    >>> tree(nodes=8, per_node=1).between_bytes
    6
    """
    inside, between = 2 * tree_levels(per_node), 2 * tree_levels(nodes)
    return Load(inside, between, inside, between, overlaps=False)


def double_tree(nodes: int, per_node: int) -> Load:
    """Two complementary binary trees, each for one half, in a pipeline (Sanders et al. 2009).

    A node is an inner one of at most one tree, so it sends and receives 2 M at most, and M of two
    nodes. Inside a node the trees are chains, of which those in the middle pass both halves on.

    >>> double_tree(nodes=8, per_node=1).between_bytes, double_tree(2, 8).between_bytes
    (2.0, 1.0)
    """
    return Load(
        2 * tree_levels(per_node),
        2 * tree_levels(nodes),
        2.0 if per_node > 1 else 0.0,
        double_tree_share(nodes),
        overlaps=True,
    )


def hierarchical(nodes: int, per_node: int) -> Load:
    """Ring reduce-scatter in every node, rings between nodes, ring all-gather in every node.

    The GPUs of a node share its card: together they send 2 (m-1) / m M between m nodes.

    >>> hierarchical(nodes=8, per_node=4).between_hops
    14
    """
    inside, between = 2 * (per_node - 1), 2 * (nodes - 1)
    return Load(inside, between, inside / per_node, between / nodes, overlaps=False)


NCCL_TREE = "nccl-tree"  # its double tree, in as many parts as are quickest for the size
ALL_REDUCES = {
    "ring": ring,
    "tree": tree,
    "double-tree": double_tree,
    NCCL_TREE: double_tree,
    "hierarchical": hierarchical,
}
NCCL = "nccl"  # the double tree for small messages between nodes, else the ring: `nccl_choice`
TREE_RATE = 0.92  # what NCCL takes the tree's rate for, over the ring's, between nodes (tuning.cc)


def nccl_choice(ring: Form, tree: Form) -> tuple[Form, float]:
    """Return NCCL's double tree by its own estimate, and the bytes up to which it is the quicker.

    The estimate gives it TREE_RATE of the ring's bandwidth in place of what its own load would, so
    that seconds do not jump where the algorithm changes; but it knows nothing of parts in flight,
    and with them they may. (NCCL 2.4 had a threshold by the number of ranks, later ones estimate.)

    >>> tree, threshold = nccl_choice(Form(1e-3, 1e-9, 1.0), Form(2e-4, 2e-9, 1.0))
    >>> round(float(threshold) / 1e6, 1)
    9.2
    """
    tree = Form(tree.hops, ring.per_byte / TREE_RATE, ring.share)
    saved, lost = ring.hops - tree.hops, tree.per_byte - ring.per_byte
    return tree, np.maximum(0.0, saved) / lost if np.any(lost) else math.inf


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


class Asked(NamedTuple):
    """A collective among all workers of the first nodes, by the name of its algorithm."""

    nodes: int
    per_node: int
    name: str
    primitive: Primitive = "all-reduce"


class Fabric(Protocol):
    """How the machines of a cluster are joined; hosts beyond its nodes are for servers."""

    def curve(self, links: Links, asked: Asked, near: Links | None = None) -> Curve:
        """Return the seconds of a collective against bytes, linear around links that are near."""

    def large_seconds(self, links: Links, asked: Asked, near: Links | None = None) -> float:
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
