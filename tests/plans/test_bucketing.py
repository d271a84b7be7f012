"""Merging and ordering: the laws that their papers state.

How far merging is from the best grouping, at most, is said in `tests.simulator.test_simulate`.
"""

from functools import partial

import pytest
from hypothesis import given, strategies as st

from ddlnb.errors import InputError
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import (
    Bucketing,
    by_priority,
    merged,
    one_bucket,
    partitioned,
    per_tensor,
)
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


def costly(workload, cost):
    return per_tensor(workload)


@pytest.mark.parametrize(("rule", "needs_cost"), [(costly, False), (per_tensor, True)])
def test_a_rule_that_cannot_be_called_is_told_so_when_it_is_made(rule, needs_cost):
    with pytest.raises(InputError, match=f"rule '{rule.__name__.replace('_', ' ')}' cannot be ca"):
        Bucketing(rule, needs_cost)
    assert Bucketing(rule, not needs_cost).messages(TOY, COST)


@pytest.mark.parametrize("found", [None, list(TOY.gradients), "a"])
def test_a_rule_returns_messages(found):
    with pytest.raises(InputError, match=r"rule 'ours' returns .*, which is no list of messages"):
        Bucketing(partial(ours, found=found)).messages(TOY)


def ours(workload, found):
    return found


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
