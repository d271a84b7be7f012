"""Workers that differ: all apart take what one class takes where all are alike; else formulas.

Laws over the random situations of `test_simulate`, and iterations that can be added in the head.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import integrate, stats

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import UNLIMITED, Effects
from ddlnb.clusters.file import get_cluster
from ddlnb.clusters.heterogeneous import Delay
from ddlnb.errors import InputError
from ddlnb.simulator import events
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.workers import (
    DRAWN_ITERATIONS,
    NodeClass,
    WorkerClass,
    Workers,
    workers_of,
)
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.simulator.oracle import play_plain
from tests.simulator.test_simulate import ALL_TO_ALL, TWO_LAYERS, only, situations

factors = st.integers(1, 16).map(lambda n: n / 4)
delays = st.sampled_from([None, Delay("exponential", 0.25, seed=1), Delay("pareto", 0.5)])


@st.composite
def heterogeneous_situations(draw, delay=delays, **fixed):
    """A situation on whose cluster up to three workers and two links differ."""
    situation = draw(situations(**fixed))
    cluster = situation.cluster
    workers, nodes = (st.integers(0, n - 1) for n in (cluster.workers, cluster.nodes))
    compute = draw(st.dictionaries(workers, factors, max_size=3))
    link = draw(st.dictionaries(nodes, factors, max_size=2))
    return situation.on(cluster.with_heterogeneity(compute, link, draw(delay)))


def apart(cluster: Cluster) -> Workers:
    """Every worker a class of its own."""
    given, everyone = cluster.heterogeneity, range(cluster.workers)
    factor = np.array([[given.compute_factor(rank)] for rank in everyone])
    links = [
        given.link_factor(node) if cluster.nodes_in_use > 1 else 1.0
        for node in range(cluster.nodes_in_use)
    ]
    classes = tuple(WorkerClass(rank, rank // cluster.workers_per_node, 1) for rank in everyone)
    return Workers(classes, tuple(NodeClass(1, link) for link in links), factor, 0 * factor)


def played(situation, iterations=6):
    """The seconds of the compiled simulator, which the plain one finds, too."""
    workers = workers_of(situation.cluster, iterations=iterations)
    program = replace(situation.program, workers=workers)
    found, plain = play(program), play_plain(program)
    assert found == plain.seconds
    return found


@settings(max_examples=60)
@given(
    situations(least_seconds=0)
    | situations(least_nodes=4, topology="two-tier(4, 2, oversubscription=4)")
)
def test_alike_workers_all_apart_take_what_one_class_takes(situation):
    one = play(situation.program)
    found = play(replace(situation.program, workers=apart(situation.cluster)))
    assert found.iteration_seconds == pytest.approx(one.iteration_seconds, rel=1e-9)
    margin = 1e-9 * one.iteration_seconds
    assert found.exposed_seconds == pytest.approx(one.exposed_seconds, abs=margin)


@settings(max_examples=100)
@given(heterogeneous_situations(least_seconds=0))
def test_the_compiled_simulator_agrees_with_the_plain_one_to_the_last_digit(situation):
    played(situation)
    workers = workers_of(situation.cluster, iterations=3, warm_up=False)
    program = replace(situation.program, workers=workers)
    assert events.spans(program, 3) == play_plain(program, 3).spans


@settings(max_examples=40)
@given(heterogeneous_situations(delay=st.none(), compute_share=1.0))
def test_workers_of_a_class_need_not_be_simulated_apart(situation):
    few = play(situation.program)
    all_of_them = play(replace(situation.program, workers=apart(situation.cluster)))
    if few.is_steady and all_of_them.is_steady:
        seconds = all_of_them.iteration_seconds
        assert few.iteration_seconds == pytest.approx(seconds, rel=1e-9)
        exposed = all_of_them.exposed_seconds
        assert few.exposed_seconds == pytest.approx(exposed, abs=1e-9 * seconds)


def test_one_slow_worker_of_a_thousand_makes_three_classes():
    survey = get_cluster("survey-10GbE")
    large = replace(survey, nodes=256, workers=1024).with_heterogeneity({7: 2.0})
    workers = workers_of(large)
    assert workers.classes == ((0, 0, 1020), (4, 1, 3), (7, 1, 1))
    assert [one.nodes for one in workers.nodes] == [255, 1]
    assert workers.factor.tolist() == [[1.0], [1.0], [2.0]]


# Computation, then exchange: closed forms.


def bsp(workers, per_node=1, **effects):
    """BSP on a ring that takes 1 s per 1000 bytes of two workers; see `TWO_LAYERS`."""
    effects = {"between_bandwidth": 1000.0, "inside_bandwidth": 1000.0} | effects
    nodes = workers // per_node
    return Cluster("ring", "by hand", nodes, per_node, Effects(**effects))


def exchange(cluster):
    size = TWO_LAYERS.gradient_bytes
    return cluster.cost.seconds(size)


def played_plan(cluster, method, servers=None, workload=TWO_LAYERS):
    plan = plan_on(cluster, workload, method, servers)
    return play(lower(workload, cluster, plan))


@pytest.mark.parametrize(
    ("slow", "link"),
    [
        ({0: 2.0}, {}),
        ({1: 3.0, 2: 0.5}, {}),
        ({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}, {}),
        ({}, {3: 4.0}),
    ],
)
def test_bsp_takes_the_slowest_worker_s_computation_and_the_exchange_of_the_slowest_link(
    slow, link
):
    cluster = bsp(4).with_heterogeneity(slow, link)
    found = played_plan(cluster, "BSP-A2A")
    factors = [cluster.heterogeneity.compute_factor(rank) for rank in range(4)]
    seconds = max(link.values(), default=1.0) * exchange(bsp(4))
    assert found.iteration_seconds == pytest.approx(4.5 * max(factors) + seconds, rel=1e-12)
    waits = 4.5 * (max(factors) - sum(factors) / 4) + seconds
    assert found.exposed_seconds == pytest.approx(waits, rel=1e-12)


@pytest.mark.parametrize(
    ("method", "compute", "iteration"),
    [
        # b is ready at 3 s and a at 4.5 s with a fast worker, at 6 s and 9 s with the slow one; b
        # takes 4 s and a 2 s.
        ("WFBP-A2A", {0: 2.0}, 12.0),
        ("MG-WFBP", {1: 2.0}, 12.0),
        ("BSP-A2A", {1: 2.0}, 15.0),
        ("WFBP-A2A", {0: 4.0}, 20.0),
    ],
)
def test_times_that_can_be_added_in_the_head(method, compute, iteration):
    cluster = Cluster("pair", "by hand", 1, 2, Effects(inside_bandwidth=1000.0))
    found = played_plan(cluster.with_heterogeneity(compute), method)
    assert found.iteration_seconds == pytest.approx(iteration, rel=1e-12)


@pytest.mark.parametrize(
    ("link", "iteration"),
    [
        # Both push 6000 bytes in 1.5 s, over a connection of 4 kB/s that is the link itself; the
        # server's link takes 12000 bytes at 4 kB/s, 3 s each way.
        ({}, 4.5 + 3 + 3),
        # The push of the slow node takes 1.5 s times its factor, and so does its pull.
        ({0: 1.5}, 4.5 + 3 + 3),
        ({0: 4.0}, 4.5 + 6 + 6),
        ({0: 4.0, 1: 4.0}, 4.5 + 6 + 6),
    ],
)
def test_each_node_pushes_and_pulls_through_its_own_link(link, iteration):
    cluster = bsp(2, between_bandwidth=4000.0)
    cluster = replace(cluster, server_place="extra machines").with_heterogeneity(link=link)
    found = played_plan(cluster, "BSP-PS", servers=1)
    assert found.iteration_seconds == pytest.approx(iteration, rel=1e-12)


def test_the_server_sums_when_the_last_push_has_come():
    """A push that comes alone has the server's link for itself.

    The fast worker pushes from 4.5 s to 6 s, and the slow one from 9 s to 10.5 s.
    """
    cluster = replace(bsp(2, between_bandwidth=4000.0), server_place="extra machines")
    found = played_plan(cluster.with_heterogeneity({0: 2.0}), "BSP-PS", servers=1)
    assert found.iteration_seconds == pytest.approx(9 + 1.5 + 3, rel=1e-12)


@pytest.mark.parametrize("delay", [Delay("exponential", 2.0), Delay("pareto", 1.0, 3.0, seed=5)])
def test_bsp_with_random_delays_takes_the_latest_worker_in_every_iteration(delay):
    cluster = bsp(4).with_heterogeneity(delay=delay)
    found = played_plan(cluster, "BSP-A2A")
    latest = np.max([delay.seconds(rank, DRAWN_ITERATIONS) for rank in range(4)], axis=0)
    expected = 4.5 + exchange(cluster) + latest.mean()
    assert found.iteration_seconds == pytest.approx(expected, rel=1e-12)
    assert not found.is_steady


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_the_mean_of_bsp_is_that_of_the_order_statistic(workers):
    """Of n exponential delays the largest is H_n means long on average."""
    late = bsp(workers).with_heterogeneity(delay=Delay("exponential", 1.0))
    program = replace(
        lower(TWO_LAYERS, bsp(workers), plan_on(bsp(workers), TWO_LAYERS, "BSP-A2A")),
        workers=workers_of(late, iterations=1000),
    )
    law = stats.expon()
    mean, _ = integrate.quad(lambda x: 1 - law.cdf(x) ** workers, 0, np.inf)
    assert mean == pytest.approx(sum(1 / n for n in range(1, workers + 1)))
    spread = sqrt(sum(1 / n**2 for n in range(1, workers + 1)))
    found = play(program).iteration_seconds - 4.5 - exchange(bsp(workers))
    assert found == pytest.approx(mean, abs=4 * spread / sqrt(1000))  # four standard errors


# Laws.


@settings(max_examples=60)
@given(
    st.data(),
    heterogeneous_situations(methods=only(*ALL_TO_ALL), delay=st.none(), compute_share=1.0),
)
def test_a_slower_worker_or_link_never_speeds_up_listed_all_reduces(data, situation):
    cluster = situation.cluster
    rank = data.draw(st.integers(0, cluster.workers - 1))
    compute = dict(cluster.heterogeneity.compute)
    slower = cluster.with_heterogeneity(
        compute | {rank: compute.get(rank, 1.0) * 2}, dict(cluster.heterogeneity.link)
    )
    better, worse = played(situation), played(situation.on(slower))
    if better.is_steady and worse.is_steady:
        assert better.iteration_seconds <= worse.iteration_seconds * (1 + 1e-9)


@settings(max_examples=60)
@given(heterogeneous_situations(methods=only(*ALL_TO_ALL), delay=st.none(), compute_share=1.0))
def test_workers_that_differ_are_no_slower_than_if_all_were_the_slowest(situation):
    """And no faster than the slowest computes."""
    cluster = situation.cluster
    slowest = max(cluster.heterogeneity.compute_factor(rank) for rank in range(cluster.workers))
    found = played(situation)
    if not found.is_steady:
        return
    program, alike = situation.program, workers_of(cluster.with_heterogeneity())
    bound = play(replace(program, task_seconds=program.task_seconds * slowest, workers=alike))
    assert found.iteration_seconds <= bound.iteration_seconds * (1 + 1e-9)
    assert found.iteration_seconds >= slowest * program.compute_seconds * (1 - 1e-9)


@settings(max_examples=40)
@given(situations(gpus_per_node=1, methods=only(*ALL_TO_ALL)), st.data())
def test_it_does_not_matter_which_node_has_the_slow_worker(situation, data):
    """Without servers: these serve parts that come at one time in the order of their senders."""
    nodes = st.integers(0, situation.cluster.nodes - 1)
    seconds = []
    for node in (data.draw(nodes), data.draw(nodes)):
        cluster = situation.cluster.with_heterogeneity({node: 3.0}, {node: 2.0})
        seconds.append(played(situation.on(cluster)).iteration_seconds)
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


def test_a_worker_that_is_ahead_does_not_wait_for_layers_that_it_has():
    """ByteScheduler: layer a has no gradient, so its forward pass goes on while b is under way.

    Workers that take turns to be slow cost BSP the slowest of every iteration; here the one that is
    slow next begins to compute while the other one still is.
    """
    gradients = (Gradient("b", "b", 50, 4, 1.0),)
    workload = Workload("two", 1, (Layer("a", 2.0), Layer("b", 1.0)), gradients, "by hand")
    cluster = Cluster("pair", "by hand", 1, 2, Effects(inside_bandwidth=1000.0))

    def slower(rank, step, workers):
        return 2.0 if rank == step % 2 else 1.0

    def seconds(method):
        plan = plan_on(cluster, workload, method)
        program = lower(workload, cluster, plan)
        program = replace(program, workers=workers_of(cluster, slower, 32))
        both = lower(workload, cluster.with_effects(compute_factor=2.0), plan)
        found = play(program).iteration_seconds
        assert found == play_plain(program).seconds.iteration_seconds
        return found, play(both).iteration_seconds

    bsp, slowest = seconds("BSP-A2A")
    assert bsp == pytest.approx(slowest) == 8.2
    ahead, slowest = seconds("ByteScheduler-A2A")
    assert slowest == pytest.approx(8.0)
    # Forward b and backward b of the slow one, 4 s, then 0.2 s of network; the next slow one has
    # begun 4 s of forward a when its own backward b was over, 2 s earlier.
    assert ahead == pytest.approx(4 + 0.2 + 2 - 0.2, abs=0.2)


def test_free_links_of_one_node_have_no_factor():
    """Within a node the link to the network is not used."""
    cluster = Cluster("one", "by hand", 2, 2, Effects(inside_bandwidth=1000.0), workers=2)
    assert cluster.with_heterogeneity(link={0: 4.0}).is_homogeneous
    assert cluster.with_heterogeneity(compute={3: 4.0}).is_homogeneous
    assert not cluster.with_heterogeneity(compute={1: 4.0}).is_homogeneous
    assert cluster.effects.between_bandwidth == UNLIMITED


def test_too_many_services_are_refused(monkeypatch):
    monkeypatch.setattr(events, "MOST_SERVICES", 1)
    cluster = bsp(2).with_heterogeneity({0: 2.0})
    with pytest.raises(InputError, match="2 messages of 2 workers that differ make 2 services"):
        played_plan(cluster, "WFBP-A2A")
