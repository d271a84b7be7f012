"""NCCL's choice of an all-reduce, and what a message's seconds are made of."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddlnb.clusters.cluster import DOUBLING_ERROR, Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.clusters.fabric import NCCL, TREE_RATE
from ddlnb.clusters.named import cluster_of
from ddlnb.simulator.draws import model_errors
from ddlnb.simulator.simulate import Cell
from ddlnb.survey.testbed import fig4_workload

EFFECTS = Effects(
    inside_latency=5e-6,
    inside_bandwidth=5e9,
    between_latency=50e-6,
    between_bandwidth=2.5e9,
    operation_latency=40e-6,
)
SIZES = np.geomspace(4, 1e9, 60)


def cluster(nodes: int = 8, all_reduce: str = NCCL, **effects: float) -> Cluster:
    return Cluster("c", "net", nodes, 4, EFFECTS.but(**effects), all_reduce=all_reduce)


def seconds(on: Cluster, sizes: np.ndarray = SIZES) -> np.ndarray:
    latency, work, _ = on.all_reduce_work(sizes)
    return latency + work


@pytest.mark.parametrize("nodes", [2, 4, 8, 64])
def test_nccl_takes_trees_for_small_messages_and_rings_for_large_ones(nodes):
    chosen, ring, tree = (cluster(nodes, name) for name in (NCCL, "ring", "double-tree"))
    small = chosen.tree_threshold >= SIZES
    assert small.any()
    assert not small.all()
    assert seconds(chosen)[~small] == pytest.approx(seconds(ring)[~small])
    hops = tree.all_reduce_seconds[0]
    rate = ring.all_reduce_seconds[1] / TREE_RATE
    assert seconds(chosen)[small] == pytest.approx(hops + rate * SIZES[small])


@given(st.integers(1, 6), st.floats(1e-7, 1e-3), st.floats(1e8, 1e11))
def test_the_choice_is_never_slower_than_a_ring_and_seconds_do_not_jump(levels, hop, rate):
    on = cluster(2**levels, between_latency=hop, between_bandwidth=rate)
    assert (seconds(on) <= seconds(replace(on, all_reduce="ring")) * (1 + 1e-9)).all()
    at = on.tree_threshold
    if 0 < at < math.inf:
        below, above = seconds(on, np.array([at * (1 - 1e-9), at * (1 + 1e-9)]))
        assert below == pytest.approx(above)


@given(st.integers(1, 6), st.floats(1e-7, 1e-3), st.floats(1, 8))
def test_a_tree_that_nccl_takes_too_long_loses_no_more_than_its_rate(levels, hop, parts):
    """NCCL's estimate knows nothing of parts in flight, which hide the ring's hops first."""
    on = cluster(2**levels, between_latency=hop, parts_in_flight=parts)
    ring = seconds(replace(on, all_reduce="ring"))
    assert (seconds(on) <= ring / TREE_RATE * (1 + 1e-9)).all()


def test_more_nodes_take_trees_for_larger_messages_and_one_node_takes_none():
    thresholds = [cluster(nodes).tree_threshold for nodes in (1, 2, 4, 8, 16)]
    assert thresholds[0] == 0
    assert thresholds == sorted(thresholds)
    one = cluster(1)
    assert seconds(one) == pytest.approx(seconds(replace(one, all_reduce="ring")))


@given(st.floats(1, 8), st.sampled_from([1, 2, 8]))
def test_latencies_pass_while_the_other_parts_are_sent(parts, nodes):
    """Seconds are those of the longer: all bytes, or all hops and one part of the bytes."""
    whole = cluster(nodes, "ring")
    hops = whole.all_reduce_seconds[0] - EFFECTS.operation_latency
    work = whole.all_reduce_seconds[1] * SIZES
    expected = EFFECTS.operation_latency + np.maximum(work, hops + work / parts)
    assert seconds(cluster(nodes, "ring", parts_in_flight=parts)) == pytest.approx(expected)


@given(st.floats(1, 8), st.sampled_from([1, 2, 8]))
def test_halves_and_gathers_hide_as_much_of_their_hops_as_the_whole(parts, nodes):
    ring = cluster(nodes, "ring", parts_in_flight=parts)
    software, half = EFFECTS.operation_latency, (seconds(ring) - EFFECTS.operation_latency) / 2
    for primitive in ("reduce-scatter", "all-gather"):
        latency, work, _ = ring.half_work(primitive, SIZES)
        assert latency + work - software == pytest.approx(half)
    latency, work = ring.gather_work(SIZES / ring.workers)
    assert latency + work - software == pytest.approx(half)


def test_a_collective_has_one_connection_whose_rate_falls_with_the_nodes():
    def per_byte(nodes: int, **effects: float) -> float:
        return cluster(nodes, "ring", inside_bandwidth=1e12, **effects).all_reduce_seconds[1]

    share = 2 * 31 / 32
    assert per_byte(8) == pytest.approx(share / 2.5e9)
    assert per_byte(8, stream_bandwidth=1e9) == pytest.approx(share / 1e9)
    assert per_byte(8, stream_bandwidth=1e10) == per_byte(8)
    assert per_byte(8, doubling_share=0.9) == pytest.approx(share / 2.5e9 / 0.9**2)
    assert per_byte(2, doubling_share=0.9) == per_byte(2)


def test_coordination_by_a_tree_costs_as_many_times_as_ranks_double():
    def latency(workers: int) -> float:
        return cluster(8, level_latency=1.0).with_workers(workers).cost.latency_seconds

    assert round(latency(4)) == 2
    assert round(latency(32)) == 5


def test_on_a_graph_nccl_has_the_quicker_of_ring_and_double_tree():
    ring, tree, chosen = (
        seconds(replace(cluster(4, name), topology="star(4)"))
        for name in ("ring", "double-tree", NCCL)
    )
    assert chosen == pytest.approx(np.minimum(ring, tree), rel=0.02)


def test_less_is_known_of_more_workers_than_were_fitted():
    fitted = replace(cluster(8), model_error=0.03, fitted_workers=8)
    errors = [fitted.with_workers(workers).error for workers in (4, 8, 16, 32)]
    grown = [math.hypot(0.03, DOUBLING_ERROR * doublings) for doublings in (0, 0, 1, 2)]
    assert errors == pytest.approx(grown)
    assert replace(fitted, fitted_workers=0).error == 0.03
    cells = [Cell(fig4_workload("resnet50"), on, "BSP-A2A") for on in (fitted, cluster(8))]
    spread = np.log(model_errors(cells, 4000, 0)).std(axis=0)
    assert spread == pytest.approx([fitted.error, cluster(8).error], rel=0.05)


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "double-tree"])
def test_a_switch_that_is_named_sends_large_messages_as_one_that_is_not(nodes, name):
    """Trees of nodes whose ranks are chains: a binary tree of all ranks crosses nodes twice."""
    alone = cluster_of("A100", nodes, 8, "25GbE")
    alone = replace(alone, all_reduce=name)
    named = replace(alone, topology=f"star({nodes})")
    assert named.cost.seconds(1e9) == pytest.approx(alone.cost.seconds(1e9), rel=0.25)
    twice = 2e9 / alone.effects.between_bandwidth
    assert named.cost.seconds(1e9) < 1.25 * twice


def test_a_gather_within_a_node_is_that_half_of_a_ring():
    on = cluster(1)
    _, work = on.gather_work(SIZES / on.workers)
    _, half, _ = replace(on, all_reduce="ring").half_work("all-gather", SIZES)
    assert work == pytest.approx(half)
