"""What unlike workers cost relaxed methods: their rates, leads and links."""

from __future__ import annotations

import pytest

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.clusters.heterogeneous import Delay
from ddlnb.training.cost.estimate import cluster_clock, iteration_cost
from ddlnb.training.executors.clock import OneSlow
from tests.toy import TOY

FREE = Cluster("free", "by hand", 4, 1, Effects(), server_place="extra machines")
SLOW = FREE.with_effects(between_bandwidth=1000.0)
COMPUTE = TOY.compute_seconds


def seconds(cluster, method, **options):
    return iteration_cost(TOY, cluster, method, overlap=False, **options).iteration_seconds


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
def test_asynchronous_workers_go_at_the_sum_of_their_rates(factor):
    """An iteration is as many gradients as there are workers."""
    rates = 3 + 1 / factor
    found = seconds(FREE.with_heterogeneity({1: factor}), "asp on PS", steps=64)
    assert found == pytest.approx(COMPUTE * 4 / rates, rel=1e-9)


@pytest.mark.parametrize("method", ["bsp on A2A", "bsp on PS", "local(4) on A2A", "ssp(2) on PS"])
def test_who_waits_goes_at_the_rate_of_the_slowest(method):
    found = seconds(FREE.with_heterogeneity({1: 2.0}), method, steps=400)
    assert found == pytest.approx(COMPUTE * 2, rel=0.02)  # SSP gets its bound ahead, once


def test_stale_synchronous_workers_are_between_the_two():
    delayed = FREE.with_heterogeneity(delay=Delay("exponential", COMPUTE, seed=2))
    order = ["asp on PS", "ssp(8) on PS", "ssp(1) on PS", "bsp on PS"]
    found = [seconds(delayed, method, steps=96) for method in order]
    assert found == sorted(found)
    assert found[0] < 0.8 * found[-1]


def test_the_cluster_slows_a_worker_down_as_a_law_does():
    here, law = SLOW.with_heterogeneity({3: 2.0}), OneSlow(2.0, rank=3)
    for method in ("bsp on A2A", "bsp on PS", "local(2) on A2A", "asp on PS"):
        by_law = seconds(SLOW, method, slower=law)
        assert seconds(here, method) == pytest.approx(by_law, rel=1e-9)
    for method in ("WFBP-A2A", "MG-WFBP", "WFBP-PS", "ByteScheduler-PS"):
        by_law = iteration_cost(TOY, SLOW, method, slower=law).iteration_seconds
        found = iteration_cost(TOY, here, method).iteration_seconds
        assert found == pytest.approx(by_law, rel=1e-9)


def test_delays_come_on_top_of_the_seconds_of_computation():
    delay = Delay("pareto", 0.5, seed=3)
    clock = cluster_clock(TOY, FREE.with_heterogeneity({2: 3.0}, delay=delay))
    late = delay.seconds(2, 300)
    for step in (0, 7, 299):
        assert clock.compute(2, step, 4) == pytest.approx(3 * COMPUTE + late[step])


def test_a_slow_link_holds_up_asynchronous_pushes_of_its_node_alone():
    """520 bytes there and back, at 1 kB/s."""
    alike, slow = SLOW, SLOW.with_heterogeneity(link={0: 4.0})
    trips = [
        cluster_clock(TOY, cluster, "asp on PS").trip_of(rank, "push", 520, 4).seconds
        for cluster in (alike, slow)
        for rank in (0, 1)
    ]
    assert trips[0] == trips[1] == trips[3]
    assert trips[2] > trips[0]


def test_messages_take_what_the_slower_of_two_links_takes():
    clock = cluster_clock(TOY, SLOW.with_heterogeneity(link={1: 3.0}), "d-psgd")
    paces = [clock.link(*pair).seconds_per_byte for pair in ((0, 1), (1, 2), (2, 3))]
    assert paces == pytest.approx([3e-3, 3e-3, 1e-3])
