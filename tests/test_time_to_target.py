"""Time to target and its verdict: iterations times seconds, and reasons that follow from parts."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pandas as pd
import pytest

import ddlnb
from ddlnb.compression.seconds import FREE, CompressionProfile, CompressorSeconds, Line
from ddlnb.errors import InputError
from ddlnb.time_to_target import best_dense, iterations_to_target, time_to_target
from ddlnb.units import MB
from ddlnb.verdicts import NO, UNSURE, YES, verdict, verdicts

WORKLOAD = ddlnb.read_profile("resnet50_b64_rtx2080ti")
SLOW_NETWORK = ddlnb.get_cluster("survey-10GbE")
FAST_NETWORK = SLOW_NETWORK.with_effects(
    between_bandwidth=50e9, inside_bandwidth=100e9, between_startup=1e-6, operation_startup=1e-6
)
TOP_K = "bsp + top-k(0.01) + feedback on A2A"
SLOWLY = CompressionProfile(
    "made up", {"top-k(0.01)": CompressorSeconds(Line(0, 1e-7), Line(), Line(), "workers")}
)


def curves(needed: dict[str, list[float]], workers: int = 16) -> pd.DataFrame:
    """Curves whose loss is at most 0.5 from the given step on; one seed per number."""
    rows = []
    for method, steps in needed.items():
        for seed, reached in enumerate(steps):
            for step in range(0, 201, 10):
                loss = 0.4 if step >= reached else 1.0
                rows.append(("digits", method, workers, seed, step, loss))
    return pd.DataFrame(rows, columns=["task", "method", "workers", "seed", "step", "test_loss"])


SEEDS = {"bsp on A2A": [100, 100, 110], TOP_K: [110, 110, 120]}


def table(needed=SEEDS, cluster=SLOW_NETWORK, profile=FREE) -> pd.DataFrame:
    return time_to_target(curves(needed), 0.5, WORKLOAD, [cluster], profile, steps=8)


def test_iterations_are_the_first_step_at_the_target_or_infinite():
    found = iterations_to_target(curves({"bsp on A2A": [30, math.inf]}), 0.5)
    assert list(found["iterations"]) == [30, math.inf]


def test_seconds_are_iterations_times_seconds_of_one():
    for row in table().to_dict("records"):
        assert row["seconds"] == pytest.approx(row["iterations"] * row["iteration_seconds"])
        assert row["low"] < row["seconds"] < row["high"]
        parts = row["compute_seconds"] + row["compression_seconds"] + row["waiting_seconds"]
        assert row["iteration_seconds"] == pytest.approx(parts)


def test_the_dense_row_is_the_quickest_lossless_method_and_its_own_measure():
    dense = table().iloc[0]
    best = best_dense(WORKLOAD, SLOW_NETWORK.with_workers(16))
    assert dense["is_dense"]
    assert dense["carried_by"] == best.method
    assert dense["speedup"] == pytest.approx(1.0)
    assert dense["iteration_seconds"] == best.iteration_seconds


def test_the_same_iterations_gain_what_an_iteration_gains():
    same = {"bsp on A2A": [100, 120], TOP_K: [100, 120]}
    dense, lossy = table(same).to_dict("records")
    assert lossy["speedup"] == pytest.approx(
        dense["iteration_seconds"] / lossy["iteration_seconds"]
    )
    assert lossy["speedup_low"] == pytest.approx(lossy["speedup_high"])


def test_the_verdict_turns_when_bandwidth_grows():
    (slow,), (fast,) = (
        verdicts(table(cluster=cluster)) for cluster in (SLOW_NETWORK, FAST_NETWORK)
    )
    assert slow.choice == YES
    assert str(slow).startswith("compress here")
    assert fast.choice == NO
    assert "hidden already" in fast.reason
    assert str(fast).startswith("do not compress here")


def test_slow_compression_is_the_reason_when_it_takes_more_than_it_saves():
    (found,) = verdicts(table(profile=SLOWLY))
    assert found.choice == NO
    assert "compression takes" in found.reason


def test_more_iterations_are_the_reason_when_only_they_are():
    (found,) = verdicts(table({"bsp on A2A": [50, 50], TOP_K: [200, 200]}))
    assert found.choice == NO
    assert "4.00 times the iterations" in found.reason


def test_a_gather_of_as_many_bytes_is_the_reason():
    method = "bsp + top-k(0.5) + feedback on A2A"
    (found,) = verdicts(table({"bsp on A2A": [100, 100], method: [100, 100]}))
    assert found.choice == NO
    assert "all-gather grows with the workers" in found.reason
    carried, of_ring = map(float, re.findall(r"([0-9.]+) MB", found.reason))
    assert carried >= of_ring == pytest.approx(4 * 15 / 16 * WORKLOAD.gradient_bytes / MB, abs=0.05)


def test_runs_that_never_get_there_have_no_speedup():
    missing = {"bsp on A2A": [100, 100], TOP_K: [100, math.inf]}
    row = table(missing).to_dict("records")[1]
    assert row["seconds"] == math.inf
    assert row["speedup"] == 0
    (found,) = verdicts(table(missing))
    assert found.choice == NO
    assert "1 of 2 runs never reach" in found.reason


def test_an_interval_around_one_is_no_clear_gain():
    dense, lossy = table().to_dict("records")
    around = {**lossy, "speedup": 1.1, "speedup_low": 0.9, "speedup_high": 1.3}
    assert verdict(around, dense).choice == UNSURE
    assert "no clear reason" in str(verdict(around, dense))


def test_local_steps_are_no_compression_in_words():
    found = verdicts(table({"bsp on A2A": [100, 100], "local(8) on A2A": [100, 100]}))[0]
    assert str(found).startswith("relax synchronisation here")


def test_what_is_missing_is_said():
    with pytest.raises(InputError, match="lack 'bsp on A2A'"):
        table({TOP_K: [100]})
    with pytest.raises(InputError, match=r"lack the columns \['test_loss'\]"):
        iterations_to_target(curves(SEEDS).drop(columns="test_loss"), 0.5)
    with pytest.raises(InputError, match="does not reach the target in all"):
        table({"bsp on A2A": [math.inf], TOP_K: [100]})
    alone = replace(SLOW_NETWORK.with_workers(16), server_place=None)
    assert best_dense(WORKLOAD, alone).iteration_seconds > 0
