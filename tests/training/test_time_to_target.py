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
HERE = SLOW_NETWORK.with_workers(16)
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


def test_iterations_are_between_two_evaluations_or_infinite_without_a_speedup():
    found = iterations_to_target(curves({"bsp on A2A": [27, math.inf]}, every=10), 0.5)
    assert list(found["iterations"]) == [30, math.inf]
    assert list(found["since"]) == [20, math.inf]
    assert list(found["averages"]) == [0, 0]
    row = table(LOST).to_dict("records")[1]
    assert row["seconds"] == math.inf
    assert row["speedup"] == 0


def test_a_model_goes_by_its_name_where_the_cluster_has_a_profile_of_it():
    made, cluster = curves(SEEDS), ddlnb.get_cluster("survey-10GbE", 16)
    profile = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    by_name, given = (
        time_to_target(made, 0.5, model, cluster, steps=8) for model in ("resnet50", profile)
    )
    pd.testing.assert_frame_equal(by_name, given)


def test_a_model_that_no_worker_has_takes_one_average_more():
    made = curves({"bsp on A2A": [100, 100], "local(8) on A2A": [100, 100]})
    within = (made["method"] == "local(8) on A2A") & (made["step"] % 8 > 0)
    dearer = made.assign(averaging_bytes_sent=within * 1.0)
    rows = [
        time_to_target(one, 0.5, WORKLOAD, [SLOW_NETWORK], steps=8).iloc[1]
        for one in (made, dearer)
    ]
    average = request_cost(HERE, AllReduce, WORKLOAD.gradient_bytes, is_merged=True)
    assert rows[1]["seconds"] - rows[0]["seconds"] == pytest.approx(average.seconds)
    assert rows[1]["speedup"] < rows[0]["speedup"]


def test_seconds_are_iterations_times_seconds_and_dense_is_the_quickest_lossless():
    for row in table().to_dict("records"):
        assert row["seconds"] == pytest.approx(row["iterations"] * row["iteration_seconds"])
        assert row["low"] < row["seconds"] < row["high"]
        parts = row["compute_seconds"] + row["compression_seconds"] + row["waiting_seconds"]
        assert row["iteration_seconds"] == pytest.approx(parts)
    dense = table().iloc[0]
    best = best_lossless(WORKLOAD, HERE, most_machines=0)
    assert dense["is_dense"]
    assert dense["carried_by"] == best.method
    assert dense["speedup"] == pytest.approx(1.0)
    assert dense["iteration_seconds"] == best.iteration_seconds
    for workers in (1, HERE.workers):
        without = replace(HERE.with_workers(workers), server_place=None)
        assert "PS" not in best_lossless(WORKLOAD, without).method


def test_methods_are_compared_with_lossless_ones_on_as_many_machines():
    """WFBP-PS takes four machines more; what takes none was said to be slower than that."""
    served = "ssp(3) on PS"
    rows = table({"bsp on A2A": [100, 100], TOP_K: [100, 100], served: [100, 100]})
    alone, with_servers = rows[rows["is_dense"]].to_dict("records")
    assert (alone["server_machines"], with_servers["server_machines"]) == (0, 4)
    assert with_servers["carried_by"] == best_lossless(WORKLOAD, HERE).method
    assert with_servers["carried_by"].endswith("-PS")
    for method, dense in ((TOP_K, alone), (served, with_servers)):
        (row,) = rows[rows["method"] == method].to_dict("records")
        assert row["server_machines"] == dense["server_machines"]
        ratio = dense["iteration_seconds"] / row["iteration_seconds"]
        assert row["speedup"] == pytest.approx(ratio)
        (found,) = (one for one in recommendations(rows) if one.method == method)
        assert found.speedup == row["speedup"]


def test_stragglers_slow_down_both_sides_of_a_comparison():
    made, law = curves(SEEDS), OneSlow(3.0)
    even, uneven = (
        time_to_target(made, 0.5, WORKLOAD, [SLOW_NETWORK], steps=4, slower=slower)
        for slower in (None, law)
    )
    assert (uneven["iteration_seconds"] > even["iteration_seconds"] + 0.2).all()
    best = best_lossless(WORKLOAD, HERE, law, 4, most_machines=0)
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


FASTER = {"bsp on A2A": [100], TOP_K: [50]}
SAME = {"bsp on A2A": [100, 100], "bsp + ef-sign + feedback on A2A": [100, 100]}
SLOWER = {"bsp on A2A": [50, 50], TOP_K: [200, 200]}
LOST = {"bsp on A2A": [100, 100], TOP_K: [100, math.inf]}
HIDING = ddlnb.get_cluster("survey-100GbIB")  # whose communication is hidden already


@pytest.mark.parametrize(
    ("needed", "cluster", "profile", "choice", "reason"),
    [
        (SEEDS, SLOW_NETWORK, FREE, YES, ""),
        (SEEDS, FAST_NETWORK, FREE, NO, "hidden already"),
        (SAME, HIDING, FREE, NO, ""),  # equal iterations made it '1.00x: compress here'
        (FASTER, SLOW_NETWORK, FREE, UNSURE, "a single seed"),
        (SEEDS, SLOW_NETWORK, SLOWLY, NO, "compression takes"),
        (SLOWER, SLOW_NETWORK, FREE, NO, "4.00 times the iterations"),
        (LOST, SLOW_NETWORK, FREE, NO, "1 of 2 runs do not reach"),
    ],
)
def test_a_choice_has_the_reason_that_applies(needed, cluster, profile, choice, reason):
    (found,) = recommendations(table(needed, cluster, profile))
    assert found.choice == choice
    assert reason in found.reason
    words = {YES: "compress", NO: "do not compress", UNSURE: "no clear reason to compress"}
    assert str(found).startswith(f"{words[choice]} here: ")


def test_a_run_that_diverged_is_not_told_to_train_longer():
    made = curves(LOST)
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


def needed(without: str = "", target: float = 0.5) -> pd.DataFrame:
    """Iterations to a target, of curves that lack a column."""
    return iterations_to_target(curves(SEEDS).drop(columns=without, errors="ignore"), target)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: needed("test_loss"), r"lack the columns \['test_loss'\]"),
        (lambda: needed("averaging_bytes_sent"), "lack the column 'averaging_bytes_sent'"),
        (lambda: needed(target=10), "target 10 is reached before training"),
        (lambda: needed(target=math.nan), "must be a finite loss"),
        (lambda: table({TOP_K: [100]}), "lack 'bsp on A2A'"),
        (
            lambda: table({"bsp on A2A": [math.inf], TOP_K: [100]}),
            "reaches the target in 0 of its 1 run",
        ),
    ],
)
def test_what_is_missing_or_cannot_be_compared_is_said(ask, told):
    with pytest.raises(InputError, match=told):
        ask()
