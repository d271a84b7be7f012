"""Rates are max-min fair: by hand, and by the certificate of fairness."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddlnb.networks.flows import join, leave, refill, sharing
from ddlnb.networks.network import Numbers
from tests.networks.oracles import Flow, joined, rates_of, unfair


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


MANY = [one_way(0, 1 + number % 7) for number in range(5000)]


@pytest.mark.parametrize(
    ("flows", "bandwidths", "expected"),
    [
        # Three share a link, and a fourth has what they leave on the next.
        ([one_way(0), one_way(0), one_way(0, 1), one_way(1)], [1, 1], [1 / 3] * 3 + [2 / 3]),
        # What a cap leaves goes to the others.
        ([one_way(0, cap=1.0), one_way(0), one_way(0)], [9], [1, 4, 4]),
        # A split flow counts with its share on each link.
        ([Flow((0, 1), (0.5, 0.5)), one_way(0)], [3, 10], [2, 2]),
        # A flow without links has its cap.
        ([Flow((), ()), Flow((), (), 5.0), one_way(0)], [1], [math.inf, 5, 1]),
        (MANY, [1e9, *[1e12] * 7], [2e5] * 5000),
    ],
)
def test_rates_are_those_worked_out_by_hand(flows, bandwidths, expected):
    bandwidths = np.array(bandwidths, float)
    assert rates_of(flows, bandwidths) == pytest.approx(expected, rel=1e-12)


@given(shared_links(), st.data())
def test_only_fair_rates_have_a_certificate(case, data):
    flows, bandwidths = case
    rates = rates_of(flows, bandwidths)
    assert unfair(flows, bandwidths, rates) == []
    which = data.draw(st.integers(0, len(flows) - 1))
    rates[which] *= data.draw(st.sampled_from([0.5, 0.99, 1.01, 2.0]))
    assert unfair(flows, bandwidths, rates)


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
