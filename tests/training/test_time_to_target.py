"""Time to target and its verdict: iterations times seconds, and reasons that follow from parts."""

import math
import re
from dataclasses import replace

import pandas as pd
import pytest

import ddlnb
from ddlnb.compression.profile import FREE, CompressionProfile, CompressorSeconds, Line
from ddlnb.errors import InputError
from ddlnb.plans.requests import AllReduce
from ddlnb.training.cost.estimate import best_lossless
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.cost.time_to_target import (
    NO,
    UNSURE,
    YES,
    Recommendation,
    iterations_to_target,
    recommendation,
    recommendations,
    time_to_target,
)
from ddlnb.training.executors.clock import OneSlow
from ddlnb.units import MB

WORKLOAD = ddlnb.read_profile("resnet50_b64_rtx2080ti")
# Slow enough that ResNet-50 cannot hide what it sends.
SLOW_NETWORK = ddlnb.get_cluster("survey-10GbE").with_effects(between_bandwidth=0.45e9)
FAST_NETWORK = SLOW_NETWORK.with_effects(
    between_bandwidth=50e9, inside_bandwidth=100e9, between_latency=1e-6, operation_latency=1e-6
)
TOP_K = "bsp + top-k(0.01) + feedback on A2A"
SLOWLY = CompressionProfile(
    "made up", {"top-k(0.01)": CompressorSeconds(Line(0, 1e-7), Line(), Line(), "workers")}
)


def curves(needed: dict[str, list[float]], workers: int = 16, every: int = 1) -> pd.DataFrame:
    """Curves whose loss is at most 0.5 from the given step on; one seed per number."""
    rows = []
    for method, steps in needed.items():
        for seed, reached in enumerate(steps):
            for step in range(0, 201, every):
                loss = 0.4 if step >= reached else 1.0
                rows.append(("digits", method, workers, seed, step, loss, 0.0))
    names = ["task", "method", "workers", "seed", "step", "test_loss", "averaging_bytes_sent"]
    return pd.DataFrame(rows, columns=names)


SEEDS = {"bsp on A2A": [100, 100, 110], TOP_K: [105, 105, 115]}


def table(needed=SEEDS, cluster=SLOW_NETWORK, profile=FREE, every=1) -> pd.DataFrame:
    made = curves(needed, every=every)
    return time_to_target(made, 0.5, WORKLOAD, [cluster], profile, steps=8)


def test_iterations_are_between_two_evaluations_or_infinite():
    found = iterations_to_target(curves({"bsp on A2A": [27, math.inf]}, every=10), 0.5)
    assert list(found["iterations"]) == [30, math.inf]
    assert list(found["since"]) == [20, math.inf]
    assert list(found["averages"]) == [0, 0]


def test_a_model_that_no_worker_has_takes_one_average_more():
    made = curves({"bsp on A2A": [100, 100], "local(8) on A2A": [100, 100]})
    within = (made["method"] == "local(8) on A2A") & (made["step"] % 8 > 0)
    dearer = made.assign(averaging_bytes_sent=within * 1.0)
    rows = [
        time_to_target(one, 0.5, WORKLOAD, [SLOW_NETWORK], steps=8).iloc[1]
        for one in (made, dearer)
    ]
    here, size = SLOW_NETWORK.with_workers(16), WORKLOAD.gradient_bytes
    average = request_cost(here, AllReduce, size, is_merged=True)
    assert rows[1]["seconds"] - rows[0]["seconds"] == pytest.approx(average.seconds)
    assert rows[1]["speedup"] < rows[0]["speedup"]


def test_seconds_are_iterations_times_seconds_of_one():
    for row in table().to_dict("records"):
        assert row["seconds"] == pytest.approx(row["iterations"] * row["iteration_seconds"])
        assert row["low"] < row["seconds"] < row["high"]
        parts = row["compute_seconds"] + row["compression_seconds"] + row["waiting_seconds"]
        assert row["iteration_seconds"] == pytest.approx(parts)


