"""Matrices of traffic: rows against volumes and closed forms, links against played flows."""

from __future__ import annotations

import numpy as np
import pytest

from ddlnb.errors import InputError
from ddlnb.networks.flows import busiest_seconds, link_bytes
from ddlnb.networks.play import share
from ddlnb.networks.topologies import RailOptimised, Star, TwoTier
from ddlnb.parallelism.layout import Layout, position
from ddlnb.parallelism.model import Transformer, llama
from ddlnb.parallelism.simulated.iteration import play_iteration
from ddlnb.parallelism.simulated.seconds import LayoutNetwork
from ddlnb.parallelism.volumes import GroupExchange, exchanges, traffic_matrices

DENSE = llama("dense", 8, 256, 8, 8, 512, 64, 128).shape
EXPERTS = Transformer("experts", 8, 256, 8, 64, 128, experts=8, top_k=2).shape
LAYOUTS = [
    *("dp4", "tp4", "pp4 acc4", "pp2 vpp2 acc4", "cp4", "cp4 all-to-all", "dp4 zero3 acc2"),
    *("dp2 tp2 pp2 cp2 acc4 zero1", "dp8 ep4 tp2", "dp8 ep8 full", "dp6 tp2 order=dp-tp-cp-pp"),
]


@pytest.mark.parametrize("text", LAYOUTS)
def test_rows_are_what_each_rank_sends(text):
    layout = Layout.parse(text)
    model = EXPERTS if layout.ep > 1 else DENSE
    matrices = traffic_matrices(model, layout)
    for rank in range(layout.ranks):
        stage = position(layout, rank)["pp"]
        for axis in {one.axis for one in exchanges(model, layout, stage=stage)}:
            sent = sum(
                one.sent_bytes for one in exchanges(model, layout, stage=stage) if one.axis == axis
            )
            assert matrices[axis][rank].sum() == pytest.approx(sent)
    assert all(np.diag(matrix).sum() == 0 for matrix in matrices.values())


def test_everything_that_is_sent_is_received_by_the_next_stage():
    sent = traffic_matrices(DENSE, Layout.parse("pp4 acc3"))["pp"]
    message = 128 * 256 * 2  # sequence, hidden, bytes
    neighbours = np.eye(4, k=1) + np.eye(4, k=-1)
    assert sent.tolist() == (3 * message * neighbours).tolist()


@pytest.mark.parametrize("network", [TwoTier(2, 2, 4.0, 2), RailOptimised(2, 2)], ids=str)
def test_bytes_on_links_are_those_of_played_flows(network):
    network = network.network(1e9)
    matrix = np.random.default_rng(1).random((4, 4)) * (1 - np.eye(4))
    placement = [2, 0, 3, 1]
    pairs = np.argwhere(matrix)
    flows = [(placement[i], placement[j], matrix[i, j], 0.0) for i, j in pairs]
    played = share(network, flows)
    assert link_bytes(network, matrix, placement) == pytest.approx(played.link_bytes)
    assert busiest_seconds(network, matrix, placement) <= played.seconds * (1 + 1e-9)


def test_a_matrix_or_placement_that_does_not_fit_is_refused():
    network = Star(2).network(1e9)
    with pytest.raises(InputError, match=r"shape \(3, 3\) must be square, with at most the 2"):
        link_bytes(network, np.zeros((3, 3)))
    for placement in ([0, 0], [0, 2], [0]):
        with pytest.raises(InputError, match="an endpoint of its own"):
            link_bytes(network, np.zeros((2, 2)), placement)


@pytest.mark.parametrize("ranks", [3, 4])
def test_an_all_to_all_takes_what_a_rank_puts_in_but_for_its_own_part(ranks):
    links = LayoutNetwork(Layout(dp=ranks, ep=ranks), Star(ranks).network(1e9))
    one = GroupExchange("dispatch", "all-to-all", "ep", ranks, 1e9, 1, "forward")
    assert links.seconds(one) == pytest.approx((ranks - 1) / ranks)


def test_a_placement_is_a_relabelling():
    network = TwoTier(2, 4, 4.0).network(10e9)
    along = Layout.parse("dp2 tp4")
    across = Layout.parse("dp2 tp4 order=dp-tp-cp-pp")
    back = [place % 4 * 2 + place // 4 for place in range(8)]
    times = [
        play_iteration(DENSE, layout, network, 1e12, placement=placement).seconds("wait")
        for layout, placement in ((along, None), (across, None), (along, back))
    ]
    assert times[2] == pytest.approx(times[1])
    assert times[0] < times[1]
    with pytest.raises(InputError, match="an endpoint of its own"):
        LayoutNetwork(along, network, placement=[0] * 8)


def test_hierarchical_groups_use_every_rail_and_need_no_neighbouring_ranks():
    network = RailOptimised(2, 4).network(1e9)
    one = GroupExchange("gradients", "all-reduce", "data", 8, 1e9, 1, "update")
    mixed = [0, 4, 1, 5, 2, 6, 3, 7]
    found = {
        (name, order is None): LayoutNetwork(
            Layout(dp=8), network, placement=order, all_reduce=name
        )
        for name in ("ring", "hierarchical")
        for order in (None, mixed)
    }
    seconds = {key: links.seconds(one) for key, links in found.items()}
    inside, between = 2 * 3 / 4 / 8, 2 * 1 / 2 / 4  # bytes over the bandwidth of a rank's link
    assert seconds["hierarchical", True] == pytest.approx(inside + between)
    assert seconds["hierarchical", False] == pytest.approx(inside + between)
    assert seconds["ring", True] == pytest.approx(2 * 7 / 8)
    assert seconds["ring", False] >= seconds["ring", True]


def test_without_overlap_the_reduction_is_waited_for():
    network = Star(4).network(10e9)
    layout = Layout.parse("dp4")
    beside, after = (
        play_iteration(DENSE, layout, network, 1e12, overlap=overlap) for overlap in (True, False)
    )
    reduced = sum(span.seconds for span in after.spans if span.kind == "message")
    assert after.seconds("wait") == pytest.approx(reduced)
    assert beside.seconds("wait") < after.seconds("wait")
