"""Emulated trees and tori: shaped, verified, cut, restored and changed while ranks run."""

from __future__ import annotations

import time

import pytest

from ddlnb.errors import InputError, RankError
from ddlnb.launch.emulation.network import lacking
from ddlnb.launch.ranks import Ranks
from ddlnb.networks.changes import changed
from ddlnb.networks.emulated import emulated_wiring, wiring
from ddlnb.networks.topologies import get_topology
from tests.launch.traffic import all_at_once

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "-"),
]
LINK = "20Mb/s 2ms"  # what two busy cores still emulate well
PAYLOAD = 2.5e6 * 1448 / 1538


@pytest.fixture(scope="module")
def tree():
    """Two leaves of two hosts, whose cables to either spine are half as wide as a host's."""
    with Ranks(4, launcher="emulated", network=emulated_wiring("two-tier(2, 2, 2, 2)", LINK)) as up:
        yield up


@pytest.fixture(scope="module")
def torus():
    with Ranks(9, launcher="emulated", network=emulated_wiring("torus(3, 3)", LINK)) as ranks:
        yield ranks


def check(table):
    """Within what a busy machine adds: 15 % of bandwidth; 20 % and 4 ms of the round trip."""
    full = table[table["full"]]
    assert ((full["bandwidth"] / full["asked_bandwidth"] - 1).abs() < 0.15).all(), table
    assert (table["round_trip"] >= 0.99 * table["asked_round_trip"]).all(), table
    assert (table["round_trip"] <= 1.2 * table["asked_round_trip"] + 4e-3).all(), table


def test_every_link_of_a_tree_is_what_was_asked_for(tree):
    table = tree.verified.set_index("link")
    check(table)
    assert len(table) == 16
    assert table.loc["leaf0 -> spine1", "asked_bandwidth"] == pytest.approx(PAYLOAD / 2)
    assert table.loc["host0 -> leaf0", "full"]


def test_every_link_of_a_torus_is_what_was_asked_for(torus):
    check(torus.verified)
    assert len(torus.verified) == 36
    assert torus.verified["full"].all()


def test_packets_of_others_pass_a_host_of_a_torus(torus):
    """From host 0 to host 4 by dimension order: along the row to host 1, then down."""
    before = torus.network.carried()
    torus.run(all_at_once, {0: (4, 200_000)})
    after = torus.network.carried()
    grown = {wire for wire in after if after[wire] - before[wire] > 200_000}
    assert grown == {"host0 -> host1", "host1 -> host4"}


def test_transfers_over_a_shared_uplink_take_as_long_as_fair_shares_say(tree):
    one_spine = {pair: ways[:1] for pair, ways in tree.network.wiring.routes.items()}
    whole = tree.network.wiring.routes
    tree.network.route(one_spine)
    size = 600_000
    both = tree.run(all_at_once, {0: (2, size), 1: (3, size)})
    tree.network.route(whole)
    assert max(both) == pytest.approx(2 * size / (PAYLOAD / 2), rel=0.2)


def test_connections_take_the_other_spine_when_a_cable_is_cut(tree):
    tree.network.cut_cable("leaf0", "spine0")
    before = tree.network.carried()
    tree.run(all_at_once, {0: (2, 200_000), 1: (3, 200_000)})
    after = tree.network.carried()
    tree.network.restore_cable("leaf0", "spine0")
    assert tree.network.why_apart() == ""
    assert after["leaf0 -> spine0"] == before["leaf0 -> spine0"]
    assert after["leaf0 -> spine1"] - before["leaf0 -> spine1"] > 400_000


def test_a_cable_that_is_cut_and_restored_only_costs_time(tree):
    def disturb():
        for spine in ("spine0", "spine1"):
            tree.network.cut_cable("leaf0", spine)
        time.sleep(0.5)
        for spine in ("spine0", "spine1"):
            tree.network.restore_cable("leaf0", spine)

    import threading

    thread = threading.Timer(0.1, disturb)
    thread.start()
    seconds = max(tree.run(all_at_once, {0: (2, 500_000)}))
    thread.join()
    assert seconds > 0.5


def test_hosts_that_have_lost_each_other_are_named_in_one_error(tree):
    for spine in ("spine0", "spine1"):
        tree.network.cut_cable("leaf0", spine)
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        tree.run(all_at_once, {0: (2, 1000)}, timeout_seconds=3)
    assert time.monotonic() - start < 30
    first = str(caught.value).splitlines()[0]
    assert "host0 and host2, host0 and host3, host1 and host2 and 1 more pair of hosts" in first
    assert "leaf0 - spine0, leaf0 - spine1 are cut" in first
    assert tree.run(all_at_once, {0: (2, 1000)})[0] > 0  # fresh ranks on a fresh network


def test_a_network_becomes_a_changed_one(tree):
    """Halved cables take twice as long; the changed network's routes are its own."""
    asked = get_topology("two-tier(2, 2, 2, 2)").network(2.5e6, 2e-3)
    slow = changed(asked, ["cut(leaf0, spine0)", "scale(leaf0, spine1, 0.5)"])
    size = 300_000
    tree.network.become(wiring(slow))
    assert max(tree.run(all_at_once, {0: (2, size)})) == pytest.approx(
        size / (PAYLOAD / 4), rel=0.2
    )
    tree.network.become(wiring(asked))
    assert max(tree.run(all_at_once, {0: (2, size)})) == pytest.approx(
        size / (PAYLOAD / 2), rel=0.2
    )
    with pytest.raises(InputError, match="has other hosts or cables"):
        tree.network.become(emulated_wiring("star(4)", LINK))


def test_a_network_that_is_too_small_or_unconnected_is_refused():
    with pytest.raises(InputError, match="has 4 hosts and 5 ranks need 5"):
        Ranks(5, launcher="emulated", network=emulated_wiring("star(4)", LINK))
    cut = changed(get_topology("star(4)").network(1e6), ["cut(host0, switch0)"])
    with pytest.raises(InputError, match=r"host0 and host1, .* have lost each other"):
        Ranks(4, launcher="emulated", network=wiring(cut))
