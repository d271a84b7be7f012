"""Merging and ordering: the laws that their papers state, checked against brute force."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import by_priority, merged, one_bucket, partitioned, per_tensor
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.toy import COST, TOY


def end_of(messages, workload, cost):
    """When the last message ends on a network that serves them one after the other."""
    ready = dict(zip((g.name for g in workload.gradients), workload.ready_seconds, strict=True))
    now = 0.0
    for message in messages:
        start = max(now, max(ready[piece.gradient] for piece in message.pieces))
        now = start + cost.seconds(4 * message.elements)
    return now


def brute_force(workload, cost):
    """The earliest end over all ways to cut the gradients into runs of neighbours."""
    count = len(workload.gradients)
    ready, best = workload.ready_seconds, float("inf")
    for cuts in range(count):
        for inner in combinations(range(1, count), cuts):
            now = 0.0
            for start, stop in zip((0, *inner), (*inner, count), strict=True):
                size = sum(g.bytes for g in workload.gradients[start:stop])
                now = max(now, ready[stop - 1]) + cost.seconds(size)
            best = min(best, now)
    return best


@st.composite
def workloads(draw):
    count = draw(st.integers(1, 8))
    sizes = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    seconds = draw(st.lists(st.floats(0, 2), min_size=count, max_size=count))
    gradients = tuple(
        Gradient(f"g{i}", f"l{count - i}", size, 4, second)
        for i, (size, second) in enumerate(zip(sizes, seconds, strict=True))
    )
    layers = tuple(Layer(f"l{i + 1}") for i in range(count))
    return Workload("random", 1, layers, gradients, "drawn")


costs = st.builds(AlphaBeta, st.floats(0, 3), st.floats(0, 0.05))


@pytest.mark.item("A27")
@given(workloads(), costs)
def test_the_paper_s_rule_is_within_one_latency_per_gradient_of_the_optimum(workload, cost):
    excess = end_of(merged(workload, cost), workload, cost) - brute_force(workload, cost)
    assert -1e-9 <= excess <= cost.latency_seconds * len(workload.gradients) + 1e-9


def test_the_paper_s_rule_is_not_always_optimal():
    """One gradient's look-ahead merges c with b; waiting with b for a saves a latency."""
    times = [("c", 100, 1.0), ("b", 100, 0.9), ("a", 100, 1.2)]
    gradients = tuple(Gradient(name, "l", size, 4, second) for name, size, second in times)
    workload = Workload("counter-example", 1, (Layer("l"),), gradients, "by hand")
    cost = AlphaBeta(1.0, 0.01)
    rule = end_of(merged(workload, cost), workload, cost)
    assert [len(m.pieces) for m in merged(workload, cost)] == [2, 1]
    assert brute_force(workload, cost) < rule


@given(workloads(), st.floats(0, 0.05))
def test_without_latency_merging_never_waits(workload, slope):
    """With a = 0 there is nothing to save: wait-free backpropagation is already optimal."""
    cost = AlphaBeta(0.0, slope)
    rule = end_of(merged(workload, cost), workload, cost)
    assert abs(rule - end_of(per_tensor(workload), workload, cost)) < 1e-9


def test_an_expensive_latency_puts_everything_in_one_message():
    assert len(merged(TOY, AlphaBeta(1000.0, 0.0))) == 1
    assert merged(TOY, AlphaBeta(1000.0, 0.0)) == one_bucket(TOY)


@pytest.mark.item("A28")
def test_a_priority_queue_lets_front_layers_overtake():
    parts = partitioned(per_tensor(TOY), 4, 80)
    order = [part.pieces[0].gradient[0] for part in by_priority(parts, TOY, COST, 160)]
    assert "".join(order) == "cccbcac"


@given(workloads(), costs, st.integers(4, 300))
def test_ordering_by_priority_keeps_every_message(workload, cost, credit):
    parts = partitioned(per_tensor(workload), 4, 40)
    ordered = by_priority(parts, workload, cost, credit)
    assert sorted(map(str, ordered)) == sorted(map(str, parts))
