"""The simulator's laws, over random workloads, clusters, effects and methods.

A law of the model is not a claim about the world. Times are multiples of 1/1024 s, so that sums
are exact and events that should fall together do.
"""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from ddlnb.clusters.cluster import SERVER_PLACES, Cluster
from ddlnb.clusters.effects import (
    BANDWIDTH,
    DEVIATION,
    EFFECTS,
    FACTOR,
    PARTS,
    SECONDS,
    SHARE,
    UNLIMITED,
    Effects,
    slowest_of,
)
from ddlnb.clusters.fabric import ALL_REDUCES
from ddlnb.clusters.named import cluster_of
from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import PLACEMENTS, Bucketing, hashed, merged, message_of, partitioned
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Gate, Launch, Message, Order, Piece, Plan
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.draws import draw_clusters
from ddlnb.simulator.events import Seconds, play, spans
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell, plan_on, simulate, steady_seconds
from ddlnb.workloads.workload import Gradient, Layer, Workload, read_profile
from tests.simulator.oracle import play_plain

TICK = 1 / 1024
KILO = 1024.0
ALL_TO_ALL = [name for name, method in METHODS.items() if method.architecture == "A2A"]
WITH_SERVERS = [name for name, method in METHODS.items() if method.architecture == "PS"]
NONE = {name: effect.default for name, effect in EFFECTS.items()}


def of_unit(unit):
    return [name for name, effect in EFFECTS.items() if effect.unit is unit]


START_UPS = dict.fromkeys(of_unit(SECONDS), 0.0)

values = {
    SECONDS.name: st.integers(1, 512).map(lambda n: n * TICK),
    BANDWIDTH.name: st.integers(1, 64).map(lambda n: n * KILO),
    SHARE.name: st.integers(1, 15).map(lambda n: n / 16),
    FACTOR.name: st.integers(1, 8).map(lambda n: n / 4),
    DEVIATION.name: st.integers(0, 4).map(lambda n: n / 8),
    PARTS.name: st.integers(4, 16).map(lambda n: n / 4),
}


class Situation(NamedTuple):
    workload: Workload
    cluster: Cluster
    plan: Plan

    @property
    def program(self):
        return lower(self.workload, self.cluster, self.plan)

    def on(self, cluster):
        return self._replace(cluster=cluster)


@st.composite
def workloads(draw, least_seconds=1, most_gradients=8):
    seconds = st.integers(least_seconds, 3072).map(lambda n: n * TICK)
    layers = draw(st.lists(seconds, min_size=1, max_size=6))
    count = draw(st.integers(1, most_gradients))
    layer_of = draw(st.lists(st.integers(0, len(layers) - 1), min_size=count, max_size=count))
    gradients = tuple(
        Gradient(f"g{i}", f"l{layer}", draw(st.integers(1, 2000)), 4, draw(seconds))
        for i, layer in enumerate(layer_of)
    )
    listed = tuple(Layer(f"l{i}", forward) for i, forward in enumerate(layers))
    return Workload("random", 1, listed, gradients, "drawn")


@st.composite
def clusters(draw, least_nodes=1, **fixed):
    """Any shape with any of the effects; those that are fixed are effects or fields."""
    effects = {name: value for name, value in fixed.items() if name in EFFECTS}
    drawn = {n: values[one.unit.name] for n, one in EFFECTS.items() if n not in effects}
    fields = {
        "nodes": draw(st.integers(least_nodes, 4)),
        "gpus_per_node": draw(st.integers(1, 4)),
        "all_reduce": draw(st.sampled_from(sorted(ALL_REDUCES))),
        "server_place": draw(st.sampled_from(SERVER_PLACES)),
        "placement": draw(st.sampled_from(sorted(PLACEMENTS))),
    }
    fields |= {name: value for name, value in fixed.items() if name not in EFFECTS}
    effects |= draw(st.fixed_dictionaries({}, optional=drawn))
    return Cluster("random", "drawn", effects=Effects(**effects), **fields)


def only(*names):
    """These methods, with messages so small that there are several of them."""
    return st.builds(
        lambda name, partition, credit: METHODS[name].tuned(partition=partition, credit=credit),
        st.sampled_from(names),
        st.integers(40, 4000),
        st.integers(1, 8000),
    )


tuned = only(*METHODS)


@st.composite
def free_plans(draw, workload):
    """A plan of all-reduces that no method has: any merging, order, gate, halves, collectives."""
    gradients = draw(st.permutations(workload.gradients))
    cuts = sorted(draw(st.sets(st.integers(1, len(gradients) - 1)))) if len(gradients) > 1 else []
    groups = [gradients[a:b] for a, b in pairwise([0, *cuts, len(gradients)])]
    messages = [message_of(workload, group) for group in groups]
    if draw(st.booleans()):
        messages = partitioned(messages, 4, draw(st.integers(40, 4000)))
    exchange = draw(st.sampled_from(["all_reduce", "split_all_reduce"]))
    names = st.sampled_from(["", *sorted(ALL_REDUCES)])
    collectives = draw(st.lists(names, min_size=len(messages), max_size=len(messages)))
    return Plan(
        "free",
        workload.gradients,
        tuple(messages),
        exchange,
        draw(st.sampled_from(Launch)),
        Order.LISTED,
        draw(st.sampled_from(Gate)),
        collectives=tuple(collectives) if exchange == "all_reduce" else (),
    )


