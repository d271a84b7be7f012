"""Cables of emulated networks, cut and restored while ranks send and train."""

import threading
import time

import pytest

from benchmarks.socket_transfers import transfer_seconds
from ddlnb.emulation.network import lacking
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MEASURING
from ddlnb.errors import RankError
from ddlnb.launch.ranks import Ranks
from ddlnb.networks.fabric import emulated_topology
from ddlnb.workloads.replay import replayed
from tests.engines.jobs import made_up

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(bool(lacking()), reason=lacking() or "-"),
]
SPINES = ("spine0", "spine1")


@pytest.fixture(scope="module")
def tree():
    """Two leaves of two hosts, joined by two spines."""
    network = emulated_topology("two-tier(2, 2, 2, 2)", "20Mb/s 2ms")
    with Ranks(4, launcher="emulated", network=network, imports=MEASURING) as ranks:
        yield ranks


def cut(network, *spines):
    for spine in spines:
        network.cut("leaf0", spine)


def restore(network, *spines):
    for spine in spines:
        network.restore("leaf0", spine)


def train(ranks, **options):
    """Train a replayed model of 240 KB with 4 workers; an iteration takes about a second."""
    task = replayed(made_up(30_000, 30_000))
    settings = {"iterations": 3, "warmup": 1, "repetitions": 1, "baselines": False, **options}
    return measure(task, ["WFBP-A2A"], workers=4, ranks=ranks, **settings)


@pytest.mark.thorough
def test_connections_take_the_other_spine_when_a_cable_is_cut(tree):
    cut(tree.network, "spine0")
    before = tree.network.carried()
    tree.run(transfer_seconds, [(0, 2, 200_000), (1, 3, 200_000)])
    after = tree.network.carried()
    restore(tree.network, "spine0")
    assert tree.network.why_apart() == ""
    assert after["leaf0 -> spine0"] == before["leaf0 -> spine0"]
    assert after["leaf0 -> spine1"] - before["leaf0 -> spine1"] > 400_000


@pytest.mark.thorough
def test_a_cable_that_is_cut_and_restored_only_costs_time(tree):
    network = tree.network

    def disturb():
        cut(network, *SPINES)
        time.sleep(1)
        restore(network, *SPINES)

    thread = threading.Timer(0.5, disturb)
    thread.start()
    start = time.monotonic()
    tree.run(transfer_seconds, [(0, 2, 2_000_000)])
    thread.join()
    assert time.monotonic() - start > 1.5


def test_training_goes_on_over_the_other_spine(tree):
    network = tree.network
    thread = threading.Timer(1, cut, (network, "spine0"))
    thread.start()
    rows = train(tree, iterations=10)
    thread.join()
    restore(network, "spine0")
    assert list(rows["method"]) == ["WFBP-A2A"]
    assert tree.network is network


@pytest.mark.thorough
def test_training_whose_hosts_have_lost_each_other_ends_with_one_error_that_names_them(tree):
    train(tree)
    thread = threading.Timer(1, cut, (tree.network, *SPINES))
    thread.start()
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        train(tree, iterations=1000, timeout_seconds=8)
    thread.join()
    assert time.monotonic() - start < 60
    first = str(caught.value).splitlines()[0]
    assert "host0 and host2, host0 and host3, host1 and host2 and 1 more pair of hosts" in first
    assert "leaf0 - spine0, leaf0 - spine1 are cut" in first
    assert len(train(tree)) == 1  # fresh ranks on a fresh network
