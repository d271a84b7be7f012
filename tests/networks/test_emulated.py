"""Networks as the emulated launcher builds them, without building them."""

from itertools import permutations

import numpy as np
import pytest

from ddlnb.emulation.verify_links import trials
from ddlnb.networks.fabric import emulated_network, emulated_topology
from ddlnb.networks.network import changed
from ddlnb.networks.routes import route
from ddlnb.networks.topologies import get_topology
from tests.networks.random_traffic import SMALL

EXAMPLES = [str(one) for one in SMALL]


@pytest.mark.parametrize("text", EXAMPLES)
def test_routes_are_those_of_the_network(text):
    network = get_topology(text).network(12.5e6, 1e-3)
    made = emulated_network(network)
    assert len(made.hosts) == network.ranks
    assert made.apart() == []
    for one, other in permutations(range(network.ranks), 2):
        links = route(network, network.endpoints[one], network.endpoints[other]).links
        assert {wire for way in made.routes[one, other] for wire in way} == set(links)


@pytest.mark.parametrize("text", EXAMPLES)
def test_trials_fill_the_links_of_the_hosts(text):
    """What no trial fills is only wider than what the hosts behind it can send."""
    network = get_topology(text).network(12.5e6, 1e-3)
    made = emulated_network(network)
    filled = np.any([trial.full for trial in trials(made, network.ranks)], axis=0)
    narrow = {
        leaving
        for host in range(network.ranks)
        for leaving, _ in made.ports(host)
        if len(made.ports(host)) == 1
    }
    assert filled[list(narrow)].all()


def test_oversubscribed_uplinks_are_filled_by_several_transfers():
    made = emulated_topology("two-tier(2, 4, 2)", "100Mb/s 1ms")
    up = made.cable("leaf0", "spine0")[0]
    assert made.wires[up].link.bandwidth == pytest.approx(25e6)
    ring, across = trials(made, 8)
    assert not ring.full[up]
    assert across.full[up]
    assert across.uses[:, up].sum() == 4
    assert across.load[up] == pytest.approx(4 * 6.25e6)


def test_a_cable_that_is_cut_leaves_its_routes_out():
    network = changed(get_topology("torus(3, 3)").network(1e7), ["cut(host0, host1)"])
    made = emulated_network(network)
    assert (0, 1) in made.apart()
    assert (3, 4) not in made.apart()
    assert made.why_apart() == (
        "host0 and host1, host0 and host4, host0 and host7 and 2 more pairs of hosts have lost "
        "each other: no route is left"
    )


def test_a_text_of_links_gives_jitter_and_loss_to_all():
    made = emulated_topology("star(2)", "10Mb/s 1ms jitter 100us loss 1%")
    assert {wire.link for wire in made.wires} == {made.wires[0].link}
    assert (made.wires[0].link.jitter, made.wires[0].link.loss) == pytest.approx((1e-4, 0.01))
