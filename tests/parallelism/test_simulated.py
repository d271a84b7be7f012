"""Played iterations and traffic: against the bare schedule, closed forms and volumes."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ddlnb.errors import InputError
from ddlnb.networks.flows import busiest_seconds, link_bytes
from ddlnb.networks.play import share
from ddlnb.networks.topologies import RailOptimised, Star, TwoTier, with_islands
from ddlnb.parallelism.iteration import parts_of, play_iteration
from ddlnb.parallelism.layout import AXES, Layout, position
from ddlnb.parallelism.machines import LayoutNetwork, machines_of
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.parallelism.volumes import GroupExchange, exchanges, traffic_matrices

FLOPS = 1e12
MODEL = Transformer("small", 8, 256, 8, 16, 128).shape
MIXTURE = Transformer("mixture", 8, 256, 8, 16, 128, experts=8, top_k=2).shape
NODES = with_islands(Star(4).network(10e9, 5e-6), 4, 100e9, 1e-6)
LAYOUTS = (
    *("dp1", "dp4 acc2", "dp4 zero1", "dp4 zero2 acc2", "dp4 zero3 acc2", "tp4", "tp4 sp"),
    *("pp4 acc8", "pp4 gpipe acc4", "pp2 vpp2 acc4", "pp4 zero-bubble acc8", "cp4"),
    *("cp4 all-to-all", "dp2 tp2 pp2 acc4 zero1", "dp2 tp2 pp4 acc4 full", "tp2 full"),
)


def seconds(model, text, network=NODES, flops=FLOPS):
    return sum(parts_of(play_iteration(model, Layout.parse(text), network, flops)).values())


@pytest.mark.parametrize("text", LAYOUTS)
def test_every_layout_is_played_and_its_parts_add_up(text):
    line = play_iteration(MODEL, Layout.parse(text), NODES, FLOPS)
    end = max(span.stop_seconds for span in line.spans)
    for rank in range(Layout.parse(text).pp):
        compute = sorted(
            (span for span in line.spans if span.rank == rank and span.lane == "compute"),
            key=lambda span: span.start_seconds,
        )
        assert compute[0].start_seconds == 0
        for one, following in pairwise(compute):
            assert one.stop_seconds == following.start_seconds
        assert compute[-1].stop_seconds == end
    json.dumps(line.to_chrome_trace())
    parts = parts_of(line)
    assert sum(parts.values()) == pytest.approx(end)
    layout = Layout.parse(text)
    flops = MODEL.iteration_flops(layout.samples, layout.recomputation) / layout.ranks
    assert parts["computation"] == pytest.approx(flops / FLOPS)


@pytest.mark.parametrize("text", ["pp4 acc8", "pp4 gpipe acc4", "pp4 zero-bubble acc8"])
def test_without_costs_of_messages_it_is_the_bare_schedule(text):
    layout = Layout.parse(text)
    free = Star(4).network(1e30)
    line = play_iteration(MODEL, layout, free, FLOPS, memory_bandwidth=1e30)
    layer = MODEL.block_layers[0]
    flops, core = layer.forward_flops * 2 / FLOPS, layer.core_flops * 2 / FLOPS
    assert core > 0  # attention has no gradients of weights (2401.10241, Table 1)
    inputs = flops + core if layout.schedule == "zero-bubble" else 2 * flops
    bare = play(
        schedule(layout.schedule, 4, layout.micro_batches),
        {"F": flops, "B": inputs, "W": flops - core},
    )
    assert sum(parts_of(line).values()) == pytest.approx(bare.seconds, rel=0.01)  # and the head


def test_waits_have_the_names_of_their_axes():
    for text, model, reasons in (
        ("dp1", MODEL, set()),
        ("tp4", MODEL, {"tp"}),
        ("cp4", MODEL, {"cp", "data"}),
        ("dp4 ep4", MIXTURE, {"ep", "data"}),
        ("pp4 acc4", MODEL, {"bubble"}),
    ):
        parts = parts_of(play_iteration(model, Layout.parse(text), NODES, FLOPS))
        assert set(parts) - {"computation", "update"} == reasons


def test_experts_are_updated_once_however_they_are_spread():
    def update(text: str) -> float:
        return parts_of(play_iteration(MIXTURE, Layout.parse(text), NODES, FLOPS))["update"]

    assert update("dp4 ep4 zero1") == pytest.approx(update("dp4 zero1"), rel=1e-6)
    assert update("dp4 ep2 zero1") == pytest.approx(update("dp4 zero1"), rel=1e-6)
    assert update("dp4 ep4") < update("dp4")


@pytest.mark.parametrize("text", ["tp4", "tp4 sp", "tp2 full", "cp4 all-to-all", "cp4"])
def test_what_is_waited_for_is_what_the_volumes_say(text):
    layout = Layout.parse(text)
    links = LayoutNetwork(layout, NODES)
    axis = "tp" if layout.tp > 1 else "cp"
    told = sum(
        one.times * links.seconds(one) for one in exchanges(MODEL, layout) if one.axis == axis
    )
    parts = parts_of(play_iteration(MODEL, layout, NODES, FLOPS))
    assert parts[axis] == pytest.approx(told)


@given(st.sampled_from(LAYOUTS), st.floats(1.1, 10))
@settings(max_examples=15)
def test_more_bandwidth_and_more_flops_never_hurt(text, factor):
    faster = with_islands(Star(4).network(10e9 * factor, 5e-6), 4, 100e9 * factor, 1e-6)
    plain = seconds(MODEL, text)
    assert seconds(MODEL, text, faster) <= plain * (1 + 1e-9)
    assert seconds(MODEL, text, flops=FLOPS * factor) <= plain * (1 + 1e-9)


@given(st.permutations(AXES), st.sampled_from(["dp2 tp2 pp2 acc4 zero1", "dp2 cp2 tp2 zero3"]))
@settings(max_examples=15)
def test_where_all_links_are_alike_it_does_not_matter_which_rank_is_where(order, text):
    flat = Star(8).network(10e9, 1e-6)
    other = f"{text} order={'-'.join(order)}"
    assert seconds(MODEL, other, flat) == pytest.approx(seconds(MODEL, text, flat))


def test_groups_that_share_a_link_slow_each_other_down():
    # Two replicas of two tensor ranks: along the nodes, or across them.
    network = with_islands(Star(2).network(10e9), 2, 100e9)
    one = GroupExchange("attention", "all-reduce", "tp", 2, 1e9, 1, "forward")
    along = LayoutNetwork(Layout(dp=2, tp=2), network).seconds(one)
    across = LayoutNetwork(Layout(dp=2, tp=2, order=("dp", "cp", "tp", "pp")), network).seconds(one)
    assert along == pytest.approx(1e9 / 100e9)
    assert across == pytest.approx(2 * 1e9 / 10e9)


def test_a_network_that_is_too_small_is_refused():
    with pytest.raises(InputError, match="needs 32 ranks, and network"):
        play_iteration(MODEL, Layout(dp=32), NODES, FLOPS)
    with pytest.raises(InputError, match="flops_per_second 0 must be a finite number"):
        play_iteration(MODEL, Layout(), NODES, 0)


SENDERS = [
    *("dp4", "tp4", "pp4 acc4", "pp2 vpp2 acc4", "cp4", "cp4 all-to-all", "dp4 zero3 acc2"),
    *("dp2 tp2 pp2 cp2 acc4 zero1", "dp8 ep4 tp2", "dp8 ep8 full", "dp6 tp2 order=dp-tp-cp-pp"),
]


@pytest.mark.parametrize("text", SENDERS)
def test_rows_are_what_each_rank_sends(text):
    layout = Layout.parse(text)
    model = MIXTURE if layout.ep > 1 else MODEL
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
    sent = traffic_matrices(MODEL, Layout.parse("pp4 acc3"))["pp"]
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
        play_iteration(MODEL, layout, network, 1e12, placement=placement).seconds("wait")
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
        play_iteration(MODEL, layout, network, 1e12, overlap=overlap) for overlap in (True, False)
    )
    reduced = sum(span.seconds for span in after.spans if span.kind == "message")
    assert after.seconds("wait") == pytest.approx(reduced)
    assert beside.seconds("wait") < after.seconds("wait")


def test_gpus_that_nvlink_joins_between_nodes_exchange_over_it():
    """Eight GB200 in nodes of four are as in one node of eight; H100 in nodes of four are not."""

    def slower(gpu):
        layout = Layout.parse("tp8")
        apart, one = (
            machines_of(gpu, nodes, gpus_per_node=8 // nodes, network="400GbIB").network
            for nodes in (2, 1)
        )
        exchange = next(one for one in exchanges(MODEL, layout) if one.axis == "tp")
        return LayoutNetwork(layout, apart).seconds(exchange) / LayoutNetwork(layout, one).seconds(
            exchange
        )

    assert slower("GB200") == pytest.approx(1)
    assert slower("H100") > 1.2
