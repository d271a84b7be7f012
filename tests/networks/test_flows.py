"""Rates are max-min fair: hand-worked cases, and the certificate that proves it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.errors import InputError
from ddlnb.networks.flows import CAP
from ddlnb.networks.network import Numbers
from tests.networks.oracles import Flow, bottlenecks, loads, max_min_rates, unfair


@st.composite
def shared_links(draw: st.DrawFn) -> tuple[list[Flow], Numbers]:
    """Up to 12 flows, some of them split and some of them capped, on up to 8 links."""
    number = draw(st.integers(1, 8))
    bandwidths = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.5, 10.0]), min_size=number,
                               max_size=number))  # fmt: skip
    flows = []
    for _ in range(draw(st.integers(1, 12))):
        links = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=4, unique=True))
        shares = [draw(st.sampled_from([1.0, 0.5, 1 / 3, 0.25])) for _ in links]
        cap = draw(st.sampled_from([math.inf, math.inf, 0.4, 2.5]))
        flows.append(Flow(tuple(links), tuple(shares), cap))
    return flows, np.array(bandwidths)


def one_way(*links: int, cap: float = math.inf) -> Flow:
    return Flow(links, (1.0,) * len(links), cap)


def test_three_share_a_link_and_a_fourth_has_what_they_leave_on_the_next():
    flows = [one_way(0), one_way(0), one_way(0, 1), one_way(1)]
    rates = max_min_rates(flows, np.array([1.0, 1.0]))
    assert rates == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert bottlenecks(flows, np.array([1.0, 1.0]), rates) == (0, 0, 0, 1)


def test_what_a_cap_leaves_goes_to_the_others():
    flows = [one_way(0, cap=1.0), one_way(0), one_way(0)]
    rates = max_min_rates(flows, np.array([9.0]))
    assert rates == pytest.approx([1.0, 4.0, 4.0])
    assert bottlenecks(flows, np.array([9.0]), rates) == (CAP, 0, 0)


def test_a_split_flow_counts_with_its_share_on_each_link():
    halves = Flow((0, 1), (0.5, 0.5))
    rates = max_min_rates([halves, one_way(0)], np.array([3.0, 10.0]))
    assert rates == pytest.approx([2.0, 2.0])
    assert loads([halves, one_way(0)], np.array([3.0, 10.0]), rates) == pytest.approx([3.0, 1.0])


def test_a_flow_without_links_has_its_cap():
    rates = max_min_rates([Flow((), ()), Flow((), (), 5.0), one_way(0)], np.array([1.0]))
    assert rates.tolist() == [math.inf, 5.0, 1.0]


@given(shared_links())
def test_rates_have_their_certificate(case):
    flows, bandwidths = case
    assert unfair(flows, bandwidths, max_min_rates(flows, bandwidths)) == []


@given(shared_links(), st.data())
def test_rates_that_differ_have_none(case, data):
    flows, bandwidths = case
    rates = max_min_rates(flows, bandwidths)
    which = data.draw(st.integers(0, len(flows) - 1))
    rates[which] *= data.draw(st.sampled_from([0.5, 0.99, 1.01, 2.0]))
    assert unfair(flows, bandwidths, rates)


@pytest.mark.parametrize(
    ("links", "shares", "cap", "reason"),
    [
        ((0, 1), (1.0,), 1.0, "one share for each"),
        ((0, 0), (0.5, 0.5), 1.0, "each once"),
        ((0,), (0.0,), 1.0, "above 0 and at most 1"),
        ((0,), (1.5,), 1.0, "above 0 and at most 1"),
        ((0,), (1.0,), 0.0, "must be positive"),
    ],
)
def test_flows_that_cannot_be_are_refused(links, shares, cap, reason):
    with pytest.raises(InputError, match=reason):
        Flow(links, shares, cap)
