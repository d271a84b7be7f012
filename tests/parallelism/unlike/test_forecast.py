"""What each way to use unlike GPUs yields: laws that hold whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlnb.errors import InputError, UnknownName
from ddlnb.parallelism.heterogeneous import Kind, gpu_kinds, unlike_table, unlike_ways
from ddlnb.parallelism.model import llama
from ddlnb.parallelism.schedules import play, schedule

MODEL = llama("small", 8, 256, 4, 4, 1024, 1000, 128).shape
FAST, SLOW = Kind("fast", 2, 4e12, 1e10), Kind("slow", 2, 1e12, 1e10)


def seconds(kinds, samples=40):
    """Return the seconds of an iteration by way."""
    return {way.name: way.seconds for way in unlike_ways(MODEL, kinds, samples)}


def test_shares_by_speed_take_the_time_of_the_sum_of_speeds_where_they_divide():
    ways = {way.name: way for way in unlike_ways(MODEL, (SLOW, FAST), 40)}
    assert ways["shares by speed"].shares == (16, 16, 4, 4)
    together = MODEL.iteration_flops(40) / (FAST.total + SLOW.total)
    assert ways["shares by speed"].compute == pytest.approx(together)
    assert ways["equal shares"].compute == pytest.approx(MODEL.iteration_flops(10) / SLOW.speed)
    ring = 2 * 3 / 4 * MODEL.parameters * 2 / 1e10
    assert ways["equal shares"].communication == pytest.approx(ring)


@settings(max_examples=20)
@given(speed=st.floats(1e11, 4e12), port=st.floats(1e8, 1e11), samples=st.integers(1, 8))
def test_sharing_by_speed_is_never_slower_than_sharing_equally(speed, port, samples):
    slow = replace(SLOW, speed=speed, port=port)
    found = seconds((FAST, slow), 4 * samples)
    assert found["shares by speed"] <= found["equal shares"] * (1 + 1e-12)
    faster = seconds((FAST, replace(slow, port=2 * port)), 4 * samples)
    assert all(faster[way] <= found[way] * (1 + 1e-12) for way in found)  # bandwidth never hurts


def test_gpus_that_are_alike_gain_nothing_from_shares_by_speed():
    found = seconds((FAST, replace(FAST, name="twin")))
    assert found["shares by speed"] == found["equal shares"]
    alone = seconds((replace(FAST, count=1),))
    assert alone["equal shares"] == pytest.approx(MODEL.iteration_flops(40) / FAST.speed)


def test_a_slow_port_makes_the_fast_kind_alone_win():
    found = seconds((FAST, replace(SLOW, port=1e7)))
    assert found["only fast"] < found["shares by speed"]
    assert seconds((FAST, SLOW))["only fast"] > seconds((FAST, SLOW))["shares by speed"]


def test_the_table_says_what_share_of_all_speeds_is_reached():
    ways = unlike_ways(MODEL, (FAST, SLOW), 40)
    table = unlike_table(ways, 40, MODEL).set_index("way")
    assert table.loc["shares by speed", "shares"] == "2 x 16, 2 x 4"
    assert (table["of_all"] < 1).all()
    assert table.loc["pipeline by speed", "of_all"] > table.loc["pipeline, equal layers", "of_all"]


def test_more_gpus_than_blocks_train_without_a_pipeline():
    ways = unlike_ways(MODEL, (replace(FAST, count=9), SLOW), 11, pipelines=False)
    assert [way.name for way in ways] == [
        "equal shares",
        "shares by speed",
        "only fast",
        "only slow",
    ]


def test_stages_may_take_seconds_of_their_own():
    order = schedule("1f1b", 2, 4)
    same = [{"F": 1.0, "B": 2.0}] * 2
    assert play(order, same, 0.5) == play(order, same[0], 0.5)
    assert play(order, [same[0], {"F": 2.0, "B": 4.0}]).seconds == 4 * 6 + 3
    with pytest.raises(InputError, match="2 stages have 1 seconds"):
        play(order, same[:1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: unlike_ways(MODEL, (FAST, SLOW), 42), InputError, "take 40 or 44, or shares"),
        (lambda: unlike_ways(MODEL, (FAST,), 9, 2), InputError, "divide a batch of 9; take 8 or"),
        (lambda: unlike_ways(MODEL, (), 8), InputError, "there are no GPUs"),
        (lambda: unlike_ways(MODEL, (FAST, FAST), 8), InputError, "'?fast'? is named twice"),
        (lambda: unlike_ways(MODEL, (replace(FAST, count=9),), 9), InputError, "at most 8 GPUs"),
        (lambda: gpu_kinds({}), InputError, "there are no GPUs"),
        (lambda: gpu_kinds({"A100": 0}), InputError, "count 0"),
        (lambda: gpu_kinds({"A100": 1}, reached=1.5), InputError, "reached 1.5"),
        (lambda: gpu_kinds({"A1000": 1}), UnknownName, "unknown GPU"),
        (lambda: gpu_kinds({"V100": 1}, "bf16"), UnknownName, "unknown precision"),
    ],
)
def test_what_no_cluster_can_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