def test_the_dense_row_is_the_quickest_lossless_method_and_its_own_measure():
    dense = table().iloc[0]
    best = best_lossless(WORKLOAD, SLOW_NETWORK.with_workers(16), most_machines=0)
    assert dense["is_dense"]
    assert dense["carried_by"] == best.method
    assert dense["speedup"] == pytest.approx(1.0)
    assert dense["iteration_seconds"] == best.iteration_seconds


def test_methods_are_compared_with_lossless_ones_on_as_many_machines():
    """WFBP-PS takes four machines more; what takes none was said to be slower than that."""
    served = "ssp(3) on PS"
    rows = table({"bsp on A2A": [100, 100], TOP_K: [100, 100], served: [100, 100]})
    alone, with_servers = rows[rows["is_dense"]].to_dict("records")
    assert (alone["server_machines"], with_servers["server_machines"]) == (0, 4)
    assert with_servers["carried_by"] == best_lossless(WORKLOAD, here16()).method
    assert with_servers["carried_by"].endswith("-PS")
    for method, dense in ((TOP_K, alone), (served, with_servers)):
        (row,) = rows[rows["method"] == method].to_dict("records")
        assert row["server_machines"] == dense["server_machines"]
        ratio = dense["iteration_seconds"] / row["iteration_seconds"]
        assert row["speedup"] == pytest.approx(ratio)
        (found,) = (one for one in recommendations(rows) if one.method == method)
        assert found.speedup == row["speedup"]


def here16() -> ddlnb.Cluster:
    return SLOW_NETWORK.with_workers(16)


def test_stragglers_slow_down_both_sides_of_a_comparison():
    made, law = curves(SEEDS), OneSlow(3.0)
    even, uneven = (
        time_to_target(made, 0.5, WORKLOAD, [SLOW_NETWORK], steps=4, slower=slower)
        for slower in (None, law)
    )
    assert (uneven["iteration_seconds"] > even["iteration_seconds"] + 0.2).all()
    best = best_lossless(WORKLOAD, here16(), law, 4, most_machines=0)
    assert uneven["iteration_seconds"].iloc[0] == best.iteration_seconds


def test_the_steps_between_evaluations_are_in_the_interval():
    """Equal seeds have an interval of no width, however rarely models are evaluated."""
    same = {"bsp on A2A": [100, 100], TOP_K: [80, 80]}
    for every in (1, 10, 20):
        _, lossy = table(same, every=every).to_dict("records")
        before, after = 1 - every / 100, 1 / (1 - every / 80)
        assert lossy["speedup_low"] == pytest.approx(lossy["speedup"] * before)
        assert lossy["speedup_high"] == pytest.approx(lossy["speedup"] * after)
        assert lossy["seconds"] - lossy["low"] == pytest.approx(every * lossy["iteration_seconds"])


@pytest.mark.parametrize(
    ("low", "high", "exposed", "seeds", "choice"),
    [
        (1.02, 1.10, 0.2, 3, YES),
        (1.005, 1.10, 0.2, 3, UNSURE),
        (1.0001, 1.0002, 0.2, 3, NO),
        (0.9, 0.99, 0.2, 3, NO),
        (1.02, 1.10, 0.04, 3, UNSURE),
        (0.9, 1.10, 0.04, 3, NO),
        (math.nan, math.nan, 0.2, 1, UNSURE),
    ],
)
def test_a_gain_is_beyond_the_margin_of_what_was_exposed(low, high, exposed, seeds, choice):
    dense, lossy = table().to_dict("records")
    dense |= {"iteration_seconds": 1.0, "waiting_seconds": exposed}
    lossy |= {"speedup": 1.05, "speedup_low": low, "speedup_high": high}
    lossy |= {"seeds": seeds, "reached": seeds}
    found = recommendation(lossy, dense)
    assert found.choice == choice
    assert ("hidden already" in found.reason) == (exposed < 0.05)


def test_a_gain_of_nothing_is_no_reason_to_compress():
    """On 100GbIB communication is hidden; equal iterations made it '1.00x: compress here'."""
    same = {"bsp on A2A": [100, 100], "bsp + ef-sign + feedback on A2A": [100, 100]}
    (found,) = recommendations(table(same, ddlnb.get_cluster("survey-100GbIB")))
    assert found.choice == NO
    (alone,) = recommendations(table({"bsp on A2A": [100], TOP_K: [50]}))
    assert alone.choice == UNSURE
    assert "a single seed" in alone.reason


