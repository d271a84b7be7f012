"""Scaling curves: how far, and what limits it beyond."""

import re
from dataclasses import replace

import pytest

import ddlnb
from ddlnb.advice.scaling import best_by_size, reach_of, sizes_of
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import Effects
from ddlnb.errors import InputError
from ddlnb.units import gpus_in_words

METHODS = ["MG-WFBP", "WFBP-A2A"]


@pytest.fixture(scope="module")
def workload():
    return ddlnb.read_profile("bert-base_b64_rtx2080ti")


@pytest.fixture(scope="module")
def found(workload):
    return ddlnb.scaling(workload, "survey-10GbE", METHODS, draws=0)


def test_every_size_has_the_forecast_of_that_size(workload, found):
    rows = ddlnb.forecast(workload, "survey-10GbE", METHODS, gpus=16, draws=0)
    ours = found.rows[found.rows["gpus"] == 16].set_index("method")["throughput_samples_per_s"]
    assert ours.to_dict() == pytest.approx(
        rows.set_index("method")["throughput_samples_per_s"].to_dict()
    )
    assert sorted(found.rows["gpus"].unique()) == list(sizes_of(ddlnb.get_cluster("survey-10GbE")))


def test_sizes_among_which_the_all_reduce_does_not_run_are_left_out_with_the_reason(workload):
    cluster = replace(ddlnb.get_cluster("survey-10GbE"), all_reduce="torus(2, 4)")
    found = ddlnb.scaling(workload, cluster, METHODS, draws=0)
    assert set(found.rows["gpus"]) == {1, 8}
    assert "Left out are 2, 4, 16 and 32 GPUs" in found.sentences[-1]
    assert "give lengths whose product is 32" in found.sentences[-1]
    served = ddlnb.scaling(workload, replace(cluster, all_reduce="torus(4, 8)"), "BSP-PS", draws=0)
    assert set(served.rows["gpus"]) == {1, 2, 4, 8, 16, 32}
    with pytest.raises(InputError, match="8 places for 32 workers"):
        ddlnb.scaling(workload, cluster, METHODS, gpus=[8, 32], draws=0)


def test_up_to_the_reach_all_sizes_are_good_and_the_next_is_not(found):
    best = best_by_size(found.rows).set_index("gpus")["efficiency"]
    assert (best[best.index <= found.reach] >= found.share).all()
    assert best[found.beyond] < found.share
    assert f"up to {found.reach} GPUs; on {found.beyond}" in str(found)


@pytest.mark.parametrize(
    ("effects", "bottleneck"),
    [
        ({"between_bandwidth": 1e7}, "the bandwidth between nodes"),
        ({"between_latency": 0.2}, "latency"),
        ({"inside_bandwidth": 1e8}, "the bandwidth inside nodes"),
    ],
)
def test_the_bottleneck_is_the_effect_that_was_made_bad(workload, effects, bottleneck):
    cluster = ddlnb.get_cluster("survey-100GbIB").with_effects(**effects)
    found = ddlnb.scaling(workload, cluster, METHODS, gpus=[1, 8, 32], draws=0)
    assert found.bottleneck == bottleneck


def test_a_cluster_that_scales_says_so(workload):
    found = ddlnb.scaling(workload, "survey-100GbIB", METHODS, share=0.1, draws=0)
    assert found.beyond is None
    assert "the largest size here" in str(found)


def test_a_share_that_is_none_is_refused(workload):
    with pytest.raises(InputError, match=r"share 80.0 must be above 0 and at most 1"):
        ddlnb.scaling(workload, "survey-10GbE", share=80)


def test_not_even_the_smallest_size_may_be_good_enough(workload):
    slow = ddlnb.get_cluster("survey-10GbE").with_effects(between_bandwidth=1e6)
    found = ddlnb.scaling(workload, slow, METHODS, gpus=[8, 16], draws=0)
    assert (found.reach, found.beyond) == (0, 8)
    assert "Less than 80% of linear on 8 GPUs already" in str(found)


def test_a_method_is_forecast_at_all_sizes_or_at_none(workload):
    cluster = ddlnb.cluster_of("RTX 2080 Ti", 2, gpus_per_node=4, network="25GbE")
    alone = ddlnb.scaling(workload, cluster, draws=0).rows
    assert set(alone.groupby("method")["gpus"].agg(tuple)) == {(1, 2, 4, 8)}
    assert not alone["method"].str.endswith("-PS").any()
    named = ddlnb.scaling(workload, cluster, ["all", "BSP-PS"], draws=0).rows
    assert set(named["method"]) == {*alone["method"], "BSP-PS"}
    assert set(named.groupby("method")["gpus"].agg(tuple)) == {(1, 2, 4, 8)}


def test_what_is_linear_is_said_where_no_gpu_holds_the_model(workload):
    found = ddlnb.scaling("llama3-8b", ddlnb.cluster_of("H100", 2), draws=0)
    first = found.rows.iloc[0]
    assert (first["gpus"], first["efficiency"]) == (2, 1)
    assert f"throughput per GPU of 2 GPUs as {first['method']}" in found.sentences[-1]
    assert ("other layouts" in found.sentences[-1]) == (found.rows["efficiency"].max() > 1.01)
    assert len(ddlnb.scaling(workload, "survey-100GbIB", "DDP", draws=0).sentences) == 1


