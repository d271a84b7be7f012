"""Forecasts: tidy rows, honest intervals, one clear error for what does not fit together."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import Effects
from ddlnb.clusters.file import get_cluster
from ddlnb.clusters.named import cluster_of
from ddlnb.errors import InputError
from ddlnb.files import DATA
from ddlnb.plans.methods import BASELINES, METHODS
from ddlnb.results.schema import CELL
from ddlnb.simulator.draws import draw_clusters
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.profiles import grown, profile_for
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.tracing import trace
from tests.toy import TOY

SURVEY = get_cluster("survey-10GbE")


def test_a_forecast_has_a_row_per_method_and_number_of_gpus():
    rows = forecast(TOY, SURVEY, gpus=[4, 8], draws=20)
    assert list(zip(rows["gpus"], rows["method"], strict=True)) == [
        (count, method) for count in (4, 8) for method in (*BASELINES, *METHODS)
    ]
    assert set(CELL) - {"optimizer", "iterations", "warmup"} <= set(rows.columns)
    assert (rows["source"] == "simulated").all()
    samples = rows["gpus"] * TOY.local_batch
    np.testing.assert_allclose(
        rows["throughput_samples_per_s"], samples / rows["iteration_seconds"]
    )


def test_the_interval_holds_the_value_where_anything_is_uncertain():
    known = exactly(SURVEY)
    rate = known.effects.between_bandwidth
    wide = {**known.fits, "between_bandwidth": Fit(0.5 * rate, 2 * rate, "test")}
    for workload, cluster in (
        (TOY, replace(known, fits=wide)),
        (TOY, replace(known, model_error=0.2)),
        (replace(TOY, spread=0.2), known),
    ):
        row = forecast(workload, cluster, "BSP-A2A", gpus=8, draws=50).iloc[0]
        assert row["low"] < row["throughput_samples_per_s"] < row["high"]


def exactly(cluster):
    """Return the cluster with effects that are known exactly, and no error of the model."""
    fits = {name: Fit(value, value, "exact") for name, value in cluster.effects.there.items()}
    return replace(cluster, fits=fits, model_error=0.0)


@pytest.mark.parametrize(("cluster", "draws"), [(exactly(SURVEY), 20), (SURVEY, 0)])
def test_what_is_known_exactly_or_not_drawn_has_no_interval_and_no_chance(cluster, draws):
    """It was an interval without width, and a share of 100 % of the draws."""
    rows = forecast(TOY, cluster, gpus=8, draws=draws)
    assert rows[["low", "high", "chance_best"]].isna().all().all()


def test_numbers_without_intervals_are_not_taken_for_exact():
    bare = replace(SURVEY, fits={}, model_error=0.0)
    rows = forecast("bert-large", bare, gpus=32, draws=40)
    assert (rows["low"] < 0.95 * rows["throughput_samples_per_s"]).all()
    assert (rows["high"] > 1.05 * rows["throughput_samples_per_s"]).all()
    assert "between_bandwidth" in bare.assumed
    assert "connection_bandwidth" in bare.assumed
    assert "rank_latency" not in SURVEY.assumed


def test_a_cluster_that_gives_no_model_error_gets_one():
    """Else what hides its communication looks exact, whatever is assumed of the links."""
    given = {"name": "mine", "network": "25GbE", "nodes": 8, "gpus_per_node": 4}
    fast = Cluster(**given, effects=Effects(between_bandwidth=1e15, inside_bandwidth=1e15))
    rows = forecast(TOY, fast, "WFBP-A2A", draws=40)
    assert (rows["high"] > 1.2 * rows["low"]).all()


@pytest.mark.parametrize("local_batch", [1, 64])
@pytest.mark.parametrize("cluster", [SURVEY, cluster_of("T4", nodes=2)], ids=["fitted", "named"])
def test_one_gpu_has_the_throughput_that_was_told(cluster, local_batch):
    """What was measured is training, the optimizer's update included."""
    found = forecast("resnet50", cluster, gpus=1, throughput=50, local_batch=local_batch, draws=0)
    assert found.rows["throughput_samples_per_s"].to_numpy() == pytest.approx(50, rel=1e-6)
    assert found.sentences[0].endswith("exchanges nothing: 50 samples/s by any method.")


