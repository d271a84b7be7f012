"""Generated networks have the counts of their papers, and every route is one."""

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings

from ddlnb.errors import InputError
from ddlnb.networks.network import Device, Link, Network, changed
from ddlnb.networks.routes import ROUTINGS, NoRoute, _Router, _split_among_many, route
from ddlnb.networks.topologies import TOPOLOGIES, get_topology, with_islands
from tests.networks.random_traffic import SMALL, as_graph, networks

EXAMPLES = [str(one) for one in SMALL]


def test_the_examples_hold_every_topology():
    files = {"infragraph"}  # tests/networks/test_infragraph.py
    assert {text.partition("(")[0] for text in EXAMPLES} == set(TOPOLOGIES) - files


@pytest.mark.parametrize(
    ("text", "hosts", "switches", "cables"),
    [
        ("star(5)", 5, 1, 5),
        ("two-tier(2, 4, spines=2)", 8, 4, 8 + 4),
        ("fat-tree(4)", 16, 20, 48),
        ("fat-tree(8)", 128, 80, 384),
        ("bcube(4, 2)", 16, 8, 32),
        ("bcube(2, 3)", 8, 12, 24),
        ("torus(4, 8)", 32, 0, 64),
        ("torus(3, 3, 3)", 27, 0, 81),
        ("dragonfly(2, 4, 2)", 72, 36, 72 + 9 * 6 + 36),
        ("rail-optimised(3, 4)", 3, 5, 3 * 4 * 3 + 4),
    ],
)
def test_a_topology_has_the_counts_of_its_definition(text, hosts, switches, cables):
    topology = get_topology(text)
    network = topology.network(1e9)
    assert (topology.hosts, network.switches, network.cables) == (hosts, switches, cables)
    assert get_topology(str(topology)) == topology


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("gpus", [1, 2])
def test_every_route_leads_from_its_source_to_its_target(text, gpus):
    network = get_topology(text).network(1e9, 1e-6)
    if network.devices[network.endpoints[0]].kind == "host":
        network = with_islands(network, gpus, 8e9, 1e-7)
    for routing in ROUTINGS:
        if routing in ("dimension order", "bcube") and routing != network.routing:
            continue
        routed = replace(network, routing=routing)
        for source in routed.endpoints[:4]:
            for target in routed.endpoints:
                if source != target:
                    _check(routed, source, target)


def _check(network, source, target):
    """What goes into a device comes out of it, but for the ends; no link is used twice over."""
    found = route(network, source, target)
    balance = [0.0] * len(network.devices)
    for number, share in zip(found.links, found.shares, strict=True):
        link = network.links[number]
        balance[link.start] -= share
        balance[link.end] += share
        assert 0 < share <= 1 + 1e-12
        assert network.devices[link.end].kind != "gpu" or link.end == target
    for device, value in enumerate(balance):
        assert value == pytest.approx({source: -1.0, target: 1.0}.get(device, 0.0))
    assert len(found.links) == len(set(found.links))
    hops = nx.shortest_path_length(as_graph(network), source, target)
    detour = 4 if network.routing == "bcube" else 0  # two more cables there, two back
    assert hops <= sum(found.shares) + 1e-9 <= hops + detour + 1e-6


@pytest.mark.parametrize("text", ["torus(4, 4)", "bcube(3, 2)"])
def test_correcting_digits_takes_a_shortest_path(text):
    network = get_topology(text).network(1e9)
    hops = dict(nx.all_pairs_shortest_path_length(as_graph(network)))
    for source in network.endpoints:
        for target in network.endpoints:
            assert len(route(network, source, target).links) == hops[source][target]


def test_equal_cost_paths_share_evenly():
    network = get_topology("two-tier(2, 2, spines=4)").network(1e9)
    found = route(network, network.device("host0"), network.device("host2"))
    assert sorted(found.shares) == [0.25] * 8 + [1.0] * 2


def test_a_hash_spreads_pairs_over_the_spines():
    network = replace(get_topology("two-tier(2, 8, spines=4)").network(1e9), routing="ecmp hash")
    used = {
        route(network, source, target).links[1]
        for source in network.endpoints[:8]
        for target in network.endpoints[8:]
    }
    assert len(used) == 4


def test_oversubscription_is_the_ratio_of_bandwidths_into_and_out_of_a_leaf():
    network = get_topology("two-tier(2, 8, oversubscription=4.0, spines=2)").network(1e9)
    leaf = network.device("leaf0")
    out = sum(link.bandwidth for link in network.links if link.start == leaf)
    assert out == pytest.approx(8e9 + 8e9 / 4)


