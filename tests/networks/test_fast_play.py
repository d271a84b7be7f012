"""The compiled player plays what the plain one plays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlnb.networks.channels import Cap, Startup
from ddlnb.networks.dependencies import gates
from ddlnb.networks.fast_play import play_fast
from ddlnb.networks.plain_play import play_plain, waits_for
from ddlnb.networks.traffic import Traffic, of_collective, of_flows
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
    plain, fast = play_plain(traffic), play_fast(traffic)
    assert fast.start == pytest.approx(plain.start, rel=1e-9, abs=1e-15)
    assert fast.stop == pytest.approx(plain.stop, rel=1e-9, abs=1e-15)


@given(traffics())
def test_gates_say_who_waits_for_whom(traffic):
    # Gates leave out what is waited for already; with the waits of those, all are there.
    between = gates(traffic)
    count = len(traffic.sizes)
    direct: list[set[int]] = [set() for _ in range(count)]
    for message in range(count):
        for gate in between.fed[between.feeds[message] : between.feeds[message + 1]]:
            for other in between.opened[between.opens[gate] : between.opens[gate + 1]]:
                direct[other].add(message)
    every: list[set[int]] = []
    for message in np.argsort(traffic.step, kind="stable"):
        assert message == len(every)
        every.append(direct[message].union(*(every[earlier] for earlier in direct[message])))
    for waits, gated, before in zip(waits_for(traffic), direct, every, strict=True):
        assert gated <= waits <= before
    feeding = np.bincount(between.fed, minlength=len(between.needs))
    assert feeding.tolist() == between.needs.tolist()
    opened = np.bincount(between.opened, minlength=count)
    assert opened.tolist() == between.waits.tolist()
