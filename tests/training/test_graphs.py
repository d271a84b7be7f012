"""Graphs of gossiping workers: their weights, and how fast they mix."""

from __future__ import annotations

import numpy as np
import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.training.synchronisation.gossip import GRAPHS, Graph, make_graph, spectral_gap

# Derived, and equal for 4, 16 and 36 workers to Table 2 of arXiv 1902.00340.
GAPS = {
    "ring": {4: 0.67, 8: 0.195, 16: 0.051, 32: 0.0128, 36: 0.010, 64: 0.0032},
    "torus": {4: 0.67, 16: 0.40, 36: 0.20, 64: 0.117},
    "complete": {2: 1, 4: 1, 32: 1},
}
STAR = Graph("star", ((1, 2, 3), (0,), (0,), (0,)))


@pytest.mark.parametrize(
    ("name", "workers", "gap"), [(g, n, gap) for g, of in GAPS.items() for n, gap in of.items()]
)
def test_spectral_gaps_are_the_known_ones(name, workers, gap):
    digits = len(str(gap).partition(".")[2])
    assert spectral_gap(make_graph(name, workers)) == pytest.approx(gap, abs=0.51 * 10**-digits)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 8, 12])
@pytest.mark.parametrize("name", [*GRAPHS, "star"])
def test_weights_are_symmetric_and_doubly_stochastic(name, workers):
    graph = STAR if name == "star" else make_graph(name, workers)
    weights = graph.weights
    assert np.array_equal(weights, weights.T)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(0), 1)
    for rank, near in enumerate(graph.neighbours):
        assert set(np.flatnonzero(weights[rank])) == {rank, *near}


@pytest.mark.parametrize(
    ("name", "workers", "degree"),
    [
        ("ring", 1, 0),
        ("ring", 2, 1),
        ("ring", 3, 2),
        ("torus", 4, 2),
        ("torus", 7, 2),
        ("torus", 8, 3),
        ("torus", 9, 4),
        ("complete", 9, 8),
    ],
)
def test_degrees(name, workers, degree):
    graph = make_graph(name, workers)
    assert {graph.degree(rank) for rank in range(workers)} == {degree}


def test_the_gap_of_a_ring_falls_as_the_square_of_the_workers():
    gaps = [spectral_gap(make_graph("ring", n)) for n in (32, 64, 128)]
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.02)
    assert gaps[1] / gaps[2] == pytest.approx(4, rel=0.01)


def test_bad_graphs_are_named():
    with pytest.raises(UnknownName, match=r"'rings'.*did you mean 'ring'"):
        make_graph("rings", 4)
    with pytest.raises(InputError, match="workers 0"):
        make_graph("ring", 0)