def test_a_share_that_is_just_missed_is_not_rounded_to_it(workload):
    rows = ddlnb.scaling(workload, "survey-10GbE", "WFBP-A2A", gpus=[4, 8], draws=0).rows
    share = float(rows.set_index("gpus").loc[8, "efficiency"]) + 1e-4
    found = ddlnb.scaling(workload, "survey-10GbE", "WFBP-A2A", gpus=[4, 8], share=share, draws=0)
    shown = re.search(r"on 8, ([0-9.]+)% by", str(found))
    assert found.beyond == 8
    assert shown
    assert float(shown[1]) / 100 < share
    assert f"At least {share:.0%} " in str(found)
    assert f"{share:.0%}" != f"{shown[1]}%"


@pytest.mark.parametrize("error", [0.0, 0.3])
def test_one_gpu_has_all_of_linear_scaling_however_little_is_known_of_its_speed(workload, error):
    unsure = replace(
        ddlnb.get_cluster("survey-10GbE").with_effects(compute_factor=1.0, message_compute=1e-3),
        fits={"compute_factor": Fit(0.5, 2.0, "a test")},
        model_error=error,
    )
    rows = ddlnb.scaling(workload, unsure, "WFBP-A2A", gpus=[1, 2], draws=40).rows
    ends = rows.set_index("gpus")[["low", "high", "efficiency_low", "efficiency_high"]]
    assert ends.loc[1, "high"] > 2 * ends.loc[1, "low"]
    assert (ends.loc[1, "efficiency_low"], ends.loc[1, "efficiency_high"]) == (1, 1)
    assert ends.loc[2, "efficiency_low"] < ends.loc[2, "efficiency_high"]


def test_what_only_makes_a_gpu_slower_leaves_scaling_as_it_is(workload):
    """Without communication all sizes scale alike, whatever computation takes."""
    free = Cluster("free", "none", 4, 1, Effects(compute_factor=1.0), model_error=0.0)
    unsure = replace(free, fits={"compute_factor": Fit(0.5, 2.0, "a test")})
    rows = ddlnb.scaling(workload, unsure, "WFBP-A2A", draws=40).rows
    assert rows[["efficiency_low", "efficiency_high"]].to_numpy() == pytest.approx(1.0)
    assert (rows["high"] > 2 * rows["low"]).all()


def test_the_interval_of_the_reach_stands_beside_it(workload):
    cluster = replace(ddlnb.get_cluster("survey-100GbIB"), model_error=0.2)
    found = ddlnb.scaling(workload, cluster, "MG-WFBP", share=0.85, draws=100)
    best = best_by_size(found.rows)
    low, high = (reach_of(best, f"efficiency_{end}", 0.85) for end in ("low", "high"))
    assert low < found.reach <= high
    assert f"up to {gpus_in_words(found.reach)} (90 % interval: {low} to {high}" in str(found)
    sure = ddlnb.scaling(workload, "survey-10GbE", "MG-WFBP", share=0.5, draws=100)
    assert "interval: " not in sure.sentences[0]


def test_splits_have_an_interval_of_scaling_whose_first_size_is_a_point():
    cluster = ddlnb.cluster_of("H100", nodes=4)
    rows = ddlnb.scaling("llama3-8b", cluster, gpus=[8, 16, 32], draws=40).rows
    ends = rows.set_index("gpus")[["efficiency_low", "efficiency_high"]]
    assert ends.loc[8].tolist() == [1, 1]
    assert (ends["efficiency_low"] <= rows.set_index("gpus")["efficiency"]).all()
    assert ends.loc[32, "efficiency_low"] < ends.loc[32, "efficiency_high"]


@pytest.mark.thorough
def test_who_all_wait_for_is_the_bottleneck_and_is_replaced(workload):
    """No bandwidth helps seven workers that wait for one which takes three times as long."""
    slow = ddlnb.get_cluster("survey-100GbIB", workers=8).with_heterogeneity(compute={0: 3.0})
    found = ddlnb.scaling(workload, slow, METHODS, draws=0)
    named = "workers that differ (worker 0 computes 3 times as long)"
    assert (found.reach, found.bottleneck) == (0, named)
    advised = ddlnb.advise(workload, slow, draws=0, most_plans=0)
    assert any("all wait for worker 0" in one for one in advised.sentences)
    both = slow.with_heterogeneity(compute={0: 3.0, 1: 3.0})
    assert "workers 0, 1" in str(ddlnb.forecast(workload, both, METHODS, draws=0))
    [said] = [one for one in ddlnb.forecast(workload, slow, METHODS, draws=0).said if "But" in one]
    assert "all wait for worker 0, which computes 3 times as long: replace it" in said
    healthy = ddlnb.forecast(workload, slow, METHODS, gpus=4, draws=0)
    assert "Unlike workers: worker 0" in str(healthy)
    idle = ddlnb.get_cluster("survey-100GbIB", workers=8).with_heterogeneity(compute={6: 3.0})
    assert "4 GPUs in use are alike" in str(
        ddlnb.forecast(workload, idle, METHODS, gpus=4, draws=0)
    )


@pytest.mark.thorough
def test_scaling_takes_no_further_machines_unless_they_are_named(workload):
    rows = ddlnb.scaling(workload, "survey-10GbE", draws=0).rows
    assert not rows.loc[rows["gpus"] > 4, "servers"].any()
    assert ddlnb.scaling(workload, "survey-10GbE", "WFBP-PS", draws=0).rows["servers"].any()
