"""What an emulated network is made of, and which trials verify it."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddlnb.emulation.network import EmulatedNetwork
from ddlnb.emulation.verify_links import PAYLOAD_SHARE, fair_shares, trials, verify
from ddlnb.errors import DdlnbError, InputError
from ddlnb.launch.topology import EmulatedTopology, Link, Wire, star
from tests.networks.oracles import Flow, unfair

LINK = Link(12.5e6, 1e-3)


def wires_of(*cables: str, link: Link = LINK) -> tuple[Wire, ...]:
    """Return both wires of cables such as a-b."""
    ends = [cable.split("-") for cable in cables]
    return tuple(Wire(*pair, link) for one, other in ends for pair in ((one, other), (other, one)))


CHAIN = wires_of("a-b", "b-c")
CHAIN_ROUTES = {
    (0, 1): ((0,),),
    (1, 0): ((1,),),
    (1, 2): ((2,),),
    (2, 1): ((3,),),
    (0, 2): ((0, 2),),
    (2, 0): ((3, 1),),
}
RING = wires_of("a-b", "b-c", "c-a")


def chain() -> EmulatedTopology:
    """Return three hosts in a row, of which the middle one passes on."""
    return EmulatedTopology("chain", ("a", "b", "c"), CHAIN, CHAIN_ROUTES)


def test_a_star_has_half_of_the_latency_on_either_side():
    made = star([LINK, LINK.slowed(0.5)])
    route = made.routes[0, 1][0]
    assert [str(made.wires[wire]) for wire in route] == ["host0 -> switch0", "switch0 -> host1"]
    assert sum(made.wires[wire].link.latency for wire in route) == pytest.approx(1.5e-3)


@pytest.mark.parametrize(
    ("wires", "routes", "says"),
    [
        (CHAIN[:1], {}, "a wire from a to b and none back"),
        (CHAIN + CHAIN, {}, "has a wire twice"),
        (CHAIN, {(0, 2): ((2,),)}, "the route from a to c is at a and goes on with b -> c"),
        (CHAIN, {(0, 2): ((0,),)}, "the route from a to c ends at b"),
        (CHAIN, {(0, 2): ((),)}, "the route from a to c ends at a"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused(wires, routes, says):
    with pytest.raises(InputError, match=says):
        EmulatedTopology("wrong", ("a", "b", "c"), wires, routes)


def test_a_link_that_no_queue_can_shape_is_refused_with_the_scale():
    with pytest.raises(
        InputError, match=r"40 Gb/s is more than Linux can shape, 33.69 Gb/s; .*1/1"
    ):
        EmulatedNetwork(star([Link(5e9, 1e-5)] * 2))


def test_cables_are_found_by_the_names_of_their_ends():
    assert chain().cable("c", "b") == (3, 2)
    with pytest.raises(InputError, match=r"no cable joins 'a' and 'c'.*'a' is joined to b"):
        chain().cable("a", "c")
    with pytest.raises(InputError, match="it has no 'd'"):
        chain().cable("d", "a")
    with pytest.raises(InputError, match="has no device 'd'"):
        chain().at("d")


def test_cut_cables_say_who_has_lost_whom():
    made = chain()
    assert made.why_apart(()) == ""
    assert made.why_apart(made.cable("b", "c")) == (
        "a and c, b and c have lost each other: no route is left while b - c is cut"
    )
    many = star([LINK] * 5)
    assert many.why_apart(many.at("host0")) == (
        "host0 and host1, host0 and host2, host0 and host3 and 1 more pair of hosts have lost each "
        "other: no route is left while host0 - switch0 is cut"
    )


def test_a_pair_with_another_route_has_not_lost_each_other():
    ways = {(0, 1): ((0,), (5, 3)), (1, 0): ((1,), (2, 4))}
    made = EmulatedTopology("ring", ("a", "b"), RING, ways)
    assert made.apart(made.cable("a", "b")) == []
    assert made.apart([*made.cable("a", "b"), 3]) == [(0, 1)]
    assert made.with_one_route(3).routes == {(0, 1): ((5, 3),), (1, 0): ((2, 4),)}


@given(st.data())
def test_shares_are_max_min_fair(data):
    bandwidths = data.draw(st.lists(st.floats(1, 1e3), min_size=1, max_size=6))
    wires = st.lists(st.integers(0, len(bandwidths) - 1), min_size=1, max_size=4, unique=True)
    routes = [tuple(one) for one in data.draw(st.lists(wires, min_size=1, max_size=8))]
    flows = [Flow(route, (1.0,) * len(route)) for route in routes]
    uses = np.array([[wire in route for wire in range(len(bandwidths))] for route in routes])
    assert unfair(flows, np.array(bandwidths), fair_shares(bandwidths, uses)) == []


def test_a_ring_fills_every_link_of_a_star():
    (only,) = trials(star([LINK] * 4), 4)
    assert (only.shift, only.full.sum()) == (1, 8)
    assert only.round_trips[0] == pytest.approx(2e-3)


def test_the_forwarding_host_of_a_chain_is_filled_by_two():
    found = trials(chain(), 3)
    assert np.any([trial.full for trial in found], axis=0).all()


class Played:
    """A network that is not there, whose attempts at verification find these rates and trips."""

    topology = star([Link(2.5e6, 4e-3)] * 2)

    def __init__(self, *attempts: tuple[float, float]):
        self.left = list(attempts)  # shares of the payload's bandwidth, and of the round trip

    def route(self, routes: object) -> None:
        self.routes = routes

    def statistics(self) -> dict[str, float]:
        return {"late": 0.0}

    def run(self, _measure: object, orders: list, ranks_per_node: int) -> list:
        bandwidth, trip = self.left.pop(0)
        return [(bandwidth * PAYLOAD_SHARE * 2.5e6, trip * 8e-3)] * len(orders)


@pytest.mark.parametrize(
    ("attempts", "left", "warns"),
    [
        ([(1.0, 1.0), (0.5, 1.0)], 1, ""),
        ([(0.6, 1.0), (1.0, 2.0), (1.0, 1.0)], 0, ""),
        ([(0.8, 1.0), (0.6, 1.0), (0.6, 1.0)], 0, "was to have 2.35 MB/s and has 1.88 MB/s"),
        ([(1.0, 2.0)] * 3, 0, "round trips over 4 of 4 links are long"),
        ([(0.72, 1.0), (0.89, 1.0), (0.8, 1.0)], 0, "was to have 2.35 MB/s and has 2.09 MB/s"),
        ([(1.0, 6.0), (1.0, 1.4), (1.0, 1.5)], 0, "the worst 11.2 ms instead of 8 ms"),
        ([*[(0.6, 1.0)] * 4, (0.8, 1.0), (1.0, 1.0)], 1, "was to have 2.35 MB/s and has 1.88 MB/s"),
        ([*[(0.6, 1.0)] * 5, (1.0, 1.0)], 0, ""),
    ],
)
def test_the_best_of_the_attempts_at_a_network_counts(attempts, left, warns, recwarn):
    network = Played(*attempts)
    table = verify(network.run, network, 2)
    assert len(table) == 4
    assert len(network.left) == left
    assert [warns in str(one.message) for one in recwarn] == [True] * bool(warns)


def test_a_network_that_never_has_its_bandwidth_is_refused():
    network = Played(*[(0.6, 1.0)] * 6)
    with pytest.raises(DdlnbError, match="the emulated network is not the one asked for"):
        verify(network.run, network, 2)
