"""A network knows its endpoints, its cables, and refuses what is no network."""

import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.networks.network import Device, Link, Network
from ddlnb.plans.transfers import Collective, transfers

PAIR = (Device("left", "host", 0), Device("right", "host", 1))
BOTH = (Link(0, 1, 1e9, 1e-6), Link(1, 0, 1e9, 1e-6))


def test_ranks_run_on_gpus_where_there_are_any_and_else_on_hosts():
    assert Network("pair", PAIR, BOTH).endpoints == (0, 1)
    island = (Device("node", "host", 0), Device("gpu", "gpu", 0))
    assert Network("island", island, BOTH).endpoints == (1,)


def test_a_cable_is_found_by_the_names_of_its_ends():
    network = Network("pair", PAIR, BOTH)
    assert network.cable("left", "right") == network.cable("right", "left") == 0
    with pytest.raises(UnknownName, match="unknown device 'lefty'"):
        network.cable("lefty", "right")


def test_a_link_of_one_direction_is_refused():
    with pytest.raises(InputError, match="one direction"):
        Network("pair", PAIR, BOTH[:1])
    with pytest.raises(InputError, match="come in pairs"):
        Network("pair", PAIR, (BOTH[0], BOTH[0]))


@pytest.mark.parametrize(("bandwidth", "latency"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -1e-9)])
def test_a_link_needs_bandwidth_and_no_negative_latency(bandwidth, latency):
    with pytest.raises(InputError, match="of a link must be"):
        Link(0, 1, bandwidth, latency)


def test_a_collective_counts_what_its_ranks_send():
    swap = Collective("swap", "all-reduce", 2, 1, transfers(0, [0, 1], [1, 0], 0, 1, True))
    assert swap.steps == 1
    assert swap.bytes_sent(10.0).tolist() == [10.0, 10.0]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (transfers(0, [0], [0], 0, 1, True), "sends to itself"),
        (transfers(0, [0], [2], 0, 1, True), "not among its 2"),
        (transfers(0, [0], [1], 1, 1, True), "parts that are not among its 1"),
        (transfers(-1, [0], [1], 0, 1, True), "steps below 0; begin with step 0"),
    ],
)
def test_transfers_that_cannot_be_are_refused(rows, reason):
    with pytest.raises(InputError, match=reason):
        Collective("wrong", "all-reduce", 2, 1, rows)
