"""Played iterations: against the bare schedule and closed forms, and the laws of time."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlnb.errors import InputError
from ddlnb.networks.topologies import Star, with_islands
from ddlnb.parallelism.layout import AXES, Layout
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.parallelism.simulated.iteration import parts_of, play_iteration
from ddlnb.parallelism.simulated.seconds import LayoutNetwork
from ddlnb.parallelism.volumes import GroupExchange, exchanges

FLOPS = 1e12
MODEL = Transformer("small", 8, 256, 8, 16, 128).shape
MIXTURE = Transformer("mixture", 8, 256, 8, 16, 128, experts=4, top_k=2).shape
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
    assert sum(parts_of(line).values()) == pytest.approx(end)
    json.dumps(line.to_chrome_trace())


@pytest.mark.parametrize("text", LAYOUTS)
def test_the_computation_is_that_of_the_layers(text):
    layout = Layout.parse(text)
    parts = parts_of(play_iteration(MODEL, layout, NODES, FLOPS))
    flops = MODEL.iteration_flops(layout.samples, layout.recomputation) / layout.ranks
    assert parts["computation"] == pytest.approx(flops / FLOPS)


@pytest.mark.parametrize("text", ["pp4 acc8", "pp4 gpipe acc4", "pp4 zero-bubble acc8"])
def test_without_costs_of_messages_it_is_the_bare_schedule(text):
    layout = Layout.parse(text)
    free = Star(4).network(1e30)
    line = play_iteration(MODEL, layout, free, FLOPS, memory_bandwidth=1e30)
    flops = MODEL.block_layers[0].forward_flops * 2 / FLOPS
    bare = play(
        schedule(layout.schedule, 4, layout.micro_batches),
        {"F": flops, "B": flops * (1 if layout.schedule == "zero-bubble" else 2), "W": flops},
    )
    assert sum(parts_of(line).values()) == pytest.approx(bare.seconds, rel=0.01)  # and the head


def test_one_worker_computes_and_updates_only():
    parts = parts_of(play_iteration(MODEL, Layout(), NODES, FLOPS))
    assert set(parts) == {"computation", "update"}


def test_waits_have_the_names_of_their_axes():
    for text, model, reasons in (
        ("tp4", MODEL, {"tp"}),
        ("cp4", MODEL, {"cp", "data"}),
        ("dp4 ep4", MIXTURE, {"ep", "data"}),
        ("pp4 acc4", MODEL, {"bubble"}),
    ):
        parts = parts_of(play_iteration(model, Layout.parse(text), NODES, FLOPS))
        assert set(parts) - {"computation", "update"} == reasons


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


def test_an_all_reduce_takes_its_closed_form():
    layout, size, bandwidth = Layout(dp=4), 1e9, 10e9
    links = LayoutNetwork(layout, Star(4).network(bandwidth))
    one = GroupExchange("gradients", "all-reduce", "dp", 4, size, 1, "update")
    assert links.seconds(one) == pytest.approx(2 * 3 / 4 * size / bandwidth)


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
