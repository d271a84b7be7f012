"""Emulated trees and tori: each link shaped and verified, and packets where routes lead them."""

import statistics

import pytest

from benchmarks.socket_transfers import transfer_seconds
from ddlnb.emulation.network import lacking
from ddlnb.errors import InputError
from ddlnb.launch.ranks import Ranks
from ddlnb.networks.fabric import emulated_network, emulated_topology
from ddlnb.networks.network import changed
from ddlnb.networks.topologies import get_topology
from tests.emulation.test_emulation import require_as_asked

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "-"),
]
LINK = "20Mb/s 2ms"  # what two busy cores still emulate well
PAYLOAD = 2.5e6 * 1448 / 1538


@pytest.fixture(scope="module")
def tree():
    """Two leaves of two hosts; the cable of each to either spine is half as wide as a host's."""
    with Ranks(
        4, launcher="emulated", network=emulated_topology("two-tier(2, 2, 2, 2)", LINK)
    ) as up:
        yield up


@pytest.fixture(scope="module")
def torus():
    with Ranks(9, launcher="emulated", network=emulated_topology("torus(3, 3)", LINK)) as ranks:
        yield ranks


def seconds(ranks, *flows):
    """Return the median seconds of each flow, all at once, of five after a first one."""
    found = {}
    for part in ranks.run(transfer_seconds, flows, 6):
        found |= part
    return [statistics.median(found[number][1:]) for number in range(len(flows))]


def test_every_link_of_a_tree_is_what_was_asked_for(tree):
    table = tree.verified.set_index("link")
    require_as_asked(table, 4e-3)
    assert len(table) == 16
    assert table.loc["leaf0 -> spine1", "asked_bandwidth"] == pytest.approx(PAYLOAD / 2)
    assert table.loc["host0 -> leaf0", "full"]


@pytest.mark.thorough
def test_every_link_of_a_torus_is_what_was_asked_for(torus):
    require_as_asked(torus.verified, 4e-3)
    assert len(torus.verified) == 36
    assert torus.verified["full"].all()


@pytest.mark.thorough
def test_packets_of_others_pass_a_host_of_a_torus(torus):
    """From host 0 to host 4 by dimension order: along the row to host 1, then down."""
    before = torus.network.carried()
    torus.run(transfer_seconds, [(0, 4, 200_000)])
    after = torus.network.carried()
    grown = {wire for wire in after if after[wire] - before[wire] > 200_000}
    assert grown == {"host0 -> host1", "host1 -> host4"}


def test_transfers_over_a_shared_uplink_take_as_long_as_fair_shares_say(tree):
    one_spine = {pair: ways[:1] for pair, ways in tree.network.topology.routes.items()}
    whole = tree.network.topology.routes
    tree.network.route(one_spine)
    size = 600_000
    both = seconds(tree, (0, 2, size), (1, 3, size))
    tree.network.route(whole)
    assert max(both) == pytest.approx(2 * size / (PAYLOAD / 2), rel=0.2)


def test_a_network_becomes_a_changed_one(tree):
    """Halved cables take twice as long; the changed network's routes are its own."""
    asked = get_topology("two-tier(2, 2, 2, 2)").network(2.5e6, 2e-3)
    slow = changed(asked, ["cut(leaf0, spine0)", "scale(leaf0, spine1, 0.5)"])
    size = 300_000
    tree.network.become(emulated_network(slow))
    assert max(seconds(tree, (0, 2, size))) == pytest.approx(size / (PAYLOAD / 4), rel=0.2)
    tree.network.become(emulated_network(asked))
    assert max(seconds(tree, (0, 2, size))) == pytest.approx(size / (PAYLOAD / 2), rel=0.2)
    with pytest.raises(InputError, match="has other hosts or cables"):
        tree.network.become(emulated_topology("star(4)", LINK))


def test_a_network_that_is_too_small_or_unconnected_is_refused():
    with pytest.raises(InputError, match="has 4 hosts and 5 ranks need 5"):
        Ranks(5, launcher="emulated", network=emulated_topology("star(4)", LINK))
    cut = changed(get_topology("star(4)").network(1e6), ["cut(host0, switch0)"])
    with pytest.raises(InputError, match=r"host0 and host1, .* have lost each other"):
        Ranks(4, launcher="emulated", network=emulated_network(cut))
