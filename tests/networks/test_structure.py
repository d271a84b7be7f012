"""Networks have the nodes, links and distances of their definitions, and the rings that fit."""

from __future__ import annotations

import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.studies.table1_attributes.networks import (
    NETWORK_GRAPHS,
    bcube,
    fat_tree,
    make_network,
    star,
    torus,
)
from ddlnb.studies.table1_attributes.rings import (
    bcube_rings,
    check_rings,
    directed_links,
    fat_tree_ring,
    reversed_ring,
    rings_bound,
    torus_rings,
)
from tests.ring_search import paired_ring_exists, two_way_rings


@pytest.mark.parametrize("ports", [2, 4, 6, 8])
def test_a_fat_tree_has_the_counts_of_its_paper(ports):
    network = fat_tree(ports)
    assert network.servers == ports**3 // 4
    assert network.switches == 5 * ports**2 // 4
    assert len(network.links) == 3 * network.servers  # as many between layers as below them
    assert {network.degree(node) for node in range(network.servers)} == {1}
    assert {network.degree(node) for node in range(network.servers, network.nodes)} == {ports}
    assert network.diameter == 6
    assert network.halves_cut == network.servers // 2  # full bisection


@pytest.mark.parametrize(("ports", "levels"), [(2, 1), (2, 3), (3, 2), (4, 2), (2, 4)])
def test_a_bcube_has_the_counts_of_its_paper(ports, levels):
    network = bcube(ports, levels)
    assert network.servers == ports**levels
    assert network.switches == levels * ports ** (levels - 1)
    assert len(network.links) == levels * network.servers
    assert {network.degree(node) for node in range(network.servers)} == {levels}
    assert {network.degree(node) for node in range(network.servers, network.nodes)} == {ports}
    assert network.diameter == 2 * levels  # two links for every digit that differs
    assert network.weakest_server == levels


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (3, 5), (4, 8)])
def test_a_torus_has_the_counts_of_a_grid_that_closes(rows, columns):
    network = torus(rows, columns)
    assert (network.servers, network.switches) == (rows * columns, 0)
    assert len(network.links) == len(set(network.links)) == 2 * network.servers
    assert {network.degree(node) for node in range(network.nodes)} == {4}
    assert network.diameter == rows // 2 + columns // 2
    assert network.weakest_server == 4


def test_halves_of_a_square_torus_are_joined_where_rows_meet_on_both_sides():
    assert torus(4, 4).halves_cut == 2 * 4
    assert torus(6, 6).halves_cut == 2 * 6


def test_a_cut_is_the_number_of_ways_without_a_common_link():
    network = star(5)
    assert network.cut([0], [1]) == 1
    assert network.cut([0, 1], [2, 3, 4]) == 2
    with pytest.raises(InputError, match="both sides"):
        network.cut([0], [0])


@pytest.mark.parametrize("name", NETWORK_GRAPHS)
def test_fewer_failures_than_cut_a_server_off_are_always_survived(name):
    network = make_network(name, 16)
    assert network.survival(0, draws=1) == 1
    assert network.survival(network.weakest_server - 1, draws=200) == 1
    assert network.survival(len(network.links), draws=1) == 0


def test_one_failure_parts_a_fat_tree_as_often_as_it_hits_a_server():
    # 16 of 48 links; the bound is four standard deviations of 2000 draws (6e-5, and seeded).
    share = fat_tree(4).survival(1, draws=2000)
    assert share == pytest.approx(2 / 3, abs=4 * (2 / 9 / 2000) ** 0.5)


def test_a_network_is_made_by_name_and_size():
    assert make_network("BCube", 16) == bcube(4, 2)
    assert make_network("fat-tree", 16) == fat_tree(4)
    with pytest.raises(UnknownName, match="did you mean 'BCube'"):
        make_network("bcubes", 16)
    with pytest.raises(InputError, match="16 and 1024"):
        make_network("fat-tree", 17)
    with pytest.raises(InputError, match="even"):
        fat_tree(3)
    with pytest.raises(InputError, match="at least 3"):
        torus(2, 4)


@pytest.mark.item("A34")
@pytest.mark.parametrize("ports", [2, 4, 6])
def test_a_fat_tree_carries_one_ring_and_never_two(ports):
    network = fat_tree(ports)
    check_rings(network, fat_tree_ring(ports))
    assert rings_bound(network) == 1
    ring = fat_tree_ring(ports)[0]
    with pytest.raises(InputError, match="share the link"):
        check_rings(network, [ring, reversed_ring(ring)])


@pytest.mark.item("A34")
@pytest.mark.parametrize("ports", [2, 4, 6, 8])
def test_a_bcube_of_two_levels_and_even_ports_carries_two_rings(ports):
    network, rings = bcube(ports, 2), bcube_rings(ports)
    check_rings(network, rings)
    assert len(rings) == rings_bound(network) == 2
    # Together they use both directions of every link, and nothing is left for a third.
    assert sum(len(directed_links(ring)) for ring in rings) == 2 * len(network.links)


def test_rings_that_pair_the_ports_of_every_switch_need_an_even_number_of_ports():
    assert paired_ring_exists(2)
    assert paired_ring_exists(4)
    assert not paired_ring_exists(3)
    assert paired_ring_exists(2, levels=3)  # an odd number of levels does not rule one out
    with pytest.raises(InputError, match="even"):
        bcube_rings(3)


def test_two_rings_that_share_links_in_opposite_directions_fit_an_odd_bcube_too():
    network = bcube(3, 2)
    rings = two_way_rings(network)
    assert rings is not None
    check_rings(network, rings)


def test_no_search_finds_two_rings_where_servers_have_one_link():
    assert two_way_rings(star(4)) is None
    assert two_way_rings(fat_tree(2)) is None


@pytest.mark.item("A36")
@pytest.mark.parametrize("side", [3, 4, 5, 8])
def test_a_square_torus_carries_four_rings(side):
    network, rings = torus(side, side), torus_rings(side)
    check_rings(network, rings)
    assert len(rings) == rings_bound(network) == 4
    assert {frozenset(link) for link in directed_links(rings[0])}.isdisjoint(
        frozenset(link) for link in directed_links(rings[2])
    )


def test_a_ring_that_leaves_a_server_out_is_refused():
    with pytest.raises(InputError, match="each of its 16 servers once"):
        check_rings(torus(4, 4), [(0, 1, 5, 4)])
    with pytest.raises(InputError, match="no link"):
        check_rings(torus(3, 3), [(0, 4, 8, 1, 5, 6, 2, 3, 7)])
