"""The compiled player plays what the plain one plays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlnb.networks.flows import Cap, Indices, Startup
from ddlnb.networks.play import (
    Gates,
    Replay,
    Traffic,
    gates,
    of_collective,
    of_flows,
)
from tests.networks.oracles import play_plain, waits_for_data, waits_in_order
from tests.networks.random_traffic import collectives, networks, plain_flows

STARTUPS = st.sampled_from([Startup(), Startup(0.0, 1e-4), Startup(1e-5, 2e-4)])
CAPS = st.sampled_from([Cap(), Cap(2e9, 0.3e9)])


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """A collective or flows on any network."""
    network, startup, cap = draw(networks()), draw(STARTUPS), draw(CAPS)
    if draw(st.booleans()):
        return of_flows(network, draw(plain_flows(network.ranks)), startup, cap)
    collective = draw(collectives(network.ranks))
    places = st.lists(
        st.integers(0, network.ranks - 1),
        min_size=collective.ranks,
        max_size=collective.ranks,
    )
    placement = draw(st.none() | places)
    size = draw(st.sampled_from([0.0, 3e6, 1e8]))
    return of_collective(collective, network, size, startup, cap, placement)


@given(traffics())
@settings(max_examples=200)
def test_both_play_alike(traffic):
    plain = play_plain(traffic)
    fast = Replay(traffic).times(traffic.sizes, traffic.delay, traffic.network.bandwidths)
    assert fast.start == pytest.approx(plain.start, rel=1e-9, abs=1e-15)
    assert fast.left == pytest.approx(plain.left, rel=1e-9, abs=1e-15)
    assert fast.stop == pytest.approx(plain.stop, rel=1e-9, abs=1e-15)


@given(traffics())
def test_gates_say_who_waits_for_whom(traffic):
    # Gates leave out what is waited for already: by a message that has left, and so had begun.
    between = gates(traffic)
    count = len(traffic.sizes)
    order = behind_gates(between, between.order_start, between.order, count)
    data = behind_gates(between, between.data_start, between.data, count)
    began: list[set[int]] = []  # what has left or arrived before, when a message begins
    for message in range(count):
        assert order[message] <= waits_in_order(traffic)[message]
        assert data[message] <= waits_for_data(traffic)[message]
        before = order[message] | data[message]
        began.append(before.union(*(began[earlier] for earlier in before)))
        assert waits_in_order(traffic)[message] <= began[message]
        assert waits_for_data(traffic)[message] <= data[message].union(
            *(began[earlier] for earlier in waits_in_order(traffic)[message])
        )
    fed = np.concatenate([between.order, between.data])
    assert np.bincount(fed, minlength=len(between.needs)).tolist() == between.needs.tolist()
    assert np.bincount(between.opened, minlength=count).tolist() == between.waits.tolist()


def behind_gates(between: Gates, starts: Indices, fed: Indices, count: int) -> list[set[int]]:
    """Return for every message those that feed one of its gates."""
    found: list[set[int]] = [set() for _ in range(count)]
    for message in range(count):
        for gate in fed[starts[message] : starts[message + 1]]:
            for other in between.opened[
                between.opened_start[gate] : between.opened_start[gate + 1]
            ]:
                found[other].add(message)
    return found