@st.composite
def free_situations(draw):
    workload = draw(workloads(least_seconds=0))
    return Situation(workload, draw(clusters()), draw(free_plans(workload)))


@st.composite
def situations(draw, methods=tuned, least_seconds=1, most_servers=3, **fixed):
    workload, cluster = draw(workloads(least_seconds)), draw(clusters(**fixed))
    method = draw(methods)
    servers = None
    if cluster.server_place == "extra machines":
        servers = draw(st.integers(1, most_servers))
    return Situation(workload, cluster, plan_on(cluster, workload, method, servers))


def way_seconds(program, message, last=None):
    """Seconds of one message that meets nobody, to the end of a stage, while nobody computes."""
    start = end = latency = 0.0
    for stage in program.stages[: len(program.stages) if last is None else last + 1]:
        start = (start + latency if stage.streams else end) + stage.delay
        latency = stage.latency[message]
        own = start + latency + stage.work[message]
        end = max(own, end + stage.delay) if stage.streams else own
    return end


def tasks_around(program, message):
    """Positions of the task that makes the message ready and of the first that waits for it."""
    listed = program.tasks.listed
    ready = next(i for i, task in enumerate(listed) if message in task.readies)
    waits = next(i for i, task in enumerate(listed) if message in task.waits_for)
    return ready, waits


# The compiled simulator and the plain one.


@settings(max_examples=150)
@given(situations(least_seconds=0) | free_situations())
def test_the_compiled_simulator_agrees_with_the_plain_one_to_the_last_digit(situation):
    program = situation.program
    assert play(program) == play_plain(program).seconds
    assert spans(program, 3) == play_plain(program, 3).spans


@settings(max_examples=40)
@given(st.lists(situations(), min_size=1, max_size=2))
def test_cells_together_or_alone_in_any_order_take_the_same(several):
    cells = [
        Cell(s.workload, on, METHODS[name], planned_on=s.cluster)
        for s in several
        for on in (s.cluster, *draw_clusters(s.cluster, 3))
        for name in ("WFBP-A2A", "DeAR")
    ]
    alone = [play(lower(one.workload, one.cluster, one.plan)) for one in cells]
    assert steady_seconds(cells) == alone == steady_seconds(cells[::-1])[::-1]


def test_draws_of_a_plan_whose_collectives_are_played_on_a_graph_are_played_one_by_one():
    cluster = cluster_of("A100", nodes=1, gpus_per_node=4)
    workload = read_profile("resnet50_b64_rtx2080ti")
    plan = plan_on(cluster, workload, "MG-WFBP")
    named = ("recursive-doubling", *("ring",) * (len(plan.messages) - 1))
    plan = replace(plan, collectives=named)
    method = replace(METHODS["MG-WFBP"], planner=lambda *_: plan)
    cells = [Cell(workload, one, method, planned_on=cluster) for one in draw_clusters(cluster, 3)]
    alone = [play(lower(workload, one.cluster, plan)) for one in cells]
    assert steady_seconds(cells) == alone


def test_the_simulators_agree_where_tasks_take_no_time():
    """Two ends of tasks at one moment, or one: what else happens then must come in one order."""
    layers = tuple(Layer(name, seconds) for name, seconds in (("a", 0.0), ("b", 0.0), ("c", 2.0)))
    gradients = (Gradient("g", "c", 250, 4, 0.0), Gradient("h", "c", 1250, 4, 0.5))
    workload = Workload("pauses", 1, layers, gradients, "by hand")
    effects = Effects(between_bandwidth=3000.0, connection_bandwidth=1000.0)
    cluster = Cluster("two", "by hand", 2, 1, effects, server_place="workers' nodes")
    method = METHODS["ByteScheduler-PS"].tuned(partition=1500, credit=1)
    program = lower(workload, cluster, plan_on(cluster, workload, method))
    assert play(program) == play_plain(program).seconds


@settings(max_examples=60)
@given(situations())
def test_all_iterations_after_the_first_are_alike(situation):
    """Among the examples of a search, rounding once parted two events that fall together."""
    played, longer = play(situation.program), play_plain(situation.program, 6)
    assert played.is_steady
    expected = [played.iteration_seconds] * 5
    assert longer.periods[1:] == pytest.approx(expected, rel=1e-9)


# Times that can be added in the head: two layers, of 1 s each forward; backward 1 s and 1.5 s;
# 4 s and 2 s of network for the gradients, at 1 kB/s between two GPUs.

TWO_LAYERS = Workload(
    "two layers",
    1,
    (Layer("a", 1.0), Layer("b", 1.0)),
    (Gradient("b", "b", 1000, 4, 1.0), Gradient("a", "a", 500, 4, 1.5)),
    "by hand",
)


