"""A sender is free when its bytes have left, not when they have arrived: latencies overlap."""

import pytest

from ddlnb.networks.topologies import get_topology, with_islands

play = pytest.importorskip("ddlnb.networks.play").play
Startup = pytest.importorskip("ddlnb.networks.play").Startup
get_collective = pytest.importorskip("ddlnb.networks.collectives.catalogue").get_collective


def test_a_ring_waits_for_the_hops_of_a_part_not_for_the_slowest_hop_of_every_step():
    """Each part crosses between nodes once in every ``per_node`` hops, wherever it begins.

    A rank at the border of its node sends every one of its messages to another node. If it were
    held until a message has arrived, the ring would wait 2 (n-1) times for the longer start-up.
    """
    nodes, per_node, inside, between = 4, 4, 1e-6, 100e-6
    network = with_islands(get_topology(f"star({nodes})").network(1e12), per_node, 1e13)
    ring = get_collective("ring", nodes * per_node, per_node=per_node)
    hops = 2 * (nodes * per_node - 1)
    crossing = hops / per_node
    chain = crossing * between + (hops - crossing) * inside
    found = play(ring, network, 0.0, startup=Startup(inside, between)).seconds
    assert found == pytest.approx(chain, rel=0.1)


def test_messages_of_one_sender_follow_one_another_without_a_gap():
    """k messages of one rank to one other take k transmissions and one latency."""
    import numpy as np

    from ddlnb.plans.transfers import Collective, transfers

    network = get_topology("star(2)").network(1e9)
    rows = np.concatenate([transfers(step, [0], [1], step, step + 1, False) for step in range(4)])
    sent = Collective("four", "broadcast", 2, 4, rows)
    found = play(sent, network, 4e6, startup=Startup(0.0, 5e-3)).seconds
    assert found == pytest.approx(4e-3 + 5e-3)
