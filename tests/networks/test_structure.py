"""Networks have the nodes, links and distances of their definitions, and the rings that fit."""

import pytest

from ddlnb.errors import InputError
from ddlnb.networks.structure import (
    Structure,
    bcube_rings,
    check_rings,
    directed_links,
    fat_tree_ring,
    reversed_ring,
    rings_bound,
    torus_rings,
)
from ddlnb.networks.topologies import get_topology


def made(text):
    return get_topology(text).network(1.0)


@pytest.mark.parametrize("ports", [2, 4, 6, 8])
def test_a_fat_tree_has_full_bisection(ports):
    network = made(f"fat-tree({ports})")
    structure = Structure(network)
    assert {structure.degree(host) for host in network.endpoints} == {1}
    switches = range(network.ranks, len(network.devices))
    assert {structure.degree(switch) for switch in switches} == {ports}
    assert structure.diameter == 6
    assert structure.bisection == network.ranks // 2


@pytest.mark.parametrize(("ports", "levels"), [(2, 1), (2, 3), (3, 2), (4, 2), (2, 4)])
def test_a_bcube_has_a_way_for_every_level(ports, levels):
    network = made(f"bcube({ports}, {levels})")
    structure = Structure(network)
    assert {structure.degree(host) for host in network.endpoints} == {levels}
    switches = range(network.ranks, len(network.devices))
    assert {structure.degree(switch) for switch in switches} == {ports}
    assert structure.diameter == 2 * levels  # two cables for every digit that differs
    assert structure.weakest_host == levels


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (3, 5), (4, 8)])
def test_a_torus_is_a_grid_that_closes(rows, columns):
    structure = Structure(made(f"torus({rows}, {columns})"))
    assert {structure.degree(host) for host in range(rows * columns)} == {4}
    assert structure.diameter == rows // 2 + columns // 2
    assert structure.weakest_host == 4


def test_halves_of_a_square_torus_are_joined_where_rows_meet_on_both_sides():
    assert Structure(made("torus(4, 4)")).bisection == 2 * 4
    assert Structure(made("torus(6, 6)")).bisection == 2 * 6


def test_a_cut_is_the_number_of_ways_without_a_common_link():
    structure = Structure(made("star(5)"))
    assert structure.cut([0], [1]) == 1
    assert structure.cut([0, 1], [2, 3, 4]) == 2
    with pytest.raises(InputError, match="both sides"):
        structure.cut([0], [0])


@pytest.mark.parametrize("text", ["star(16)", "fat-tree(4)", "bcube(4, 2)", "torus(4, 4)"])
def test_fewer_failures_than_cut_a_host_off_are_always_survived(text):
    structure = Structure(made(text))
    assert structure.survival(0, draws=1) == 1
    assert structure.survival(structure.weakest_host - 1, draws=200) == 1
    assert structure.survival(len(structure.cables), draws=1) == 0


def test_one_failure_parts_a_fat_tree_as_often_as_it_hits_a_host():
    # 16 of 48 cables; the bound is four standard deviations of 2000 draws (6e-5, and seeded).
    share = Structure(made("fat-tree(4)")).survival(1, draws=2000)
    assert share == pytest.approx(2 / 3, abs=4 * (2 / 9 / 2000) ** 0.5)


@pytest.mark.item("A34")
@pytest.mark.parametrize("ports", [2, 4, 6])
def test_a_fat_tree_carries_one_ring_and_never_two(ports):
    network = made(f"fat-tree({ports})")
    check_rings(network, fat_tree_ring(ports))
    assert rings_bound(network) == 1
    ring = fat_tree_ring(ports)[0]
    with pytest.raises(InputError, match="share the link"):
        check_rings(network, [ring, reversed_ring(ring)])


@pytest.mark.item("A34")
@pytest.mark.parametrize("ports", [2, 4, 6, 8])
def test_a_bcube_of_two_levels_and_even_ports_carries_two_rings(ports):
    network, rings = made(f"bcube({ports}, 2)"), bcube_rings(ports)
    check_rings(network, rings)
    assert len(rings) == rings_bound(network) == 2
    # Together they use both directions of every link, and nothing is left for a third.
    assert sum(len(directed_links(ring)) for ring in rings) == len(network.links)


@pytest.mark.item("A36")
@pytest.mark.parametrize("side", [3, 4, 5, 8])
def test_a_square_torus_carries_four_rings(side):
    network, rings = made(f"torus({side}, {side})"), torus_rings(side)
    check_rings(network, rings)
    assert len(rings) == rings_bound(network) == 4
    assert {frozenset(link) for link in directed_links(rings[0])}.isdisjoint(
        frozenset(link) for link in directed_links(rings[2])
    )


def test_a_ring_that_leaves_a_server_out_is_refused():
    with pytest.raises(InputError, match="each of its 16 hosts once"):
        check_rings(made("torus(4, 4)"), [(0, 1, 5, 4)])
    with pytest.raises(InputError, match="no link"):
        check_rings(made("torus(3, 3)"), [(0, 4, 8, 1, 5, 6, 2, 3, 7)])
    with pytest.raises(InputError, match="even"):
        bcube_rings(3)


def test_gpus_on_rails_pass_nothing_on_and_are_cut_off_with_their_card():
    network = made("rail-optimised(2, 2)")
    structure = Structure(network)
    assert structure.hops.max() == 6  # up its own rail, over the spine
    lost = {network.cable("nic0_0", "rail0")}
    assert not structure.connects_all(lost)
    assert structure.weakest_host == 1


def test_one_host_is_cut_off_by_nothing():
    with pytest.raises(InputError, match="has one host"):
        _ = Structure(made("star(1)")).weakest_host
