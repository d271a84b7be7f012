"""Lists of transfers, counted, against the closed forms that plans and clusters use."""

import numpy as np
import pytest

from ddlnb.clusters import fabric as all_reduce
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans import alpha_beta
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.transfers import Collective
from ddlnb.units import KIB, MIB, MS, US

LINK = AlphaBeta(1e-3, 1e-9)
LAYOUTS = [(nodes, per_node) for nodes in (1, 2, 3, 4, 5, 8) for per_node in (1, 2, 4, 8)]


@pytest.mark.item("A30")
@pytest.mark.parametrize("workers", range(1, 34))
def test_a_ring_and_servers_cost_what_plans_assume(workers):
    """Thakur et al. 2005."""
    found = get_collective("ring", workers).cost(LINK)
    assert found == alpha_beta.ring_all_reduce(LINK, workers)
    for servers in (1, 2, 4, 16):
        made = get_collective(f"parameter-servers({servers})", workers)
        expected = alpha_beta.push_pull(AlphaBeta(1, 1), workers, servers)
        assert made.steps == expected.latency_seconds
        assert made.bytes_sent(1.0).max() == pytest.approx(expected.seconds_per_byte)


@pytest.mark.item("A30", "A36")
@pytest.mark.parametrize(
    ("name", "size", "milliseconds"),
    [
        ("ring", MIB, 7.72),
        ("torus(4, 8)", MIB, 3.70),
        ("halving-doubling", MIB, 2.75),
        ("recursive-doubling", MIB, 5.10),
        ("ring", 16 * KIB, 5.95),
        ("recursive-doubling", 16 * KIB, 0.55),
    ],
)
def test_costs_among_32_workers_on_10gbe(name, size, milliseconds):
    """With the survey's a and b of 10GbE (section 2, fitted); values worked out by hand."""
    cost = get_collective(name, 32).cost(AlphaBeta(95.6 * US, 0.8816e-9))
    assert cost.seconds(size) / MS == pytest.approx(milliseconds, abs=0.006)


def crossing(collective: Collective, per_node: int) -> tuple[float, float]:
    """Return the multiples of the message through the busiest port inside nodes and between."""
    rows = collective.transfers
    parts = rows["stop"] - rows["first"]
    nodes = rows["source"] // per_node, rows["target"] // per_node
    leaves = nodes[0] != nodes[1]
    busiest = [
        max(
            np.bincount(port[chosen], parts[chosen], minlength=1).max()
            for port in (ports[0], ports[1])
        )
        for ports, chosen in (((rows["source"], rows["target"]), ~leaves), (nodes, leaves))
    ]
    return busiest[0] / collective.parts, busiest[1] / collective.parts


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
@pytest.mark.parametrize(("nodes", "per_node"), LAYOUTS)
def test_links_carry_what_clusters_count(name, nodes, per_node):
    made = get_collective(name, nodes * per_node, per_node=per_node)
    load = all_reduce.ALL_REDUCES[name](nodes, per_node)
    inside, between = crossing(made, per_node)
    assert inside == pytest.approx(load.inside_bytes)
    assert between == pytest.approx(load.between_bytes)
    assert made.steps == pytest.approx(load.inside_hops + load.between_hops)


@pytest.mark.item("A31")
@pytest.mark.parametrize("kind", ["inside", "between"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8, 16])
def test_trees_carry_what_clusters_count(workers, kind):
    """Whole messages: half of a tree's bytes go each way. The double tree's numbers are bounds."""
    layout, per_node = ((1, workers), workers) if kind == "inside" else ((workers, 1), 1)

    def counted(load: all_reduce.Load) -> tuple[float, float]:
        return getattr(load, f"{kind}_hops"), getattr(load, f"{kind}_bytes")

    def carried(collective: Collective) -> float:
        return crossing(collective, per_node)[kind == "between"]

    tree, double = get_collective("tree", workers), get_collective("double-tree(1)", workers)
    assert (tree.steps, 2 * carried(tree)) == counted(all_reduce.tree(*layout))
    hops, bytes_ = counted(all_reduce.double_tree(*layout))
    assert double.steps in (hops, hops - 2 * (workers % 2))
    assert carried(double) <= bytes_
    assert carried(double) == bytes_ or workers < 4


@pytest.mark.parametrize("name", ["tree", "double-tree", "hierarchical"])
@pytest.mark.parametrize(("nodes", "per_node"), LAYOUTS)
def test_links_inside_nodes_and_between_them_count_on_their_own(name, nodes, per_node):
    load = all_reduce.ALL_REDUCES[name]
    both, inside, between = load(nodes, per_node), load(1, per_node), load(nodes, 1)
    assert both.inside_hops == inside.inside_hops
    assert both.between_hops == between.between_hops
    assert both.inside_bytes == pytest.approx(inside.inside_bytes)
    assert both.between_bytes == pytest.approx(between.between_bytes)
    assert both.overlaps == (name == "double-tree")


@pytest.mark.item("A31")
def test_a_double_tree_has_the_latency_of_a_tree_and_nearly_the_bytes_of_a_ring():
    for workers in (8, 64, 512):
        tree, double = get_collective("tree", workers), get_collective("double-tree", workers)
        assert double.steps == tree.steps + 7  # of which the blocks behind the first take 7
        assert double.bytes_sent(1.0).max() == 2.0
        in_blocks = get_collective("double-tree(256)", workers)
        assert in_blocks.cost(AlphaBeta(0, 1)).seconds_per_byte < 2.2
