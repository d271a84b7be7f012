"""The player of dependencies against networkx, which knows nothing of levels."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from ddlnb.traces.longest_path import Cyclic, Dependencies, EarliestTimes, critical_path


def random_graph(seed, nodes=60, edges=200):
    draw = np.random.default_rng(seed)
    ends = np.sort(draw.integers(0, nodes, (edges, 2)), axis=1)
    ends = ends[ends[:, 0] < ends[:, 1]]
    shuffled = draw.permutation(nodes)
    graph = Dependencies(nodes, *shuffled[ends].T, draw.random(len(ends)))
    return graph, draw.random(nodes)


def by_networkx(graph, delays):
    """Return the instants by plain recursion in topological order."""
    plain = nx.MultiDiGraph()
    plain.add_nodes_from(range(graph.nodes))
    for before, after, lag in zip(graph.before, graph.after, graph.lag, strict=True):
        plain.add_edge(int(before), int(after), lag=lag)
    at = np.array(delays, dtype=float)
    for node in nx.topological_sort(plain):
        arrives = [at[b] + d["lag"] for b, _, d in plain.in_edges(node, data=True)]
        at[node] = delays[node] + max(arrives, default=0.0)
    return at


@pytest.mark.parametrize("seed", range(20))
def test_instants_are_those_of_networkx(seed):
    graph, delays = random_graph(seed)
    at = EarliestTimes(graph)(delays)
    np.testing.assert_allclose(at, by_networkx(graph, delays), rtol=1e-12)


def test_scenarios_side_by_side_are_those_one_by_one():
    graph, delays = random_graph(3)
    player = EarliestTimes(graph)
    both = player(np.stack([delays, 2 * delays]))
    np.testing.assert_array_equal(both, [player(delays), player(2 * delays)])


@pytest.mark.parametrize("seed", range(5))
def test_the_critical_path_is_as_long_as_the_whole(seed):
    graph, delays = random_graph(seed)
    at = EarliestTimes(graph)(delays)
    path = critical_path(graph, at, delays)
    lag = {(int(b), int(a)): 0.0 for b, a in zip(graph.before, graph.after, strict=True)}
    for before, after, seconds in zip(graph.before, graph.after, graph.lag, strict=True):
        lag[int(before), int(after)] = max(lag[int(before), int(after)], seconds)
    length = delays[path].sum() + sum(lag[edge] for edge in pairwise(path))
    assert length == pytest.approx(at.max())


def test_a_circle_is_refused_and_its_nodes_are_named():
    circle = Dependencies(4, np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3]), np.zeros(4))
    with pytest.raises(Cyclic) as raised:
        EarliestTimes(circle)
    assert raised.value.nodes.tolist() == [1, 2, 3]


def test_nodes_without_edges_come_at_their_own_delay():
    nothing = np.zeros(0, dtype=np.int64)
    graph = Dependencies(2, nothing, nothing, np.zeros(0))
    assert EarliestTimes(graph)(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
