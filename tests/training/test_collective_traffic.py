"""Traffic of all-reduces: what the formulas count, against the algorithms run on small arrays.

A message has one element for each part it is cut into. Ranks stand node by node. Of every hop the
wires note its kind (inside or between nodes), the element that made it, and the ports that it went
through: a rank's own inside its node, those of the two nodes between them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ddlnb.clusters.all_reduce import double_tree, hierarchical, ring, tree

LAYOUTS = [(nodes, per_node) for nodes in (1, 2, 3, 4, 5, 8) for per_node in (1, 2, 3, 4, 8)]
layouts = pytest.mark.parametrize(("nodes", "per_node"), LAYOUTS)


class Wires:
    """Every rank's vector, and what was carried between them."""

    def __init__(self, nodes, per_node, elements):
        ranks = nodes * per_node
        self.per_node, self.elements = per_node, elements
        self.vectors = np.random.default_rng(0).integers(-99, 99, (ranks, elements))
        self.expected = self.vectors.sum(axis=0)
        self.hops = Counter()
        self.rounds = Counter()
        self.through = Counter()

    def round(self, transfers, *, add):
        """Transfers (from, to, elements) that happen at the same time, added or copied there."""
        sent = [self.vectors[source, part].copy() for source, _, part in transfers]
        kinds = set()
        for (source, target, part), values in zip(transfers, sent, strict=True):
            self.vectors[target, part] = values + (self.vectors[target, part] if add else 0)
            ports, kind = (source, target), "inside"
            if source // self.per_node != target // self.per_node:
                ports, kind = (source // self.per_node, target // self.per_node), "between"
            kinds.add(kind)
            for element in part:
                self.hops[kind, element] += 1
            self.through[kind, ports[0], "out"] += len(part)
            self.through[kind, ports[1], "in"] += len(part)
        self.rounds.update(kinds)
        return kinds

    def is_everywhere_the_sum(self):
        return (self.vectors == self.expected).all()

    def messages_through(self, kind):
        """Multiples of the message through every port of a kind in each direction."""
        return {key[1:]: n / self.elements for key, n in self.through.items() if key[0] == kind}

    def busiest(self, kind):
        return max(self.messages_through(kind).values(), default=0.0)


def reduce_scatter(wires, rings, parts):
    """Every ring sums its parts: afterwards its i-th member has the sum of part i + 1."""
    n = len(parts[0])
    kinds = []
    for step in range(n - 1):
        transfers = [
            (members[i], members[(i + 1) % n], part[(i - step) % n])
            for members, part in zip(rings, parts, strict=True)
            for i in range(n)
        ]
        kinds.append(wires.round(transfers, add=True))
    return kinds


def all_gather(wires, rings, parts):
    """Every ring hands round its parts, of which the i-th member has part i + 1."""
    n = len(parts[0])
    kinds = []
    for step in range(n - 1):
        transfers = [
            (members[i], members[(i + 1) % n], part[(i + 1 - step) % n])
            for members, part in zip(rings, parts, strict=True)
            for i in range(n)
        ]
        kinds.append(wires.round(transfers, add=False))
    return kinds


@pytest.mark.item("A30")
@layouts
def test_a_ring_carries_what_its_formula_counts(nodes, per_node):
    """The bytes are exact on every link; the hops between nodes are those of an average chunk."""
    n = nodes * per_node
    wires, traffic = Wires(nodes, per_node, n), ring(nodes, per_node)
    everyone, chunks = [range(n)], [[[chunk] for chunk in range(n)]]
    kinds = reduce_scatter(wires, everyone, chunks) + all_gather(wires, everyone, chunks)
    assert wires.is_everywhere_the_sum()
    for kind, hops, carried in (
        ("inside", traffic.inside_hops, traffic.inside_bytes),
        ("between", traffic.between_hops, traffic.between_bytes),
    ):
        of_chunk = [wires.hops[kind, chunk] for chunk in range(n)]
        assert np.mean(of_chunk) == pytest.approx(hops)
        assert all(abs(count - hops) < 1 for count in of_chunk)
        assert all(b == pytest.approx(carried) for b in wires.messages_through(kind).values())
        assert (carried > 0) == any(of_chunk)
    assert len(kinds) == 2 * (n - 1) == traffic.inside_hops + traffic.between_hops
    # In every step links of both kinds are at work: their times overlap.
    assert all(step == kinds[0] for step in kinds)
    assert traffic.overlaps


def test_single_chunks_of_a_ring_cross_nodes_more_or_less_often_than_the_average_one():
    wires, everyone, chunks = Wires(2, 4, 8), [range(8)], [[[chunk] for chunk in range(8)]]
    reduce_scatter(wires, everyone, chunks)
    all_gather(wires, everyone, chunks)
    assert sorted(wires.hops["between", chunk] for chunk in range(8)) == [3, 3, 3, 3, 4, 4, 4, 4]
    assert ring(2, 4).between_hops == 3.5


def binomial(ranks):
    """Rounds of (child, parent), leaves first, that reduce to the first rank."""
    rounds, distance = [], 1
    while distance < len(ranks):
        pairs = [(i + distance, i) for i in range(0, len(ranks) - distance, 2 * distance)]
        rounds.append([(ranks[child], ranks[parent]) for child, parent in pairs])
        distance *= 2
    return rounds


@layouts
def test_a_tree_moves_the_whole_message_once_in_every_level(nodes, per_node):
    """Hops and bytes are exact. The root receives a message in every level and later sends one.

    Reduce and broadcast follow one another, so the bytes are those of both directions together.
    """
    wires, traffic = Wires(nodes, per_node, 1), tree(nodes, per_node)
    trees = [binomial(range(node * per_node, (node + 1) * per_node)) for node in range(nodes)]
    up = [[pair for level in levels for pair in level] for levels in zip(*trees, strict=True)]
    up += binomial(range(0, nodes * per_node, per_node))
    kinds = [wires.round([(a, b, [0]) for a, b in level], add=True) for level in up]
    kinds += [wires.round([(b, a, [0]) for a, b in level], add=False) for level in up[::-1]]
    assert wires.is_everywhere_the_sum()
    for kind, hops, carried in (
        ("inside", traffic.inside_hops, traffic.inside_bytes),
        ("between", traffic.between_hops, traffic.between_bytes),
    ):
        through = wires.messages_through(kind)
        assert wires.rounds[kind] == hops
        assert through.get((0, "in"), 0) + through.get((0, "out"), 0) == carried
        assert wires.busiest(kind) == carried / 2
    assert all(len(step) == 1 for step in kinds)
    assert not traffic.overlaps


def in_order_tree(first, last):
    """(root, parents) of a binary tree over first .. last in which every second one is a leaf."""
    if first == last:
        return first, {}
    pairs = (last - first) // 2
    root = first + 2 * ((pairs + 1) // 2) - 1
    left, parents = in_order_tree(first, root - 1)
    right, others = in_order_tree(root + 1, last)
    return root, parents | others | {left: root, right: root}


def complementary_trees(n):
    """Two binary trees over n ranks, as parents, whose inner nodes are different ranks."""
    root, parents = in_order_tree(0, n - 1 if n % 2 else n - 2)
    if n % 2 == 0:
        parents[root] = n - 1
        return parents, {n - 1 - a: n - 1 - b for a, b in parents.items()}
    return parents, {(a + 1) % n: (b + 1) % n for a, b in parents.items()}


def depth_of(rank, parents):
    return 1 + depth_of(parents[rank], parents) if rank in parents else 0


@pytest.mark.item("A31")
@pytest.mark.parametrize("n", range(2, 34))
def test_no_rank_is_an_inner_node_of_both_trees(n):
    first, second = complementary_trees(n)
    for parents in (first, second):
        assert len(parents) == n - 1
        assert max(Counter(parents.values()).values()) <= 2
    assert not set(first.values()) & set(second.values())


def up_and_down(wires, parents, ranks, element):
    """Reduce along a tree over these ranks and the way back: rounds to be put between others."""
    depth = {rank: depth_of(rank, parents) for rank in range(len(ranks))}
    levels = range(max(depth.values()), 0, -1)
    up = [[(r, p, element) for r, p in parents.items() if depth[r] == level] for level in levels]
    return [[(ranks[r], ranks[p], [e]) for r, p, e in level] for level in up]


@pytest.mark.item("A31")
@layouts
def test_a_double_tree_stays_within_its_bounds(nodes, per_node):
    """Both numbers are bounds: 2 M is reached from 4 ranks on, the hops where ranks are even.

    Each half goes up its own tree in every node, over the trees between the nodes' roots, and back.
    """
    wires, traffic = Wires(nodes, per_node, 2), double_tree(nodes, per_node)
    for half in (0, 1):
        inside = complementary_trees(per_node)[half] if per_node > 1 else {}
        between = complementary_trees(nodes)[half] if nodes > 1 else {}
        root = next(rank for rank in range(per_node) if rank not in inside)
        groups = [range(node * per_node, (node + 1) * per_node) for node in range(nodes)]
        ways = [up_and_down(wires, inside, ranks, half) for ranks in groups]
        up = [[hop for level in levels for hop in level] for levels in zip(*ways, strict=True)]
        up += up_and_down(wires, between, range(root, nodes * per_node, per_node), half)
        for level in up:
            wires.round(level, add=True)
        for level in up[::-1]:
            wires.round([(b, a, part) for a, b, part in level], add=False)
    assert wires.is_everywhere_the_sum()
    for kind, ranks, hops, carried in (
        ("inside", per_node, traffic.inside_hops, traffic.inside_bytes),
        ("between", nodes, traffic.between_hops, traffic.between_bytes),
    ):
        shorter = 2 if ranks % 2 and ranks > 1 else 0
        assert wires.rounds[kind] / 2 == hops - shorter
        assert wires.busiest(kind) <= carried
        assert wires.busiest(kind) == carried or ranks < 4
    assert traffic.overlaps


@layouts
def test_a_hierarchy_carries_in_every_phase_what_its_formula_counts(nodes, per_node):
    """Hops and bytes are exact; the rings of a node's GPUs meet on the card of the node."""
    wires, traffic = Wires(nodes, per_node, nodes * per_node), hierarchical(nodes, per_node)
    shards = [list(range(i * nodes, (i + 1) * nodes)) for i in range(per_node)]
    in_node = [range(node * per_node, (node + 1) * per_node) for node in range(nodes)]
    across = [range(gpu, nodes * per_node, per_node) for gpu in range(per_node)]
    owned = [[[e] for e in shards[(gpu + 1) % per_node]] for gpu in range(per_node)]
    kinds = reduce_scatter(wires, in_node, [shards] * nodes)
    kinds += reduce_scatter(wires, across, owned)
    kinds += all_gather(wires, across, owned)
    kinds += all_gather(wires, in_node, [shards] * nodes)
    assert wires.is_everywhere_the_sum()
    for kind, hops, carried in (
        ("inside", traffic.inside_hops, traffic.inside_bytes),
        ("between", traffic.between_hops, traffic.between_bytes),
    ):
        assert wires.rounds[kind] == hops
        assert all(b == pytest.approx(carried) for b in wires.messages_through(kind).values())
        assert wires.busiest(kind) == pytest.approx(carried)
    assert all(len(step) == 1 for step in kinds)
    assert not traffic.overlaps


@pytest.mark.parametrize("traffic", [ring, tree, double_tree, hierarchical])
def test_a_worker_alone_carries_nothing(traffic):
    alone = traffic(1, 1)
    assert alone.inside_hops == alone.between_hops == 0
    assert alone.inside_bytes == alone.between_bytes == 0