def pair(**effects):
    return Cluster("pair", "by hand", 1, 2, Effects(**{"inside_bandwidth": 1000.0} | effects))


@pytest.mark.parametrize(
    ("method", "effects", "iteration", "exposed"),
    [
        # b is ready at 3 s and there at 7 s, a at 9 s; computing ends at 4.5 s.
        ("WFBP-A2A", {}, 9.0, 4.5),
        ("BSP-A2A", {}, 10.5, 6.0),
        # From 3 s to 4.5 s b goes at half its speed and loses 0.75 s.
        ("WFBP-A2A", {"inside_share": 0.5}, 9.75, 5.25),
        ("BSP-A2A", {"inside_share": 0.5}, 10.5, 6.0),
        # Backward a takes 2 s instead of 1.5 s, because b is under way.
        ("WFBP-A2A", {"compute_share": 0.75}, 9.0, 4.0),
        ("BSP-A2A", {"compute_share": 0.75}, 10.5, 6.0),
        # Each latency takes 1 s; the first one is over after 1 s, at half the pace after 1.75 s.
        ("WFBP-A2A", {"operation_latency": 1.0}, 11.0, 6.5),
        ("WFBP-A2A", {"operation_latency": 1.0, "latency_share": 0.5}, 11.75, 7.25),
        # Half of each latency passes on the way, while the next message is sent: a has the network
        # from 7.5 s to 10 s. A message alone takes as long as before.
        ("WFBP-A2A", {"operation_latency": 1.0, "occupied_share": 0.5}, 10.5, 6.0),
        ("BSP-A2A", {"operation_latency": 1.0, "occupied_share": 0.5}, 11.5, 7.0),
        # Two hops of 0.5 s for every message; one operation with two ranks of 0.5 s.
        ("WFBP-A2A", {"inside_latency": 0.5}, 11.0, 6.5),
        ("BSP-A2A", {"rank_latency": 0.5}, 11.5, 7.0),
        # Handing over delays the end of backward b, and then of a.
        ("WFBP-A2A", {"message_compute": 0.25}, 9.25, 4.25),
        ("WFBP-A2A", {"compute_factor": 2.0}, 12.0, 3.0),
        ("WFBP-A2A", {"parallel_factor": 2.0}, 12.0, 3.0),
        ("WFBP-A2A", {"jitter": 1 / slowest_of(2)}, 12.0, 3.0),
        # Two GPUs of one node close their ring themselves: 8 s and 4 s of network.
        ("WFBP-A2A", {"closed_ring_share": 0.5}, 15.0, 10.5),
        # Two tensors, 6000 bytes to update and to copy in and out of one message.
        ("BSP-A2A", {"update_latency": 0.5}, 11.5, 6.0),
        ("BSP-A2A", {"update_bandwidth": 2000.0}, 13.5, 6.0),
        ("BSP-A2A", {"copy_bandwidth": 4000.0}, 13.5, 9.0),
        ("WFBP-A2A", {"copy_bandwidth": 4000.0}, 9.0, 4.5),
        # Merging saves a latency of 5 s and loses 1.5 s of overlap.
        ("MG-WFBP", {"operation_latency": 5.0}, 15.5, 11.0),
        # Of b the first half goes from 3 s to 5 s; a is ready at 4.5 s and overtakes the second.
        # Forward a goes on at 7 s, forward b at 9 s; b is ready again at 11 s, 8 s after before.
        ("ByteScheduler-A2A", {}, 8.0, 3.5),
        ("ByteScheduler-A2A", {"priority_latency": 0.25}, 8.75, 4.25),
        # The scheduler takes 0.5 s to start a message and 0.5 s to see its end. It starts b at 3 s,
        # sees half of it end at 6 s, and only then starts a; forward a goes on at 9 s, forward b at
        # 12 s, and b is ready again at 14 s, 11 s after before.
        ("ByteScheduler-A2A", {"scheduler_latency": 1.0}, 11.0, 6.5),
    ],
)
def test_times_that_can_be_added_in_the_head(method, effects, iteration, exposed):
    small = METHODS[method].tuned(partition="2 kB", credit="2 kB")
    cluster = pair(**effects)
    seconds = play(lower(TWO_LAYERS, cluster, plan_on(cluster, TWO_LAYERS, small)))
    assert seconds.iteration_seconds == pytest.approx(iteration, rel=1e-12)
    assert seconds.exposed_seconds == pytest.approx(exposed, rel=1e-12)


