"""What holds for everything that is played, and where more bandwidth helps for sure."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ddlnb.networks.flows import Cap, Indices, Startup
from ddlnb.networks.network import Network
from ddlnb.networks.play import (
    Gates,
    Replay,
    Traffic,
    gates,
    of_collective,
    of_flows,
    play,
    share,
)
from ddlnb.networks.topologies import Star
from tests.networks.oracles import flow_of, rates_of, unfair, waits_for_data, waits_in_order
from tests.networks.random_traffic import (
    collectives,
    networks,
    plain_flows,
    relabelled,
    unlike,
)
from tests.networks.test_play import ring

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
def test_messages_begin_when_they_may_and_leave_at_fair_rates(traffic):
    require_right(traffic)


def require_right(traffic: Traffic) -> None:
    """Require what defines when messages begin, leave and arrive, and what links carry.

    Fair rates are unique, so that there is one way to be right.
    """
    links, bandwidths = len(traffic.network.links), traffic.network.bandwidths
    times = Replay(traffic).times(traffic.sizes, traffic.delay, bandwidths)
    assert times.stop == pytest.approx(times.left + traffic.delay, rel=1e-12)
    order, data = waits_in_order(traffic), waits_for_data(traffic)
    may = [
        max(release, *(times.left[one] for one in sends), *(times.stop[one] for one in parts), 0.0)
        for release, sends, parts in zip(traffic.release, order, data, strict=True)
    ]
    assert times.start == pytest.approx(may, rel=1e-9, abs=1e-15)
    flows = [flow_of(traffic.channels, channel) for channel in traffic.channel]
    sent, passed = np.zeros(len(flows)), np.zeros(links)
    for begin, end in pairwise(np.unique([times.start, times.left])):
        flying = np.flatnonzero((times.start <= begin) & (times.left >= end))
        among = [flows[message] for message in flying]
        rates = rates_of(among, bandwidths)
        assert unfair(among, bandwidths, rates) == []
        sent[flying] += rates * (end - begin)
    at_once = times.left == times.start  # without bytes, or without a limit
    assert sent[~at_once] == pytest.approx(traffic.sizes[~at_once], rel=1e-9)
    for flow, size in zip(flows, traffic.sizes, strict=True):
        passed[list(flow.links)] += size * np.array(flow.shares)
    counted = traffic.channels.carried(traffic.channel, traffic.sizes, links)
    assert passed == pytest.approx(counted, rel=1e-9)


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


@given(st.data())
@settings(max_examples=50)
def test_the_numbers_of_devices_change_nothing(data):
    # Evenly split: routings that choose one of several paths choose by number.
    network = replace(data.draw(networks()), routing="ecmp")
    collective = data.draw(collectives(network.ranks))
    order = data.draw(st.permutations(range(len(network.devices))))
    other = relabelled(network, order)
    places = [
        other.endpoints.index(order.index(network.endpoints[rank]))
        for rank in range(collective.ranks)
    ]
    startup = Startup(1e-5, 3e-5)
    one = play(collective, network, 1e7, startup=startup)
    two = play(collective, other, 1e7, startup=startup, placement=places)
    assert two.seconds == pytest.approx(one.seconds, rel=1e-9)
    assert two.link_bytes == pytest.approx(one.link_bytes, rel=1e-9)


@given(st.data())
@settings(max_examples=50)
def test_more_bandwidth_never_slows_messages_that_share_no_link(data):
    # Then a message takes its bytes at its slowest link and its delay, and every time is a maximum
    # of sums of those: none grows when one shrinks. On a star, a ring is of this kind.
    ranks = data.draw(st.integers(2, 7))
    seed = data.draw(st.integers(0, 2**32 - 1))
    network = unlike(Star(ranks).network(bandwidth=1e9), np.random.default_rng(seed))
    wider = widened(network, data)
    assert play(ring(ranks), wider, 1e7).seconds <= play(ring(ranks), network, 1e7).seconds * (
        1 + 1e-9
    )


@given(st.data())
@settings(max_examples=50)
def test_more_bandwidth_never_slows_flows_that_share_one_link(data):
    # Whatever the starts: each flow has its part of the one link, and is never behind.
    sizes = data.draw(st.lists(st.sampled_from([1e6, 4e6, 9e6]), min_size=1, max_size=6))
    flows = [
        (number + 1, 0, size, data.draw(st.sampled_from([0.0, 1e-3, 5e-3])))
        for number, size in enumerate(sizes)
    ]
    network = Star(len(flows) + 1).network(bandwidth=1e9)
    fast = [replace(link, bandwidth=1e12) for link in network.links]
    fast[1] = network.links[1]
    network = network.with_links(tuple(fast))
    fast[1] = replace(fast[1], bandwidth=1e9 * data.draw(st.floats(1.0, 10.0)))
    ends = share(network.with_links(tuple(fast)), flows).messages["stop"]
    assert (ends <= share(network, flows).messages["stop"] * (1 + 1e-9)).all()


@given(st.data())
@settings(max_examples=50)
def test_links_that_are_all_faster_by_one_factor_divide_the_time(data):
    network = data.draw(networks())
    network = network.with_links(tuple(replace(link, latency=0.0) for link in network.links))
    collective, factor = data.draw(collectives(network.ranks)), data.draw(st.floats(1.0, 100.0))
    faster = network.with_links(
        tuple(replace(link, bandwidth=link.bandwidth * factor) for link in network.links)
    )
    seconds = play(collective, network, 1e8).seconds
    assert play(collective, faster, 1e8).seconds == pytest.approx(seconds / factor, rel=1e-9)


def widened(network: Network, data: st.DataObject) -> Network:
    """Return the network with more bandwidth on one link."""
    number = data.draw(st.integers(0, len(network.links) - 1))
    links = list(network.links)
    factor = data.draw(st.floats(1.0, 10.0))
    links[number] = replace(links[number], bandwidth=links[number].bandwidth * factor)
    return network.with_links(tuple(links))
