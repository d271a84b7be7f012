"""Sharing a batch and layers among unlike GPUs, against every other sharing there is."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlnb.errors import InputError
from ddlnb.parallelism.partition import (
    cut_layers,
    equal_cut,
    equal_shares,
    gradient_weights,
    pipeline_seconds,
    share_batch,
    slowest_seconds,
    stage_seconds,
)
from ddlnb.parallelism.schedules import play, schedule

SPEED = st.floats(0.1, 10.0)


def all_shares(samples, workers):
    """Return every way to deal samples to workers."""
    if workers == 1:
        return [(samples,)]
    return [
        (own, *rest)
        for own in range(samples + 1)
        for rest in all_shares(samples - own, workers - 1)
    ]


def all_cuts(layers, stages):
    """Return every way to cut layers into stages that hold at least one."""
    for marks in combinations(range(1, layers), stages - 1):
        ends = (0, *marks, layers)
        yield tuple(stop - first for first, stop in pairwise(ends))


@settings(max_examples=60)
@given(samples=st.integers(1, 12), speeds=st.lists(SPEED, min_size=1, max_size=4))
def test_no_other_sharing_of_a_batch_ends_earlier(samples, speeds):
    shares = share_batch(samples, speeds)
    assert sum(shares) == samples
    best = min(slowest_seconds(one, speeds) for one in all_shares(samples, len(speeds)))
    assert slowest_seconds(shares, speeds) == pytest.approx(best, rel=1e-12)


@given(samples=st.integers(1, 10_000), speeds=st.lists(SPEED, min_size=1, max_size=8))
def test_shares_are_within_one_sample_of_what_nobody_can_beat(samples, speeds):
    ideal = samples / sum(speeds)
    slowest = slowest_seconds(share_batch(samples, speeds), speeds)
    assert ideal <= slowest * (1 + 1e-12)
    assert slowest <= ideal + 1 / min(speeds)


@given(each=st.integers(1, 50), workers=st.integers(1, 8), speed=SPEED)
def test_workers_that_are_alike_get_equal_shares(each, workers, speed):
    assert share_batch(each * workers, [speed] * workers) == equal_shares(each * workers, workers)


@settings(max_examples=60)
@given(
    costs=st.lists(st.integers(0, 9), min_size=4, max_size=8),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=1, max_size=4),
    micro_batches=st.integers(1, 9),
)
def test_no_other_cut_of_layers_ends_earlier_under_gpipe(costs, speeds, micro_batches):
    def played(cut):
        stages = stage_seconds(costs, speeds, cut)
        seconds = [{"F": one / 3, "B": one * 2 / 3} for one in stages]
        return play(schedule("gpipe", len(cut), micro_batches), seconds).seconds

    cut = cut_layers(costs, speeds, micro_batches)
    assert sum(cut) == len(costs)
    assert min(cut) >= 1
    formula = pipeline_seconds(stage_seconds(costs, speeds, cut), micro_batches)
    assert played(cut) == pytest.approx(formula)
    assert played(cut) == pytest.approx(min(map(played, all_cuts(len(costs), len(speeds)))))


def test_many_micro_batches_even_out_stages_and_one_wants_most_layers_where_it_is_quick():
    costs, speeds = [2.0, 2.0, 2.0, 2.0, 1.0], [2.0, 1.0]
    assert cut_layers(costs, speeds, micro_batches=1) == (4, 1)
    assert cut_layers(costs, speeds, micro_batches=50) == (3, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equal_shares(10, 4), "take 8 or 12, or shares by speed"),
        (lambda: equal_shares(3, 4), "divide a batch of 3; take 4, or"),
        (lambda: share_batch(0, [1.0]), "samples 0 must be a whole number"),
        (lambda: share_batch(4, []), "there are no workers"),
        (lambda: share_batch(4, [1.0, 0.0]), "speed 0.0 must be a finite number above 0"),
        (lambda: gradient_weights((0, 0)), "hold no samples"),
        (lambda: cut_layers([1.0], [1.0, 1.0], 2), "use at most 1 GPUs, or a model of at least 2"),
        (lambda: cut_layers([1.0, -1.0], [1.0], 2), "must be numbers from 0"),
        (lambda: cut_layers([1.0], [], 2), "there are no stages"),
        (lambda: equal_cut(2, 3), "3 stages are more than the 2 layers"),
        (lambda: stage_seconds([1.0] * 3, [1.0], (2,)), "must hold 3 layers in 1 stages"),
    ],
)
def test_what_cannot_be_shared_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