@pytest.mark.parametrize(
    ("method", "effects", "iteration"),
    [
        # b is with the server from 3 s to 7 s, a to 9 s; b is back at 11 s, a at 13 s.
        ("WFBP-PS", {}, 13.0),
        ("BSP-PS", {}, 16.5),
        # While the worker computes, until 4.5 s, b goes at half its speed.
        ("WFBP-PS", {"between_share": 0.5}, 13.75),
        # Both ways are 0.25 s longer, for b and a at the same time.
        ("WFBP-PS", {"between_latency": 0.25}, 13.5),
        ("WFBP-PS", {"operation_latency": 0.5}, 13.5),
        ("WFBP-PS", {"server_latency": 0.25}, 13.5),
        # The server sums two times 4000 bytes in 1 s, while a is pushed.
        ("WFBP-PS", {"sum_bandwidth": 8000.0}, 14.0),
        # b comes back after a has been pushed, at 9 s.
        ("WFBP-PS", {"duplex_bandwidth": 1000.0}, 15.0),
        # The link of the server carries b for both nodes, 8 s in and 8 s out, and then a, 4 s.
        ("WFBP-PS", {"server_bandwidth": 1000.0}, 23.0),
    ],
)
def test_times_of_pushes_that_can_be_added_in_the_head(method, effects, iteration):
    """A connection takes 4 s for b and 2 s for a, the links a quarter of that."""
    links = {"between_bandwidth": 4000.0, "connection_bandwidth": 1000.0}
    cluster = Cluster("two", "by hand", 2, 1, Effects(**links | effects))
    cluster = replace(cluster, server_place="extra machines")
    program = lower(TWO_LAYERS, cluster, plan_on(cluster, TWO_LAYERS, method, servers=1))
    assert play(program).iteration_seconds == pytest.approx(iteration, rel=1e-12)


def pushed_each_to_its_own_server(gradients):
    """The plan that pushes whole tensors when they are ready, the i-th one to server i."""
    return Plan(
        method="WFBP-PS",
        gradients=gradients,
        messages=tuple(Message((Piece(g.name, 0, g.elements),)) for g in gradients),
        exchange="push_pull",
        launch=Launch.WHEN_READY,
        order=Order.LISTED,
        gate=Gate.ALL_LAYERS,
        servers=len(gradients),
        placement=tuple(range(len(gradients))),
    )


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_node_with_a_server_carries_pushes_and_pulls_of_its_worker_and_of_the_others(nodes):
    """In each direction (n - 1) / n M for the worker and as much for the server, if the load of
    the servers is even; the longer link of uneven ones counts.
    """
    effects = Effects(between_bandwidth=1000.0)
    cluster = Cluster("beside", "by hand", nodes, 1, effects, server_place="workers' nodes")

    def seconds_by_direction(elements):
        gradients = tuple(Gradient(f"g{i}", "l", n, 4, 1.0) for i, n in enumerate(elements))
        workload = Workload("beside", 1, (Layer("l", 1.0),), gradients, "by hand")
        program = lower(workload, cluster, pushed_each_to_its_own_server(gradients))
        work = np.zeros(len(program.resources))
        for stage in program.stages:
            np.add.at(work, stage.resource, stage.latency + stage.work)
        return [work[program.resources.index(way)] for way in ("node out", "node in")]

    even = seconds_by_direction([250] * nodes)
    assert even == pytest.approx([2 * (nodes - 1)] * 2)
    uneven = seconds_by_direction([250 * nodes - 10 * (nodes - 1)] + [10] * (nodes - 1))
    assert min(uneven) > max(even)


@pytest.mark.parametrize(
    ("all_reduce", "seconds"),
    [
        ("ring", 3.5 * 1.0 + 10.5 * 0.25 + 1.75 * max(1.0, 2.0)),
        ("tree", 2 * 1.0 + 4 * 0.25 + 4 * 1.0 + 2 * 2.0),
        ("double-tree", 2 * 1.0 + 4 * 0.25 + max(2 * 1.0, 1 * 2.0)),
        ("hierarchical", 2 * 1.0 + 6 * 0.25 + 1.5 * 1.0 + 1 * 2.0),
    ],
)
def test_an_all_reduce_on_two_nodes_of_four_takes_the_seconds_added_by_hand(all_reduce, seconds):
    """6000 bytes take 1 s inside and 2 s between nodes, a hop starts in 0.25 s and in 1 s."""
    links = {"inside_bandwidth": 6000.0, "between_bandwidth": 3000.0}
    effects = Effects(inside_latency=0.25, between_latency=1.0, **links)
    cluster = Cluster("eight", "by hand", 2, 4, effects, all_reduce=all_reduce)
    assert simulate(TWO_LAYERS, cluster, "BSP-A2A").iteration_seconds == 4.5 + seconds


# Compute and all-reduce, one after the other.


@given(situations(least_seconds=0, **NONE))
def test_on_a_free_network_an_iteration_takes_exactly_its_computation(situation):
    assert play(situation.program) == Seconds(situation.workload.compute_seconds, 0.0, True)


def compute_and_update(workload, cluster, messages):
    """Seconds of everything but communication in an iteration with so many messages."""
    effects = cluster.effects
    slowest = 1 + effects.jitter * slowest_of(cluster.workers)
    return (
        effects.compute_factor * effects.parallel_factor * slowest * workload.compute_seconds
        + effects.message_compute * messages
        + effects.update_latency * len(workload.gradients)
        + workload.gradient_bytes / effects.update_bandwidth
    )


