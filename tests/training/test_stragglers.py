"""Seconds of gradients: the same for the same worker and step, and distributed as said."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from ddlnb.errors import InputError
from ddlnb.training.executors.clock import (
    STRAGGLERS,
    Alternating,
    Clock,
    ExponentialTail,
    LogNormal,
)
from ddlnb.training.executors.clock import get_straggler as get
from tests.toy_training import Trained

DRAWS = [(rank, step, 8) for rank in range(8) for step in range(500)]


@pytest.mark.parametrize("name", STRAGGLERS)
def test_a_worker_is_late_at_the_same_steps_again(name):
    assert [get(name)(*draw) for draw in DRAWS[:50]] == [get(name)(*draw) for draw in DRAWS[:50]]
    assert all(get(name)(*draw) > 0 for draw in DRAWS[:50])


@pytest.mark.parametrize(
    ("straggler", "mean", "deviation"),
    [
        (LogNormal(0.5, seed=3, seconds=2.0), 2.0, 2.0 * math.sqrt(math.exp(0.25) - 1)),
        (ExponentialTail(0.5, seed=3, seconds=2.0), 2.5, 0.5),
    ],
    ids=["log-normal", "exponential"],
)
def test_random_seconds_have_the_mean_and_differ_between_workers(straggler, mean, deviation):
    seconds = [straggler(*draw) for draw in DRAWS]
    assert len(set(seconds)) == len(DRAWS)
    # Four standard errors: wrong once in 16,000 seeds.
    error = 4 * deviation / math.sqrt(len(DRAWS))
    assert sum(seconds) / len(seconds) == pytest.approx(mean, abs=error)


def test_the_slow_worker_changes():
    slow = Alternating(factor=3.0, period=2)
    late = [[rank for rank in range(3) if slow(rank, step, 3) == 3.0] for step in range(8)]
    assert late == [[0], [0], [1], [1], [2], [2], [0], [0]]


@pytest.mark.parametrize("workers", [2, 8])
def test_every_worker_has_its_turn_and_somebody_is_always_slow(workers):
    trained = Trained("asp", 20, count=workers, clock=Clock(get("alternating(4, 2)")))
    gradients = [one for one in trained.run.activities if one.kind == "compute"]
    slow = Counter(one.rank for one in gradients if one.seconds == 4.0)
    assert set(slow) == set(range(workers))
    assert sum(slow.values()) == 20


def test_a_slow_worker_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"one-slow\(4, 9, 1\) slows a worker .* ranks 0 to 3"):
        Trained("bsp", 1, count=4, clock=Clock(get("one-slow(4, 9)")))


def test_only_random_laws_take_a_seed():
    changed = {name for name in STRAGGLERS if get(name).drawn_from(7) != get(name)}
    assert changed == {"log-normal", "exponential"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("one-slow(0)", "factor 0.0 of a slow worker must be above 0"),
        ("constant(-1)", "seconds -1.0 of a gradient"),
        ("log-normal(-0.1)", "spread -0.1 must not be negative"),
        ("exponential(-1)", "delay -1.0 must not be negative"),
        ("slow", "unknown straggler 'slow'"),
    ],
)
def test_wrong_stragglers_are_refused(text, reason):
    with pytest.raises(InputError, match=reason):
        get(text)
