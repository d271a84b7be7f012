"""Double binary tree: two trees, each for one half, in which nobody is an inner node twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm, Numbers, joined
from ddlnb.plans.transfers import Collective, Primitive, Transfers, transfers


@dataclass(frozen=True)
class DoubleTree(Algorithm):
    """Each half goes up its own binary tree and the sum down, in ``blocks`` that follow each other.

    About 2 log2 n + blocks - 1 steps; 2 M bytes from 4 workers on, for a rank is an inner node of
    one tree and a leaf of the other. Over several nodes, which must be full, the trees are of
    nodes, and the ranks of each node form a chain. Source: Sanders, Speck and Träff 2009; NCCL from
    2.4 on.
    """

    blocks: int = 8

    name = "double-tree"
    knows_nodes = True

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that there must be blocks, if there are none."""
        if self.blocks > 0:
            return ""
        return f"double-tree({self.blocks}) sends {self.blocks} blocks; give at least 1"

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers."""
        nodes = workers // per_node
        trees = complementary_trees(workers if nodes == 1 else nodes)
        if nodes > 1:
            trees = chained(trees, per_node)
        rows = [
            up_and_down(parents, half * self.blocks, self.blocks)
            for half, parents in enumerate(trees)
        ]
        return self.made(primitive, workers, 2 * self.blocks, *rows)


def up_and_down(parents: Numbers, first: int, blocks: int) -> Transfers:
    """Reduce parts to the root and send them back, the next one a step behind; root's parent -1."""
    child = np.flatnonzero(parents >= 0)
    if not len(child):
        return joined()
    depth = depths(parents)
    most, level = int(depth.max()), depth[child][:, None]
    part = np.arange(blocks)[None, :]
    source, target = child[:, None], parents[child][:, None]
    up = transfers(most - level + part, source, target, first + part, first + part + 1, True)
    way_down = most + level - 1 + part
    down = transfers(way_down, target, source, first + part, first + part + 1, False)
    return joined(up, down)


def chained(trees: tuple[Numbers, Numbers], per_node: int) -> tuple[Numbers, Numbers]:
    """Return trees of nodes as trees of their ranks: the first rank, or the last, leads a chain.

    >>> [tree.tolist() for tree in chained(complementary_trees(2), 2)]
    [[2, 0, -1, 2], [1, -1, 3, 1]]
    """
    found = []
    for leader, step, parents in ((0, -1, trees[0]), (per_node - 1, 1, trees[1])):
        ranks = np.arange(len(parents) * per_node).reshape(-1, per_node)
        above = ranks + step
        above[:, leader] = np.where(parents >= 0, parents * per_node + leader, -1)
        found.append(above.ravel())
    return found[0], found[1]


def complementary_trees(workers: int) -> tuple[Numbers, Numbers]:
    """Return two binary trees as parents (the root's is -1) whose inner nodes are different ranks.

    The first is in order, with every second rank a leaf; the second is its mirror image for an even
    number of workers, and itself shifted by one rank for an odd one.

    >>> [tree.tolist() for tree in complementary_trees(4)]
    [[1, 3, 1, -1], [-1, 2, 0, 2]]
    """
    parents = np.full(workers, -1)
    root = _in_order(parents, 0, workers - 1 if workers % 2 else workers - 2)
    if workers % 2 == 0:
        parents[root] = workers - 1
        mirrored = parents[::-1]
        return parents, np.where(mirrored < 0, -1, workers - 1 - mirrored)
    shifted = np.roll(parents, 1)
    return parents, np.where(shifted < 0, -1, (shifted + 1) % workers)


def _in_order(parents: Numbers, first: int, last: int) -> int:
    """Return the root of a binary tree over an odd number of ranks, and note the parents."""
    if first == last:
        return first
    pairs = (last - first) // 2
    root = first + 2 * ((pairs + 1) // 2) - 1
    parents[_in_order(parents, first, root - 1)] = root
    parents[_in_order(parents, root + 1, last)] = root
    return root


def depths(parents: Numbers) -> Numbers:
    """Return how far below its root every rank is."""
    depth, above = np.zeros_like(parents), parents
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return depth