def copies(workload, effects):
    """Seconds of copying all gradients into a message and out of it; a single one stays."""
    count = len(workload.gradients)
    return 2 * workload.gradient_bytes / effects.copy_bandwidth if count > 1 else 0.0


@given(situations(methods=st.just(METHODS["BSP-A2A"]), all_reduce="ring", least_nodes=2))
def test_bsp_a2a_takes_exactly_computation_and_one_ring(situation):
    workload, cluster, _ = situation
    effects, n = cluster.effects, cluster.workers
    crossings = 2 * (n - 1) / cluster.gpus_per_node
    doublings = max(0, math.log2(cluster.nodes) - 1)
    between = min(effects.between_bandwidth, effects.stream_bandwidth)
    per_byte = [1 / (between * effects.doubling_share**doublings)]
    if cluster.gpus_per_node > 1:
        per_byte.append(1 / effects.inside_bandwidth)
    hops = effects.between_latency * crossings
    hops += effects.inside_latency * (2 * (n - 1) - crossings)
    work = 2 * (n - 1) / n * workload.gradient_bytes * max(per_byte)
    network = (
        effects.operation_latency
        + effects.rank_latency * n
        + effects.level_latency * math.log2(n)
        + max(work, hops + work / effects.parts_in_flight)
        + copies(workload, effects)
    )
    played = play(situation.program)
    assert played.exposed_seconds == pytest.approx(network, rel=1e-9)
    total = compute_and_update(workload, cluster, messages=1) + network
    assert played.iteration_seconds == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("place", SERVER_PLACES)
@given(st.data())
def test_bsp_ps_takes_exactly_computation_and_one_push_and_pull(place, data):
    """One message to one server, through links that stream: the slowest one decides."""
    fixed = {"server_place": place, "least_nodes": 2}
    workload, cluster = data.draw(workloads()), data.draw(clusters(**fixed))
    plan = plan_on(cluster, workload, "BSP-PS", servers=1)
    effects, nodes, per_node = cluster.effects, cluster.nodes, cluster.gpus_per_node
    size = workload.gradient_bytes
    at_server = min(effects.server_bandwidth, effects.between_bandwidth)
    others = nodes * size / at_server
    links = [effects.between_bandwidth, effects.duplex_bandwidth, effects.connection_bandwidth]
    if place == "workers' nodes":  # seen from the node beside the server
        others, links = (nodes - 1) * size / at_server, []
    in_node = (per_node - 1) * effects.inside_latency
    bandwidth = effects.inside_bandwidth * effects.closed_ring_share
    in_node += (per_node - 1) / per_node * size / bandwidth
    one_way = effects.between_latency + max([others, *(size / link for link in links)])
    summing = nodes * (effects.server_latency + size / effects.sum_bandwidth)
    network = effects.operation_latency + copies(workload, effects)
    network += 2 * in_node + 2 * one_way + summing
    played = play(lower(workload, cluster, plan))
    assert played.exposed_seconds == pytest.approx(network, rel=1e-9)
    total = compute_and_update(workload, cluster, messages=1) + network
    assert played.iteration_seconds == pytest.approx(total, rel=1e-9)


@given(situations(compute_share=1.0))
def test_what_is_exposed_is_the_iteration_without_its_computation(situation):
    program = situation.program
    played = play(program)
    exposed = played.iteration_seconds - program.compute_seconds
    assert played.exposed_seconds == pytest.approx(exposed, abs=1e-9 * played.iteration_seconds)


@settings(max_examples=60)
@given(situations())
def test_no_iteration_is_faster_than_what_it_must_do(situation):
    """Computing, the busiest resource, and every message between its two tasks."""
    program = situation.program
    played = play(program)
    assume(played.is_steady)
    most = played.iteration_seconds * (1 + 1e-9)
    assert program.compute_seconds <= most
    work = np.zeros(len(program.resources))
    for stage in program.stages:
        np.add.at(work, stage.resource, stage.latency + stage.work)
    assert work.max() <= most
    seconds = program.task_seconds
    for message, leg in enumerate(situation.plan.legs):
        if situation.plan.is_split and not leg.is_gather:
            continue  # no task waits for it
        ready, waits = tasks_around(program, message)
        computing = seconds[waits : ready + 1].sum()
        if waits > ready:  # the update at the end of the same iteration
            computing = seconds[: ready + 1].sum() + seconds[waits:].sum()
        assert computing + way_seconds(program, message) <= most


# What speeds up and what does not.


@st.composite
def slower_clusters(draw, cluster):
    """The cluster with one latency longer or one bandwidth less."""
    name = draw(
        st.sampled_from([n for n, one in EFFECTS.items() if one.unit in (SECONDS, BANDWIDTH)])
    )
    old, new = getattr(cluster.effects, name), draw(values[EFFECTS[name].unit.name])
    worse = max(old, new) if EFFECTS[name].unit is SECONDS else min(old, new)
    return cluster.with_effects(**{name: worse})


