"""Scaling curves: how far, and what limits it beyond."""

import pytest

import ddlnb
from ddlnb.advice.scaling import best_by_size, sizes_of
from ddlnb.errors import InputError

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
    assert "the largest size asked for" in str(found)


def test_a_share_that_is_none_is_refused(workload):
    with pytest.raises(InputError, match=r"share 80.0 must be above 0 and at most 1"):
        ddlnb.scaling(workload, "survey-10GbE", share=80)


def test_not_even_the_smallest_size_may_be_good_enough(workload):
    slow = ddlnb.get_cluster("survey-10GbE").with_effects(between_bandwidth=1e6)
    found = ddlnb.scaling(workload, slow, METHODS, gpus=[8, 16], draws=0)
    assert (found.reach, found.beyond) == (0, 8)
    assert "Less than 80% of linear on 8 GPUs already" in str(found)
