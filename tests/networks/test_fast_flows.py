"""The compiled rates are those of progressive filling, also when flows come and go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.networks.flows import join, leave, refill, sharing
from tests.networks.oracles import Flow, max_min_rates, unfair
from tests.networks.random_traffic import joined
from tests.networks.test_flows import one_way, shared_links


def fast_max_min_rates(channels, bandwidths):
    """Return the rate of every channel if all of them flow."""
    on = sharing(channels, bandwidths)
    for channel in range(len(channels.cap)):
        join(on, channel)
    refill(on)
    return np.array(on.channels["rate"])


@given(shared_links())
def test_both_find_the_same_rates(case):
    flows, bandwidths = case
    expected = max_min_rates(flows, bandwidths)
    assert fast_max_min_rates(joined(flows), bandwidths) == pytest.approx(expected, rel=1e-9)


@given(shared_links(), st.data())
def test_rates_stay_fair_while_flows_come_and_go(case, data):
    flows, bandwidths = case
    on, flowing = sharing(joined(flows), bandwidths), set[int]()
    for _ in range(data.draw(st.integers(1, 12))):
        changing = data.draw(st.sets(st.integers(0, len(flows) - 1), min_size=1, max_size=3))
        for channel in changing:
            (leave if channel in flowing else join)(on, channel)
        flowing ^= changing
        refill(on)
        there = sorted(flowing)
        rates = np.array(on.channels["rate"])[there]
        assert unfair([flows[channel] for channel in there], bandwidths, rates) == []
        expected = max_min_rates([flows[channel] for channel in there], bandwidths)
        assert rates == pytest.approx(expected, rel=1e-9)


def test_only_those_are_filled_again_whose_rates_may_change():
    # Two links with two flows each: one that leaves the first link changes nothing on the second.
    flows = [one_way(0), one_way(0), one_way(1), one_way(1)]
    on = sharing(joined(flows), np.array([2.0, 4.0]))
    for channel in range(4):
        join(on, channel)
    assert refill(on) == 4
    leave(on, 0)
    assert refill(on) == 1
    assert on.chosen[0] == 1
    assert on.channels["rate"][1:].tolist() == [2.0, 2.0, 2.0]


def test_flows_without_links_have_their_caps():
    flows = [Flow((), ()), Flow((), (), 5.0), one_way(0)]
    assert fast_max_min_rates(joined(flows), np.array([1.0])).tolist() == [np.inf, 5.0, 1.0]


def test_many_equal_flows_share_equally():
    flows = [one_way(0, 1 + number % 7) for number in range(5000)]
    rates = fast_max_min_rates(joined(flows), np.array([1e9, *[1e12] * 7]))
    assert rates == pytest.approx(np.full(5000, 2e5), rel=1e-12)