@given(st.data(), situations(methods=only(*ALL_TO_ALL), compute_share=1.0))
def test_a_better_network_never_slows_listed_all_reduces(data, situation):
    slower = situation.on(data.draw(slower_clusters(situation.cluster)))
    better, worse = play(situation.program), play(slower.program)
    assume(better.is_steady and worse.is_steady)
    assert better.iteration_seconds <= worse.iteration_seconds * (1 + 1e-9)


one_server = {
    "server_place": "extra machines",
    "least_nodes": 2,
    "gpus_per_node": 1,
    "duplex_bandwidth": UNLIMITED,
    "compute_share": 1.0,
}


@given(
    st.data(),
    situations(methods=only("BSP-PS", "WFBP-PS"), most_servers=1, **one_server),
)
def test_a_better_network_never_slows_listed_pushes_to_one_server(data, situation):
    """Where no message passes a resource twice: not in nodes of several GPUs, nor with a cap on
    both directions together, nor with servers on the workers' nodes. There, and with several
    servers, messages may overtake each other; see the next test.
    """
    slower = data.draw(slower_clusters(situation.cluster))
    assume(slower.effects.duplex_bandwidth == UNLIMITED)
    better, worse = play(situation.program), play(situation.on(slower).program)
    assert better.iteration_seconds <= worse.iteration_seconds * (1 + 1e-9)


free_starts = START_UPS | {"copy_bandwidth": UNLIMITED, "compute_share": 1.0}


def bsp_and_wfbp(workload, cluster, architecture, **servers):
    methods = [METHODS[f"{name}-{architecture}"] for name in ("BSP", "WFBP")]
    plans = [plan_on(cluster, workload, method, **servers) for method in methods]
    return [play(lower(workload, cluster, plan)).iteration_seconds for plan in plans]


@pytest.mark.parametrize(
    ("architecture", "options", "fixed"),
    [("A2A", {}, {}), ("PS", {"servers": 1}, {"server_place": "extra machines"})],
)
@given(data=st.data())
def test_overlap_never_hurts_when_start_ups_are_free(architecture, options, fixed, data):
    """Neither all-reduces nor pushes to one server."""
    workload = data.draw(workloads(least_seconds=0))
    cluster = data.draw(clusters(**free_starts | fixed))
    bsp, wfbp = bsp_and_wfbp(workload, cluster, architecture, **options)
    assert wfbp <= bsp * (1 + 1e-9)


@settings(max_examples=60)
@given(situations(methods=only("ByteScheduler-A2A"), scheduler_latency=0.0, occupied_share=1.0))
def test_credit_changes_no_time_of_all_reduces_that_are_listed(situation):
    """They go one at a time in their order anyway; credit has shaped that order."""
    unbounded = replace(situation.plan, credit_bytes=10**9)
    assert play(situation.program) == play(situation._replace(plan=unbounded).program)


# Units: bytes, seconds, and the number of workers.


def scaled(effects, seconds, bandwidths):
    factor = {SECONDS.name: seconds, BANDWIDTH.name: bandwidths}
    return Effects(
        **{
            name: value * factor.get(EFFECTS[name].unit.name, 1)
            for name, value in effects.there.items()
        }
    )


@settings(max_examples=60)
@given(workloads(), clusters(), tuned)
def test_twice_the_bytes_at_twice_the_bandwidths_take_the_same_seconds(workload, cluster, method):
    gradients = tuple(replace(g, bytes_per_element=8) for g in workload.gradients)
    larger = replace(workload, gradients=gradients)
    faster = replace(cluster, effects=scaled(cluster.effects, 1, 2))
    partition, credit = method.partition_bytes, method.credit_bytes
    double = method.tuned(partition=partition and 2 * partition, credit=credit and 2 * credit)
    before = play(lower(workload, cluster, plan_on(cluster, workload, method)))
    after = play(lower(larger, faster, plan_on(faster, larger, double)))
    assert after == before


@settings(max_examples=60)
@given(workloads(), clusters(), tuned)
def test_if_everything_takes_twice_as_long_so_does_an_iteration(workload, cluster, method):
    layers = tuple(replace(x, forward_seconds=2 * x.forward_seconds) for x in workload.layers)
    gradients = tuple(
        replace(x, backward_seconds=2 * x.backward_seconds) for x in workload.gradients
    )
    longer = replace(workload, layers=layers, gradients=gradients)
    bandwidths = {n: v for n, v in cluster.effects.there.items() if EFFECTS[n].unit is BANDWIDTH}
    assume(all(value >= 2 * BANDWIDTH.least for value in bandwidths.values()))
    slower = replace(cluster, effects=scaled(cluster.effects, 2, 1 / 2))
    before = play(lower(workload, cluster, plan_on(cluster, workload, method)))
    after = play(lower(longer, slower, plan_on(slower, longer, method)))
    assert after.iteration_seconds == 2 * before.iteration_seconds
    assert after.exposed_seconds == 2 * before.exposed_seconds


