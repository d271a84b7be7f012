"""What playing a collective or flows takes, by hand."""

import numpy as np
import pytest

from ddlnb.errors import InputError
from ddlnb.networks.flows import Cap, Startup
from ddlnb.networks.network import Device, Link, Network
from ddlnb.networks.play import play, share
from ddlnb.networks.routes import NoRoute
from ddlnb.networks.topologies import Star, TwoTier, with_islands
from ddlnb.plans.transfers import Collective, transfers


def ring(ranks: int, steps: int | None = None) -> Collective:
    """Return an all-reduce on a ring: reduce-scatter, then all-gather."""
    around = np.arange(ranks)
    rows = []
    for step in range(2 * (ranks - 1) if steps is None else steps):
        part = (around - step) % ranks
        rows.append(transfers(step, around, (around + 1) % ranks, part, part + 1, step < ranks - 1))
    return Collective("ring", "all-reduce", ranks, ranks, np.concatenate(rows))


def test_a_ring_takes_its_formula_on_a_star():
    network = Star(4).network(bandwidth=1e9, latency=1e-5)
    played = play(ring(4), network, 4e6, startup=Startup(between=5e-5))
    # 2 (n - 1) steps, each a start-up, two links, and a quarter of the message.
    assert played.seconds == pytest.approx(6 * (5e-5 + 2e-5 + 1e-3))
    assert played.link_bytes == pytest.approx(np.full(8, 6e6))
    assert played.utilisation == pytest.approx(np.full(8, 6e6 / 1e9 / played.seconds))
    assert played.messages["stop"][:4] == pytest.approx(1.07e-3)


@pytest.mark.parametrize(
    ("source", "target", "part", "starts"),
    [
        (1, 2, 0, [0.0, 1.0]),  # a rank sends on what it has received only,
        (1, 2, 1, [0.0, 0.0]),  # waits for no other parts,
        (0, 2, 1, [0.0, 1.0]),  # and ends its sends of a step before the next
    ],
)
def test_a_message_waits_for_its_parts_and_for_earlier_sends(source, target, part, starts):
    """Part 0 goes from rank 0 to rank 1 first."""
    first = transfers(0, [0], [1], 0, 1, False)
    then = transfers(1, [source], [target], part, part + 1, False)
    two = Collective("two", "all-gather", 3, 3, np.concatenate([first, then]))
    played = play(two, Star(3).network(bandwidth=1e9), 3e9)
    assert played.messages["start"].tolist() == starts


def test_rows_of_one_pair_in_one_step_are_one_message():
    rows = np.concatenate([transfers(0, [0, 0], [1, 1], [0, 3], [1, 4], False)])
    played = play(
        Collective("pieces", "broadcast", 2, 4, rows),
        Star(2).network(bandwidth=1e9),
        4e9,
        startup=Startup(between=0.5),
    )
    assert played.messages["bytes"].tolist() == [2e9]
    assert played.seconds == pytest.approx(2.5)


def test_start_ups_and_caps_differ_inside_of_nodes_and_between():
    network = with_islands(Star(2).network(bandwidth=1e9), 2, bandwidth=8e9)
    flows = [(0, 1, 1e9, 0.0), (0, 2, 1e9, 0.0)]
    played = share(network, flows, startup=Startup(0.25, 0.5), cap=Cap(4e9, 0.5e9))
    assert played.messages["stop"] == pytest.approx([0.25 + 0.25, 0.5 + 2.0])


def test_ranks_run_where_the_placement_puts_them():
    network = TwoTier(leaves=2, hosts_per_leaf=2, oversubscription=2.0).network(bandwidth=1e9)
    spread = play(ring(4), network, 4e9, placement=[0, 2, 1, 3])
    near = play(ring(4), network, 4e9)
    assert near.seconds == pytest.approx(6.0)
    assert spread.seconds == pytest.approx(12.0)


