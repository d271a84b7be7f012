"""Plans check themselves: every element once, and an order that all ranks share."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from ddlnb.errors import InputError, PlanError, UnknownName
from ddlnb.plans.bucketing import balanced, partitioned
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Gate, Launch, Message, Order, Piece, Plan
from ddlnb.workloads.workload import Gradient
from tests.toy import COST, TOY


def make_plan(messages, **changes):
    fields = {
        "method": "mine",
        "gradients": TOY.gradients,
        "messages": tuple(messages),
        "exchange": "all_reduce",
        "launch": Launch.WHEN_READY,
        "order": Order.LISTED,
        "gate": Gate.ALL_LAYERS,
    }
    return Plan(**(fields | changes))


WHOLE = [Message((Piece(g.name, 0, g.elements),)) for g in TOY.gradients]


def and_also(*pieces):
    return [*WHOLE, Message(pieces)]


PUSHED = {"exchange": "push_pull", "servers": 2}


@pytest.mark.parametrize(
    ("messages", "changes", "told"),
    [
        (WHOLE[:2], {}, r"loses elements of gradient 'a.weight': 10 .* 0"),
        (and_also(Piece("b.weight", 5, 6)), {}, r"repeats elements of gradient 'b\.weight'"),
        (and_also(Piece("a.weight", 5, 11)), {}, "not inside"),
        (and_also(Piece("a.weight", 5, 5)), {}, "not inside"),
        (and_also(Piece("a.weight", 0, 10**30)), {}, "not inside"),
        (WHOLE, {"gradients": (Gradient("a.weight", "a", 10**30),)}, "no plan has more than"),
        (and_also(Piece("z", 0, 1)), {}, "unknown 'z'"),
        (and_also(), {}, "without pieces"),
        (WHOLE, {"order": Order.PRIORITY}, "same order on all ranks"),
        (WHOLE, {"servers": 2}, "server"),
        (WHOLE, {"exchange": "push_pull"}, "server"),
        (WHOLE, PUSHED | {"placement": (0, 1, 2)}, "server"),
        (WHOLE, PUSHED | {"placement": (0,)}, "server"),
        (WHOLE, {"exchange": "allreduce"}, "did you mean 'all_reduce'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_reason(messages, changes, told):
    with pytest.raises((PlanError, UnknownName), match=told):
        make_plan(messages, **changes)


def test_digest_changes_with_what_is_sent_and_not_with_seconds():
    plan = make_plan(WHOLE)
    slower = tuple(replace(g, backward_seconds=9.0) for g in plan.gradients)
    assert replace(plan, gradients=slower).digest == plan.digest
    assert make_plan(WHOLE[::-1]).digest != plan.digest
    assert replace(plan, gate=Gate.OWN_LAYER).digest != plan.digest


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_sends_every_byte_once(name, servers):
    plan = METHODS[name].plan(TOY, cost=COST, servers=servers)
    assert sum(plan.message_bytes) == TOY.gradient_bytes
    if plan.servers:
        assert set(plan.placement) == set(range(servers))


PRINTED = {
    "BSP-A2A": """\
BSP-A2A: 1 message, 520 B, all_reduce; start after backward, as listed; forward waits for all layers
   0     520 B  priority   0  c.weight .. a.weight (3 pieces)""",
    "WFBP-PS": """\
WFBP-PS: 4 messages, 520 B, push_pull on 2 servers; start when ready, as listed; forward waits for all layers
   0     200 B  priority   2  server 0  c.weight[0:50]
   1     200 B  priority   2  server 1  c.weight[50:100]
   2      80 B  priority   1  server 0  b.weight[0:20]
   3      40 B  priority   0  server 1  a.weight[0:10]""",
    "MG-WFBP": """\
MG-WFBP: 2 messages, 520 B, all_reduce; start when ready, as listed; forward waits for all layers
   0     400 B  priority   2  c.weight[0:100]
   1     120 B  priority   0  b.weight .. a.weight (2 pieces)""",
    "ByteScheduler-A2A": """\
ByteScheduler-A2A: 7 messages, 520 B, all_reduce; start when ready, as listed, credit 160 B; forward waits for own layer
   0      80 B  priority   2  c.weight[0:20]
   1      80 B  priority   2  c.weight[20:40]
   2      80 B  priority   2  c.weight[40:60]
   3      80 B  priority   1  b.weight[0:20]
   4      80 B  priority   2  c.weight[60:80]
   5      40 B  priority   0  a.weight[0:10]
   6      80 B  priority   2  c.weight[80:100]""",
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_printed_plans_of_the_toy_model_do_not_change(name):
    method = METHODS[name].tuned(partition="80 B", credit="160 B")
    if name == "WFBP-PS":
        method = METHODS[name]
    assert str(method.plan(TOY, cost=COST, servers=2)) == PRINTED[name]


@pytest.mark.parametrize("name", ["MG-WFBP", "ByteScheduler-A2A"])
def test_methods_that_need_a_cost_say_so(name):
    with pytest.raises(InputError, match="needs the cost of an all-reduce"):
        METHODS[name].plan(TOY)


@pytest.mark.parametrize("servers", [0, -1, 1.5, "2"])
def test_a_server_count_that_is_none_is_refused(servers):
    with pytest.raises(InputError, match="servers"):
        METHODS["BSP-PS"].plan(TOY, servers=servers)


@given(st.integers(1, 200), st.lists(st.integers(1, 90), min_size=1, max_size=5))
def test_partitioning_keeps_every_element_within_the_limit(limit, sizes):
    whole = Message(tuple(Piece(f"g{i}", 0, size) for i, size in enumerate(sizes)), 7)
    parts = partitioned([whole], bytes_per_element=4, partition_bytes=4 * limit)
    assert all(0 < part.elements <= limit and part.priority == 7 for part in parts)
    assert sum(part.elements for part in parts) == sum(sizes)
    longest, shortest = max(p.elements for p in parts), min(p.elements for p in parts)
    assert longest - shortest < len(parts) or len(parts) == 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 6))
def test_no_server_carries_more_than_its_share_and_one_message(sizes, servers):
    load = [0] * servers
    messages = [Message((Piece(f"g{i}", 0, size),)) for i, size in enumerate(sizes)]
    for size, server in zip(sizes, balanced(messages, servers), strict=True):
        load[server] += size
    assert max(load) <= sum(sizes) / servers + max(sizes)