@pytest.mark.parametrize("name", ALL_TO_ALL)
def test_a_program_of_all_reduces_is_as_long_for_16384_workers_as_for_2(name):
    effects = Effects(inside_latency=1e-5, inside_bandwidth=1e4, between_bandwidth=1e3)
    cluster = Cluster("vast", "by hand", 4096, 4, effects)
    method = METHODS[name].tuned(partition="1 kB", credit="2 kB")
    plan = method.plan(TWO_LAYERS, cost=AlphaBeta(1e-3, 1e-4))
    few, many = (lower(TWO_LAYERS, cluster.with_workers(workers), plan) for workers in (2, 16384))
    assert few.tasks.listed == many.tasks.listed
    assert (few.messages, few.resources) == (many.messages, many.resources)
    assert len(few.stages) == len(many.stages)
    assert play(few).iteration_seconds < play(many).iteration_seconds


# Spans.


@settings(max_examples=60)
@given(situations())
def test_the_compute_lane_is_filled_without_gaps_or_overlaps(situation):
    program = situation.program
    lane = [span for span in spans(program, 4) if span.lane == "compute"]
    assert lane[0].start_seconds == 0.0
    for before, after in pairwise(lane):
        assert after.start_seconds == pytest.approx(before.stop_seconds, rel=1e-12)
    waiting = sum(span.seconds for span in lane if span.kind == "wait")
    if program.compute_share == 1.0:
        computing = sum(span.seconds for span in lane) - waiting
        assert computing == pytest.approx(4 * program.compute_seconds, rel=1e-9)


@settings(max_examples=60)
@given(situations())
def test_a_message_starts_when_it_is_ready_and_ends_before_it_is_needed(situation):
    workload, _, plan = situation
    program = situation.program
    listed = spans(program, 4)
    ready, needed = {}, {}
    for span in listed:
        if span.kind == "backward":
            ready[span.name, span.iteration] = span.stop_seconds
        elif span.kind == "forward":
            needed[span.name, span.iteration] = span.start_seconds
    last = workload.gradients[-1].name
    number = {str(message): index for index, message in enumerate(program.messages)}
    seen = Counter()
    for span in listed:
        if span.kind != "message":
            continue
        leg, message = plan.legs[number[span.name]], plan.legs[number[span.name]].message
        seen[span.iteration] += 1
        assert span.bytes == plan.message_bytes[message]
        carried = [workload.gradients[i] for i in plan.gradients_of[message]]
        waited_for = {gradient.name for gradient in carried}
        if plan.launch is Launch.AFTER_BACKWARD or leg.is_gather:
            waited_for.add(last)
        assert all(span.start_seconds >= ready[name, span.iteration] for name in waited_for)
        least = way_seconds(program, number[span.name])
        assert span.seconds >= least * (1 - 1e-9)
        if plan.is_split and not leg.is_gather:
            continue  # no task waits for it
        readers = {gradient.layer for gradient in carried}
        if plan.gate is Gate.ALL_LAYERS:
            readers = {layer.name for layer in workload.layers}
        for layer in readers:
            starts = needed.get((layer, span.iteration + 1), math.inf)
            assert span.stop_seconds <= starts * (1 + 1e-12)
    assert all(seen[iteration] == len(plan.legs) for iteration in range(3))


@settings(max_examples=60)
@given(situations(methods=only(*ALL_TO_ALL), scheduler_latency=0.0, occupied_share=1.0))
def test_all_reduces_go_one_at_a_time_in_the_order_of_the_plan(situation):
    messages = [span for span in spans(situation.program, 3) if span.kind == "message"]
    for before, after in pairwise(messages):
        assert after.start_seconds >= before.stop_seconds
    listed = [str(message) for message in situation.program.messages] * 3
    assert [span.name for span in messages] == listed[: len(messages)]


@settings(max_examples=60)
@given(situations())
def test_the_timeline_finds_the_same_period_as_the_seconds(situation):
    played = play(situation.program)
    assume(played.is_steady)
    line = Timeline("random", "simulated", tuple(spans(situation.program, 12)))
    assert line.window(10, 11).iteration_seconds == pytest.approx(
        played.iteration_seconds, rel=1e-9
    )
    waited = line.window(11, 11).seconds("wait")
    assert waited == pytest.approx(played.exposed_seconds, abs=1e-9 * played.iteration_seconds)


@settings(max_examples=20)
@given(situations())
def test_simulate_plays_the_plan_of_the_method_on_the_cluster(situation):
    workload, cluster, _ = situation
    for name in METHODS:
        line = simulate(workload, cluster, name)
        program = lower(workload, cluster, plan_on(cluster, workload, name))
        assert line.spans == tuple(spans(program, 3))
        assert (line.method, line.source, line.iterations) == (name, "simulated", 3)


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(InputError, match="iterations 0"):
        simulate(TWO_LAYERS, pair(), "BSP-A2A", iterations=0)
    other = METHODS["BSP-A2A"].plan(replace(TWO_LAYERS, gradients=TWO_LAYERS.gradients[:1]))
    with pytest.raises(InputError, match="plan 'BSP-A2A' was not made for workload 'two layers'"):
        lower(TWO_LAYERS, pair(), other)