@pytest.mark.parametrize("text", ["bcube(3, 2)", "bcube(4, 2)", "bcube(2, 3)"])
def test_a_bcube_reaches_everybody_whatever_cable_is_cut(text):
    network = get_topology(text).network(1e9)
    ends = [(network.devices[link.start].name, network.devices[link.end].name)
            for link in network.links[::2]]  # fmt: skip
    for one, other in ends:
        left = changed(network, [f"cut({one}, {other})"])
        for target in network.endpoints[1:]:
            _check(left, 0, target)


def test_a_bcube_goes_round_a_cut_and_a_torus_in_dimension_order_does_not():
    cube = get_topology("bcube(3, 2)").network(1e9)
    near, far = cube.device("host0"), cube.device("host4")
    for cable in [("host0", "switch0_0"), ("host0", "switch1_0")]:
        left = changed(cube, [f"cut({', '.join(cable)})"])
        assert len(route(left, near, far).links) == 4
    torus = changed(get_topology("torus(3, 3)").network(1e9), ["cut(host0, host1)"])
    with pytest.raises(NoRoute, match="host0 and host1 have lost each other"):
        route(torus, 0, 1)
    assert len(route(replace(torus, routing="ecmp"), 0, 1).links) > 1


def test_the_latency_of_a_split_route_is_that_of_its_longest_path():
    one = get_topology("two-tier(2, 1, spines=2)").network(1e9, 1e-6)
    links = list(one.links)
    slow = one.cable("leaf0", "spine1")
    links[2 * slow : 2 * slow + 2] = [replace(link, latency=5e-6) for link in links[2 * slow :][:2]]
    found = route(one.with_links(tuple(links)), 0, 1)
    assert found.latency == pytest.approx(1e-6 + 5e-6 + 1e-6 + 1e-6)


def test_hosts_without_any_cable_have_lost_each_other():
    network = changed(get_topology("star(3)").network(1e9), ["cut(host1, switch0)"])
    with pytest.raises(NoRoute, match=r"host0 and host1 have lost each other in 'star\(3\), cut"):
        route(network, 0, 1)
    assert route(network, 0, 2).links


def test_changes_are_applied_to_both_directions():
    network = changed(
        get_topology("star(3)").network(1e9), ["scale-node(1, 0.5)", "scale(host2, switch0, 2.0)"]
    )
    assert network.bandwidths.tolist() == [1e9, 1e9, 5e8, 5e8, 2e9, 2e9]


def test_links_inside_an_island_never_carry_what_is_for_others():
    network = with_islands(get_topology("star(2)").network(1e9), 2, 8e9)
    assert network.ranks == 4
    assert network.nodes == (0, 0, 1, 1)
    inside = route(network, network.endpoints[0], network.endpoints[1])
    assert all(network.links[link].bandwidth == 8e9 for link in inside.links)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fat-tree(3)", "ports 3 of a fat-tree's switches must be even.* 2 and 4 fit"),
        ("torus(2, 4)", "rows 2 must be a whole number, at least 3"),
        ("torus(3, 3, 2)", "layers 2 of a torus must be 1, or at least 3"),
        ("bcube(1, 2)", "ports 1 must be a whole number, at least 2"),
        ("two-tier(2, 2, oversubscription=0.0)", "oversubscription 0.0 must be positive"),
        ("star(0)", "number 0 must be a whole number"),
        ("star", "parameters that do not fit: star is written star\\(number\\)"),
        ("star(a)", "number a must be"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(text, reason):
    with pytest.raises(InputError, match=reason):
        get_topology(text)


@given(networks())
@settings(max_examples=25)
def test_split_routes_are_the_same_without_shortcuts(network):
    router = _Router(replace(network, routing="ecmp"))
    for source in network.endpoints:
        for target in network.endpoints:
            found = router.between(source, target)
            whole = _split_among_many(router, source, target)
            shares = dict(zip(whole.links, whole.shares, strict=True))
            assert dict(zip(found.links, found.shares, strict=True)) == shares
            assert found.latency == pytest.approx(whole.latency)


@pytest.mark.parametrize("pair", [(0, 2), (2, 0), (1, 2)])
def test_hosts_apart_are_named_also_where_one_cable_leads_away(pair):
    devices = tuple(Device(f"host{i}", "host", i) for i in range(3))
    torn = Network("torn", devices, (Link(0, 1, 1e9), Link(1, 0, 1e9)))
    with pytest.raises(NoRoute, match=f"^host{pair[0]} and host{pair[1]} have lost each other"):
        route(torn, *pair)