def test_the_verdict_turns_when_bandwidth_grows():
    (slow,), (fast,) = (
        recommendations(table(cluster=cluster)) for cluster in (SLOW_NETWORK, FAST_NETWORK)
    )
    assert slow.choice == YES
    assert str(slow).startswith("compress here")
    assert fast.choice == NO
    assert "hidden already" in fast.reason
    assert str(fast).startswith("do not compress here")


@pytest.mark.parametrize(
    ("needed", "profile", "reason"),
    [
        (SEEDS, SLOWLY, "compression takes"),
        ({"bsp on A2A": [50, 50], TOP_K: [200, 200]}, FREE, "4.00 times the iterations"),
        ({"bsp on A2A": [100, 100], TOP_K: [100, math.inf]}, FREE, "1 of 2 runs do not reach"),
    ],
)
def test_the_reason_against_it_is_the_one_that_applies(needed, profile, reason):
    (found,) = recommendations(table(needed, profile=profile))
    assert found.choice == NO
    assert reason in found.reason


def test_a_run_that_diverged_is_not_told_to_train_longer():
    made = curves({"bsp on A2A": [100, 100], TOP_K: [100, math.inf]})
    ends = (made["method"] == TOP_K) & (made["seed"] == 1) & (made["step"] == made["step"].max())
    rows = time_to_target(made.assign(diverged=ends), 0.5, WORKLOAD, [SLOW_NETWORK], FREE, steps=8)
    (found,) = recommendations(rows)
    assert found.reason.startswith("1 of 2 runs diverged; take a lower learning rate")


@pytest.mark.parametrize(
    ("method", "what"), [("bsp on PS", "use parameter servers"), ("asp", "relax synchronisation")]
)
def test_a_recommendation_says_what_the_method_does(method, what):
    made = Recommendation("m", 4, method, NO, 1.0, 0.9, 1.1, "why")
    assert str(made).startswith(f"do not {what} here")


def test_a_gather_of_as_many_bytes_is_the_reason():
    method = "bsp + top-k(0.5) + feedback on A2A"
    (found,) = recommendations(table({"bsp on A2A": [100, 100], method: [100, 100]}))
    assert found.choice == NO
    assert "all-gather grows with the workers" in found.reason
    carried, of_ring = map(float, re.findall(r"([0-9.]+) MB", found.reason))
    assert carried >= of_ring == pytest.approx(4 * 15 / 16 * WORKLOAD.gradient_bytes / MB, abs=0.05)


def test_runs_that_never_get_there_have_no_speedup():
    missing = {"bsp on A2A": [100, 100], TOP_K: [100, math.inf]}
    row = table(missing).to_dict("records")[1]
    assert row["seconds"] == math.inf
    assert row["speedup"] == 0


@pytest.mark.parametrize(
    ("without", "target", "told"),
    [
        ("test_loss", 0.5, r"lack the columns \['test_loss'\]"),
        ("averaging_bytes_sent", 0.5, "lack the column 'averaging_bytes_sent'"),
        ("nothing", 10, "target 10 is reached before training"),
        ("nothing", math.nan, "must be a finite loss"),
    ],
)
def test_what_is_missing_is_said(without, target, told):
    with pytest.raises(InputError, match=told):
        iterations_to_target(curves(SEEDS).drop(columns=without, errors="ignore"), target)


@pytest.mark.parametrize(
    ("needed", "told"),
    [
        ({TOP_K: [100]}, "lack 'bsp on A2A'"),
        ({"bsp on A2A": [math.inf], TOP_K: [100]}, "does not reach the target in all"),
    ],
)
def test_what_cannot_be_compared_is_said(needed, told):
    with pytest.raises(InputError, match=told):
        table(needed)


def test_a_cluster_without_servers_has_a_best_method():
    alone = replace(SLOW_NETWORK.with_workers(16), server_place=None)
    assert best_lossless(WORKLOAD, alone).iteration_seconds > 0