# Credit.


@settings(max_examples=60)
@given(
    situations(
        methods=only("ByteScheduler-PS", "ByteScheduler-A2A"),
        least_nodes=2,
        server_place="extra machines",
    )
)
def test_messages_under_way_stay_within_the_credit(situation):
    """From its start until it can first have arrived at its server a message takes up credit."""
    program, credit = situation.program, situation.plan.credit_bytes
    number = {str(message): index for index, message in enumerate(program.messages)}
    flights = []
    for span in spans(program, 3):
        if span.kind == "message":
            least = way_seconds(program, number[span.name], last=program.released)
            flights.append((span.start_seconds, span.start_seconds + least, span.bytes))
    for now, _, _ in flights:
        flying = [size for start, stop, size in flights if start <= now < stop - 1e-9]
        assert len(flying) <= 1 or sum(flying) <= credit


def test_with_little_credit_an_urgent_message_overtakes():
    """Both halves of b are ready first; a is ready while the first half is pushed."""
    effects = Effects(between_bandwidth=1000.0)
    cluster = Cluster("two", "by hand", 2, 1, effects, server_place="extra machines")
    order = {}
    for credit in (1, 2000, 4000, 6000):
        method = METHODS["ByteScheduler-PS"].tuned(partition=2000, credit=credit)
        program = lower(TWO_LAYERS, cluster, plan_on(cluster, TWO_LAYERS, method, servers=1))
        listed = spans(program, 2)
        sent = [span.name for span in listed if span.kind == "message" and span.iteration == 0]
        order[credit] = "".join(name[0] for name in sent)
    assert order == {1: "bab", 2000: "bab", 4000: "bba", 6000: "bba"}


# Merging.


def groupings(count):
    """All ways to cut so many gradients into runs of neighbours."""
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            yield list(pairwise((0, *inner, count)))


def communicated(workload, cluster, messages):
    """When the last message is there, from the start of the backward pass."""
    method = replace(METHODS["MG-WFBP"], bucketing=Bucketing(lambda _: messages))
    plan = method.plan(workload)
    return play(lower(workload, cluster, plan)).iteration_seconds - workload.forward_seconds


def merge(workload, grouping):
    parts = [workload.gradients[start:stop] for start, stop in grouping]
    return [Message(tuple(Piece(g.name, 0, g.elements) for g in part)) for part in parts]


@st.composite
def networks_with_a_cost(draw):
    """One resource, of latency and bandwidth only, that computing does not slow down."""
    latency, bandwidth = draw(values[SECONDS.name]), draw(values[BANDWIDTH.name])
    effects = Effects(operation_latency=latency, inside_bandwidth=bandwidth)
    return Cluster("pair", "drawn", 1, 2, effects)


@pytest.mark.item("A27")
@settings(max_examples=40)
@given(workloads(least_seconds=0, most_gradients=7), networks_with_a_cost())
def test_merging_ends_at_most_g_minus_2_latencies_after_the_best_grouping(workload, cluster):
    """For G gradients; with up to two gradients it ends with the best."""
    count = len(workload.gradients)
    best = min(
        communicated(workload, cluster, merge(workload, grouping)) for grouping in groupings(count)
    )
    excess = communicated(workload, cluster, merged(workload, cluster.cost)) - best
    assert -1e-9 <= excess <= max(0, count - 2) * cluster.cost.latency_seconds + 1e-9


# Placement.


@settings(max_examples=60)
@given(workloads(), st.integers(1, 4), st.sampled_from(sorted(PLACEMENTS)))
def test_every_message_is_placed_on_a_server_that_exists(workload, servers, placement):
    for name in WITH_SERVERS:
        method = METHODS[name].tuned(partition=400)
        plans = [method.plan(workload, servers=servers, placement=placement) for _ in range(2)]
        assert plans[0].placement == plans[1].placement
        assert len(plans[0].placement) == len(plans[0].messages)
        assert set(plans[0].placement) <= set(range(servers))


@given(st.permutations([f"tensor{i}" for i in range(12)]), st.integers(1, 5))
def test_hashing_places_a_tensor_by_its_name_and_not_by_its_turn(names, servers):
    def places(order):
        messages = [Message((Piece(name, 0, 4),)) for name in order]
        return dict(zip(order, hashed(messages, servers), strict=True))

    assert places(names) == places(sorted(names))


@pytest.mark.parametrize("servers", [2, 3, 4, 8])
def test_hashing_spreads_many_tensors_over_all_servers_but_not_evenly(servers):
    messages = [Message((Piece(f"tensor{i}", 0, 4),)) for i in range(400)]
    load = Counter(hashed(messages, servers))
    mean = 400 / servers
    assert set(load) == set(range(servers))
    assert max(load.values()) < 1.5 * mean
    assert max(load.values()) > mean