def test_a_server_beside_its_worker_costs_no_link():
    rows = np.concatenate([transfers(0, [0, 1], [2, 2], 0, 1, True),
                           transfers(1, [2, 2], [0, 1], 0, 1, False)])  # fmt: skip
    pull = Collective("server", "all-reduce", 2, 1, rows, servers=1)
    network = Star(2).network(bandwidth=1e9)
    with pytest.raises(InputError, match="3 ranks needs as many endpoints"):
        play(pull, network, 1e9)
    played = play(pull, network, 1e9, placement=[0, 1, 0])
    assert played.seconds == pytest.approx(2.0)
    assert played.link_bytes.tolist() == [1e9, 1e9, 1e9, 1e9]


def test_a_rank_alone_has_nothing_to_do():
    alone = Collective("ring", "all-reduce", 1, 1, transfers(0, [], [], [], [], True))
    played = play(alone, Star(1).network(bandwidth=1e9), 1e9)
    assert played.seconds == 0.0
    assert played.utilisation.tolist() == [0.0, 0.0]


def test_no_bytes_cost_start_ups_and_latencies():
    network = Star(4).network(bandwidth=1e9, latency=1e-6)
    assert play(ring(4), network, 0.0, startup=Startup(0.0, 1e-5)).seconds == pytest.approx(7.2e-5)


def test_hosts_that_have_lost_each_other_are_named_with_the_collective():
    devices = tuple(Device(f"host{i}", "host", i) for i in range(3))
    network = Network("torn", devices, (Link(0, 1, 1e9), Link(1, 0, 1e9)))
    with pytest.raises(NoRoute, match=r"ring: host1 and host2 have lost each other in 'torn'"):
        play(ring(3), network, 1e6)


def on_star(**change: object) -> None:
    known = {"message_bytes": 1e6, "placement": None} | change
    play(ring(3), Star(3).network(bandwidth=1e9), **known)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda: on_star(message_bytes=-1.0), "message_bytes -1.0 must be"),
        (lambda: on_star(placement=[0, 1]), "must give each of the 3 ranks"),
        (lambda: on_star(placement=[0, 1, 3]), "one of the 3 endpoints"),
        *(
            (lambda flow=flow: share(Star(3).network(bandwidth=1e9), [flow]), "a flow ")
            for flow in ((0, 0, 1.0, 0.0), (0, 3, 1.0, 0.0), (0, 1, -1.0, 0.0))
        ),
        (lambda: Startup(inside=-1.0), "finite seconds, not negative"),
        (lambda: Cap(between=0.0), "positive bytes per second"),
    ],
)
def test_what_cannot_be_played_is_refused(ask, reason):
    with pytest.raises(InputError, match=reason):
        ask()


def test_a_ring_waits_for_the_hops_of_a_part_not_for_the_slowest_hop_of_every_step():
    """Each part crosses between nodes once in every ``per_node`` hops, wherever it begins.

    A rank at the border of its node sends every one of its messages to another node. If it were
    held until a message has arrived, the ring would wait 2 (n-1) times for the longer start-up.
    """
    nodes, per_node, inside, between = 4, 4, 1e-6, 100e-6
    network = with_islands(Star(nodes).network(1e12), per_node, 1e13)
    hops = 2 * (nodes * per_node - 1)
    crossing = hops / per_node
    chain = crossing * between + (hops - crossing) * inside
    found = play(ring(nodes * per_node), network, 0.0, startup=Startup(inside, between)).seconds
    assert found == pytest.approx(chain, rel=0.1)


def test_messages_of_one_sender_follow_one_another_without_a_gap():
    """k messages of one rank to one other take k transmissions and one latency."""
    network = Star(2).network(1e9)
    rows = np.concatenate([transfers(step, [0], [1], step, step + 1, False) for step in range(4)])
    sent = Collective("four", "broadcast", 2, 4, rows)
    found = play(sent, network, 4e6, startup=Startup(0.0, 5e-3)).seconds
    assert found == pytest.approx(4e-3 + 5e-3)
