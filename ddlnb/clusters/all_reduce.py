"""The load that an all-reduce puts on the links of a cluster, by algorithm.

`Cluster.cost` turns a load into seconds. The closed forms of `ddlnb.plans.alpha_beta` know no
cluster: they are what a plan assumes of links that are all alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ddlnb.plans.alpha_beta import double_tree_share, tree_levels


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


ALL_REDUCES = {
    "ring": ring,
    "tree": tree,
    "double-tree": double_tree,
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
    >>> round(threshold / 1e6, 1)
    9.2
    """
    tree = Form(tree.hops, ring.per_byte / TREE_RATE, ring.share)
    saved, lost = ring.hops - tree.hops, tree.per_byte - ring.per_byte
    return tree, max(0.0, saved) / lost if lost else math.inf
