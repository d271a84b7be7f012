"""Searched and kept plans on real ranks: exact like any other, by our engine and by Horovod."""

from dataclasses import replace

import pytest

from ddlnb.clusters.effects import Effects
from ddlnb.engines.catalogue import ENGINES, get_engine
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan import Gate
from ddlnb.plans.plan_file import method_of, read_plan, write_plan
from ddlnb.replanning.replanner import (
    IN_FLIGHT,
    in_order,
    measured_cluster,
    quickest_plan,
    searched_plan,
    simulated_seconds,
)
from ddlnb.search.search import SEARCHED_METHOD, search_plan
from ddlnb.search.space import Space
from ddlnb.workloads.workload import read_profile
from tests.toy import TOY

LACK = get_engine("horovod").missing()
SMALL = "small-conv_b64_cpu-1thread"


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.parametrize(
    "engine",
    ["torch", pytest.param("horovod", marks=pytest.mark.skipif(bool(LACK), reason=LACK))],
)
def test_a_searched_and_a_kept_plan_are_measured(engine, six_ranks, tmp_path):
    """`Bench.run` raises where ranks end with different parameters."""
    workload = read_profile(SMALL)
    cluster = measured_cluster(AlphaBeta(1e-3, 1e-9), workers=2)
    space = Space(servers=False, collectives=())
    kept = search_plan(workload, cluster, space=space, most_plans=60).plan
    kept = read_plan(write_plan(replace(kept, method="mine"), tmp_path / "plan.json"))
    rows = measure(
        "small-conv",
        ["searched", method_of(kept)],
        engine=engine,
        ranks=six_ranks,
        workers=2,
        iterations=2,
        warmup=1,
        repetitions=1,
        baselines=False,
    ).set_index("method")
    assert rows.loc["mine", "plan"] == kept.digest
    assert rows.loc["mine", "messages"] == len(kept.messages)
    assert (rows["throughput_samples_per_s"] > 0).all()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_measured_cluster_has_the_measured_cost(workers):
    cost = AlphaBeta(1e-3, 2e-9, occupied_share=0.25)
    cluster = measured_cluster(cost, workers)
    if workers > 1:
        assert cluster.cost.latency_seconds == pytest.approx(cost.latency_seconds)
        assert cluster.cost.seconds_per_byte == pytest.approx(cost.seconds_per_byte)
        assert cluster.cost.occupied_share == cost.occupied_share
    else:
        assert cluster.effects == Effects()


def test_messages_that_share_all_of_their_latency_have_a_cluster():
    """On a long link a burst of small messages takes no longer than one, or less by chance."""
    cost = AlphaBeta(1e-2, 1e-9, occupied_share=0.0)
    assert 0 < measured_cluster(cost, 2).effects.occupied_share < 0.05


def test_horovod_refuses_a_plan_that_names_collectives():
    plan = METHODS["WFBP-A2A"].plan(TOY)
    chosen = method_of(replace(plan, method="mine", collectives=("ring", "", "tree")))
    assert "the plan names collectives" in ENGINES["horovod"].refuses(chosen)
    assert ENGINES["torch"].refuses(chosen) == ""
    assert ENGINES["byteps"].refuses(chosen) != ""


def test_large_messages_of_a_plan_whose_order_matters_do_not_share_the_link():
    """The simulator has one after the other; the backend would send several."""
    plan = METHODS["WFBP-A2A"].plan(TOY)
    gated = replace(plan, gate=Gate.OWN_LAYER)
    assert in_order(gated) == replace(gated, credit_bytes=IN_FLIGHT)
    with_credit = replace(gated, credit_bytes=1000)
    for unchanged in (plan, with_credit):
        assert in_order(unchanged) is unchanged


@pytest.mark.parametrize("many_where_latencies_overlap", [True, False])
def test_of_plans_for_latencies_that_overlap_or_not_the_quickest_in_order_runs(
    many_where_latencies_overlap,
):
    """With a credit large messages do not overlap, whatever the search counted on."""
    workload = read_profile("small-transformer_b16_cpu-1thread")
    cluster = measured_cluster(AlphaBeta(50e-3, 1e-8, occupied_share=0.1), workers=2)
    few = METHODS["BSP-A2A"].plan(workload)
    many = replace(METHODS["WFBP-A2A"].plan(workload), gate=Gate.OWN_LAYER)
    asked = []

    def search(workload, cluster):
        overlap = cluster.effects.occupied_share < 1
        asked.append(overlap)
        return many if overlap == many_where_latencies_overlap else few

    seconds = {
        len(plan.messages): simulated_seconds(in_order(plan), workload, cluster)
        for plan in (few, many)
    }
    chosen = quickest_plan(search, workload, cluster, "cpu")
    assert sorted(asked) == [False, True]
    assert simulated_seconds(chosen, workload, cluster) == min(seconds.values())
    assert chosen == in_order(few if seconds[1] < seconds[len(many.messages)] else many)


def test_on_gpus_where_the_end_of_a_message_is_not_seen_a_searched_plan_has_no_credit():
    settings = MeasurementSettings(workers=2)
    workload, cost = read_profile(SMALL), AlphaBeta(1e-3, 4e-9)
    planner = SEARCHED_METHOD.planner
    searching = replace(planner, space=replace(planner.space, split=False))
    on_cpu, on_gpu = (
        searched_plan(searching, workload, cost, settings.changed(device=device))
        for device in ("cpu", "cuda")
    )
    assert on_gpu.credit_bytes is None
    assert not on_gpu.is_split
    assert on_cpu == in_order(on_gpu)