def test_nobody_has_more_than_linear_scaling_in_any_draw():
    rows = forecast(TOY, "v100-nvlink", draws=40).rows
    assert (rows["efficiency_high"] <= 1).all()
    assert (rows["efficiency_low"] < rows["efficiency_high"]).any()


def test_numbers_of_gpus_may_be_those_of_numpy():
    found = forecast(TOY, SURVEY, "DDP", gpus=np.array([4, 8]), draws=0)
    assert found.rows["gpus"].tolist() == [4, 8]


def test_all_methods_are_those_that_the_cluster_can_run():
    rows = forecast("bert-large", "v100-nvlink", draws=0)
    able = {name for name, one in METHODS.items() if one.architecture == "A2A"}
    assert set(rows["method"]) == able | set(BASELINES)
    named = forecast("bert-large", "v100-nvlink", "WFBP-PS", draws=0)
    assert list(named["method"]) == ["WFBP-PS"]  # within a node, which is what was asked for


def test_draws_are_the_same_twice_and_inside_the_bounds():
    fit = Fit(0.3, 1.0, "test")
    cluster = replace(exactly(SURVEY), fits={**exactly(SURVEY).fits, "inside_share": fit})
    first, second = (draw_clusters(cluster, 40, seed=7) for _ in range(2))
    assert first == second
    shares = [drawn.effects.inside_share for drawn in first]
    assert all(0.01 <= share <= 1.0 for share in shares)
    assert len(set(shares)) > 20
    assert draw_clusters(cluster, 40, seed=8) != first


def test_chances_of_being_best_add_up_to_one():
    rows = forecast(TOY, SURVEY, gpus=[4, 8], draws=25)
    np.testing.assert_allclose(rows.groupby("gpus")["chance_best"].sum(), 1.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"gpus": 64}, "64 workers exceed the 32 GPUs"),
        ({"gpus": []}, "gpus is empty"),
        ({"methods": []}, "methods is empty"),
        ({"methods": "MGWFBP"}, "did you mean 'MG-WFBP'"),
        ({"draws": -1}, "draws -1 must be a whole number"),
        ({"draws": 19}, "draws 19 are too few .* at least 20, or 0"),
    ],
)
def test_what_does_not_fit_gets_one_error(words, said):
    with pytest.raises(InputError, match=said):
        forecast(TOY, SURVEY, **words)


def test_a_model_without_a_profile_for_the_hardware_says_how_to_make_one():
    with pytest.raises(InputError, match="ddlnb measure profile --model bert-base"):
        profile_for("bert-base", SURVEY, local_batch=3)


@pytest.mark.parametrize(("model", "batch"), [("small-conv", 64), ("small-transformer", 16)])
def test_of_several_profiles_that_of_the_models_own_batch_is_taken(model, batch):
    cluster = replace(get_cluster("two-cores-2-workers"), hardware="cpu-1thread")
    assert profile_for(model, cluster).local_batch == batch


@pytest.mark.slow
def test_seconds_at_another_batch_are_as_unsure_as_measured_pairs_say():
    """Pairs of batches of one model, GPU and precision; proportion errs more than the sheet."""
    by_sheet, in_proportion = [], []
    for folder, gpu in (("2026-11-22_h100", "H100"), ("2026-11-23_h200", "H200")):
        rows = pd.read_csv(DATA / "measured" / folder / "iterations.csv")
        rows = rows[rows["precision"].isin(["fp32", "tf32", "bf16"])]
        for (model, precision), part in rows.groupby(["model", "precision"]):
            for few, many in combinations(part.sort_values("batch").itertuples(), 2):
                there, here = (
                    estimate(trace(model, one.batch), gpu, precision) for one in (few, many)
                )
                kept = replace(there, spread=0.0).scaled(few.seconds / there.compute_seconds, "")
                found = grown(kept, there, replace(here, spread=0.9))
                off = math.log(found.compute_seconds / many.seconds)
                by_sheet.append((abs(off), found.spread))
                straight = few.seconds * many.batch / few.batch
                in_proportion.append(abs(math.log(straight / many.seconds)))
    errors, spreads = np.array(by_sheet).T
    assert len(errors) == 30
    assert np.mean(errors < 1.645 * spreads) == pytest.approx(0.9, abs=0.04)
    assert np.median(errors) < 0.8 * np.median(in_proportion)
