"""Advice: options, reasons, costs, and what would explain a measured throughput."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import ddlnb
from ddlnb.advice.advise import advise_on
from ddlnb.advice.explain import SLOW_LINK, SLOW_WORKER, counterfactual_table, explain_gap
from ddlnb.advice.options import bucket_option, measured_iterations
from ddlnb.advice.question import Question
from ddlnb.advice.sentences import fastest
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS, get_method, in_torch
from ddlnb.simulator.simulate import Cell, simulate, steady_seconds
from ddlnb.units import show_rate
from ddlnb.workloads.memory import Footprint

RATE = "throughput_samples_per_s"
LIGHTLY = """
import sys
import ddlnb
found = ddlnb.advise("resnet50", "survey-10GbE", gpus=8, most_plans=0, draws=0)
assert found.question.footprint is not None
loaded = {"transformers", "torch._dynamo", "sympy"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.fixture(scope="module")
def question():
    return Question(
        ddlnb.read_profile("resnet50_b64_rtx2080ti"),
        ddlnb.get_cluster("survey-10GbE", workers=16),
        ddlnb.Prices(gpu_hour=2.0, server_hour=1.0),
    )


@pytest.mark.thorough
def test_the_table_asks_nobody_to_take_what_the_sentences_advise_against(question):
    for bandwidth in (question.cluster.effects.between_bandwidth, 1e8):
        slower = question.cluster.with_effects(between_bandwidth=bandwidth)
        found = advise_on(replace(question, cluster=slower), lossy=(), most_plans=0, draws=0)
        against = any("do not train like this" in one for one in found.sentences)
        assert against == (bandwidth == 1e8)
        assert against != ("the first one is to be taken" in found.tables[0].title)


@pytest.fixture(scope="module")
def advice(question):
    return advise_on(question, lossy=("bsp + top-k(0.01) + feedback",), most_plans=40, draws=40)


@pytest.mark.thorough
def test_error_feedback_takes_memory_for_what_was_not_sent(question):
    """As much as all gradients: where a GPU does not hold it, the method is no option."""
    held = Footprint(fixed=4e9, per_sample=1e6, optimizer="sgd")
    asked = replace(question, footprint=held, gpu_memory=5e9)
    name = "bsp + top-k(0.01) + feedback"
    found = advise_on(asked, lossy=(name,), most_plans=0, draws=0)
    memory = found.options.set_index("option")["memory_bytes"]
    assert memory[name] - memory["DDP"] == question.workload.gradient_bytes
    tight = replace(asked, gpu_memory=float(memory["DDP"] + 1))
    found = advise_on(tight, lossy=(name, "local(4)"), most_plans=0, draws=0)
    assert "local(4)" in set(found.options["option"])
    assert name not in set(found.options["option"])
    assert any(one.startswith(f"Not judged: {name}, as a GPU") for one in found.unknowns)
    assert not any("Their compression takes" in one for one in found.unknowns)
    small = advise_on(replace(asked, gpu_memory=4e9), lossy=(name,), most_plans=0, draws=0)
    assert name in set(small.options["option"])  # which fits no less than DDP does


def test_methods_are_forecast_as_forecast_does(question, advice):
    rows = ddlnb.forecast(question.workload, question.cluster, draws=0).set_index("method")[RATE]
    ours = advice.options.set_index("option")[RATE]
    assert {name: ours[name] for name in rows.index} == pytest.approx(rows.to_dict())


@pytest.mark.thorough
def test_the_first_option_is_pytorch_s_own_and_beside_it_stands_what_ours_gain(question, advice):
    rows = advice.options
    same = rows[
        rows["learning"].eq("") & rows["server_machines"].eq(0) & rows["kind"].ne("fewer machines")
    ]
    assert same["chance_best"].sum() == pytest.approx(1.0)
    has = same["option"].map(in_torch)
    assert rows["option"].iloc[0] == same[has].loc[same[has][RATE].idxmax(), "option"]
    assert fastest(rows)[RATE] == same[RATE].max()
    slow = question.cluster.with_effects(between_bandwidth=3e8)
    found = advise_on(replace(question, cluster=slow), lossy=(), most_plans=0, draws=0)
    times = fastest(found.options)[RATE] / found.options[RATE].iloc[0]
    assert times > 1.02
    [said] = [one for one in found.sentences if one.startswith("ddlnb.DistributedModel in")]
    assert f"by {fastest(found.options)['option']}, {times:.2f} times as much" in said


@pytest.mark.parametrize(("latency", "gains"), [(1e-6, False), (0.2, True)])
def test_buckets_of_another_size_are_an_option_where_they_gain(question, latency, gains):
    slow = question.cluster.with_effects(operation_latency=latency)
    found = bucket_option(replace(question, cluster=slow))
    assert bool(found) == gains
    for option in found:
        default = replace(option.cell, method=get_method("DDP"))
        ours, theirs = steady_seconds([option.cell, default])
        assert 1.02 * ours.iteration_seconds < theirs.iteration_seconds


def test_what_may_be_the_best_is_drawn_most_often(advice):
    rows = advice.options.set_index("option")
    assert rows["draws"].iloc[0] == rows["draws"].max() == 40
    others = rows[rows["chance_best"].isna() & rows["kind"].ne("compression")]
    assert set(others["draws"]) == {20}
    assert set(rows.loc[rows["chance_best"] > 0, "draws"]) == {40}
    assert set(rows["draws"]) == {20, 40}


@pytest.mark.thorough
def test_advice_on_a_kept_model_loads_nothing_that_takes_seconds():
    """Models of transformers and torch's compiler took four of them, and nothing needs either."""
    subprocess.run([sys.executable, "-c", LIGHTLY], check=True)


def test_each_reason_is_a_simulation_of_its_own(advice):
    reasons = advice.reasons.set_index("what")["iteration_seconds"]
    cluster = advice.best.cell.cluster
    faster = cluster.with_effects(
        between_bandwidth=2 * cluster.effects.between_bandwidth,
        **{
            name: 2 * getattr(cluster.effects, name)
            for name in ("connection_bandwidth", "duplex_bandwidth", "server_bandwidth")
            if getattr(cluster.effects, name) < math.inf
        },
    )
    line = simulate(advice.question.workload, faster, advice.best.cell.method)
    assert line.iteration_seconds == pytest.approx(reasons["twice the bandwidth between nodes"])


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_is_taken_away_makes_it_slower(question, method):
    cell = Cell(question.workload, question.cluster, get_method(method))
    times = counterfactual_table(cell).set_index("what")["times_as_fast"]
    assert times["no communication"] == times.drop("GPUs twice as fast").max()
    assert times["no communication"] >= 1


def test_one_gpu_has_no_options_about_communication(question):
    alone = replace(question, cluster=question.cluster.with_workers(1))
    found = advise_on(alone, lossy=(), draws=0)
    assert found.options["option"].tolist() == ["1 GPU alone"]
    assert found.sentences[0].startswith("One GPU of survey-10GbE exchanges nothing: ")
    assert found.waits is None or found.waits.arrived <= 0


@pytest.mark.thorough
def test_where_one_gpu_is_faster_nothing_is_bought_for_all_that_leaves_it_so():
    cluster = ddlnb.cluster_of("RTX 3090", nodes=2, gpus_per_node=1, network="1GbE")
    found = ddlnb.advise(
        "resnet50", cluster, local_batch=56, throughput=257.0, most_plans=0, draws=0
    )
    rate = found.options.set_index("option")[RATE]
    times = rate["1 GPU alone"] / fastest(found.options)[RATE]
    assert times > 1.9
    assert found.sentences[0].startswith(f"One GPU alone is {times:.2f} times as fast as all 2: ")
    level = rate["1 GPU alone"] / rate.iloc[0]
    faster = found.reasons.set_index("what")["times_as_fast"] / level
    assert faster["twice the bandwidth between nodes"] < 1.02 < 1.2 < faster.iloc[2]
    assert found.sentences[-1] == (
        "What would make all 2 GPUs faster than 1 GPU alone: four times the bandwidth between "
        f"nodes ({faster.iloc[2]:.2f}x)."
    )


def test_the_searched_plan_is_an_option_with_its_bound(advice):
    row = advice.options.set_index("option").loc["searched plan"]
    fixed = advice.options[advice.options["kind"].eq("method")]
    without = fixed[fixed["server_machines"].eq(0)][RATE].max()
    assert row[RATE] >= without * (1 - 1e-9)
    samples = advice.question.cluster.workers * advice.question.workload.local_batch
    assert advice.search.lower_bound_seconds <= samples / row[RATE] * (1 + 1e-9)
    assert any("No plan that sends the same without servers" in one for one in advice.sentences)


def test_costs_are_hours_times_prices(question, advice):
    row = advice.options.set_index("option").loc["WFBP-PS"]
    per_hour = 16 * 2.0 + row["server_machines"] * 1.0
    assert row["cost"] == pytest.approx(per_hour / 3600 / row[RATE] * 1e6)


@pytest.mark.thorough
def test_with_prices_further_machines_are_judged_by_what_a_sample_costs(question):
    cluster = ddlnb.get_cluster("survey-10GbE", workers=32)
    workload = ddlnb.read_profile("bert-large_b8_rtx2080ti")
    said = {}
    for hour in (0.01, 9.0, math.nan):
        asked = Question(workload, cluster, ddlnb.Prices(1.0, hour))
        found = advise_on(asked, lossy=(), most_plans=0, draws=0)
        said[hour] = next(one for one in found.sentences if "more machines as servers" in one)
        cost = found.options.set_index("option")["cost"]
        served = said[hour].partition("(")[2].partition(")")[0].partition(" with ")[0]
        if not math.isnan(hour):
            share = abs(cost[served] / cost.iloc[0] - 1)
            word = "less" if hour < 1 else "more"
            assert said[hour].endswith(f"and a sample costs {share:.0%} {word} with them.")
    assert said[math.nan].endswith("less than that to the price of an hour.")


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    ("samples", "verdict", "advised", "largest"),
    [
        (0.0, "it has to be sharded; fastest is dp16 zero1", False, 0),
        (63.9, "it does not fit; at most 63 samples per GPU do: give --batch", False, 0),
        (96.0, "it fits; DDP makes", True, 0),
        (1e3, "it fits; DDP makes", True, 256),
    ],
)
def test_nothing_is_recommended_that_does_not_fit(question, samples, verdict, advised, largest):
    memory = Footprint(1e9, 1e8, "sgd")
    asked = replace(question, footprint=memory, gpu_memory=1e9 + 1e8 * samples)
    found = advise_on(asked, lossy=(), most_plans=0, draws=0)
    assert f"Verdict: {verdict}" in found.said[1]
    assert bool(found.sentences) == advised
    assert ("the first one is to be taken" in found.tables[0].title) == advised
    offered = found.options["option"].str.extract(r"batch (\d+) per GPU")[0].dropna().astype(int)
    assert max(offered, default=0) == largest


@pytest.mark.parametrize(
    ("changed", "effect"),
    [
        (lambda on: on.with_effects(compute_factor=1.7), "compute_factor"),
        (
            lambda on: on.with_effects(between_bandwidth=on.effects.between_bandwidth / 3),
            "between_bandwidth",
        ),
        (lambda on: on.with_heterogeneity(compute={3: 1.6}), SLOW_WORKER),
        (lambda on: on.with_heterogeneity(link={1: 3.0}), SLOW_LINK),
    ],
)
def test_what_is_wrong_is_among_the_suspects_with_its_size(question, changed, effect):
    """A cluster on which one thing is wrong is the measurement; the factor is found again."""
    method = get_method("MG-WFBP")
    wrong = changed(question.cluster)
    cell = Cell(question.workload, wrong, method, planned_on=question.cluster)
    measured = cell.samples / steady_seconds([cell])[0].iteration_seconds
    gap = explain_gap(replace(cell, cluster=question.cluster), measured, draws=40)
    assert not gap.is_as_forecast
    suspects = {one.effect: one for one in gap.suspects}
    sizes = {"compute_factor": 1.7, "between_bandwidth": 3.0, SLOW_WORKER: 1.6, SLOW_LINK: 3.0}
    assert suspects[effect].factor == pytest.approx(sizes[effect], rel=0.05)
    assert suspects[effect].test
    there = steady_seconds([replace(cell, cluster=suspects[effect].cluster)])[0].iteration_seconds
    assert cell.samples / there == pytest.approx(measured, rel=0.02)


@pytest.mark.thorough
def test_options_of_a_measurement_say_what_they_make_while_it_lasts(question):
    forecast = advise_on(question, lossy=(), most_plans=0, draws=0)
    rate = forecast.verdict.samples_per_s
    ask = {"lossy": (), "most_plans": 0, "draws": 0, "measured_method": "WFBP-A2A"}
    for measured, how in [(0.3 * rate, "suspect was mended"), (1.1 * rate, "suspect is right")]:
        found = advise_on(question, measured=measured, **ask)
        [said] = [one for one in found.sentences if how in one]
        there = replace(question, cluster=found.gap.suspects[0].cluster)
        rows = advise_on(there, lossy=(), most_plans=0, draws=0).options.set_index("option")
        rates = rows[rows["kind"].eq("method") & rows["server_machines"].eq(0)][
            "throughput_samples_per_s"
        ]
        assert f"DDP makes {show_rate(rates['DDP'])} samples/s" in said
        if rates.max() > 1.02 * rates["DDP"]:
            assert said.endswith(f"is {rates.idxmax()} with {show_rate(rates.max())}.")
        else:
            assert said.endswith("no method without further machines is faster.")
        assert found.options.equals(forecast.options)


def test_a_measurement_of_one_gpu_is_explained(question):
    alone = replace(question, cluster=question.cluster.with_workers(1))
    ask = {"lossy": (), "most_plans": 0, "draws": 0, "measured_method": "DDP"}
    found = advise_on(alone, measured=0.3 * alone.workload.local_batch, **ask)
    assert "DDP was measured at" in found.sentences[0]


def test_more_of_a_latency_that_is_occupied_is_worse(question):
    """By its name it was taken for a rate, of which there is less when things get worse."""
    cluster = question.cluster.with_effects(occupied_share=0.25, operation_latency=5e-3)
    cell = Cell(question.workload, cluster, get_method("WFBP-A2A"))
    worse = replace(cell, cluster=cluster.with_effects(occupied_share=0.75), planned_on=cluster)
    measured = cell.samples / steady_seconds([worse])[0].iteration_seconds
    suspects = {one.effect: one for one in explain_gap(cell, measured, draws=0).suspects}
    assert suspects["occupied_share"].factor == pytest.approx(3.0, rel=0.05)


def test_a_gap_without_draws_says_so_and_knows_slower_from_faster(question):
    cell = Cell(question.workload, question.cluster, get_method("MG-WFBP"))
    forecast = cell.samples / steady_seconds([cell])[0].iteration_seconds
    within = explain_gap(cell, forecast, draws=40)
    assert within.is_as_forecast
    assert within.suspects == ()
    searched = replace(cell, method=get_method("searched"))
    suspects = explain_gap(searched, 100.0, draws=0).suspects
    assert "compute_factor" in {one.effect for one in suspects}
    slow, fast = (explain_gap(cell, factor * forecast, draws=0) for factor in (0.5, 1.5))
    assert "without an interval: slower" in str(slow)
    assert "without an interval" in str(fast)
    assert "slower" not in str(fast)
    assert "nan" not in str(slow) + str(fast)


class NeedsValues(torch.nn.Linear):
    """A model whose control flow depends on data."""

    def forward(self, inputs):
        return super().forward(inputs if inputs.sum().item() > -1e9 else -inputs)


def test_a_model_that_needs_values_is_advised_on_without_its_memory():
    task = ddlnb.task(
        NeedsValues(8, 2),
        batch=lambda count, seed: (torch.ones(count, 8),),
        loss=lambda module, batch: module(batch[0]).square().mean(),
        name="needs-values",
        local_batch=4,
    )
    cluster = ddlnb.cluster_of("A100", nodes=2, gpus_per_node=1, network="100GbE")
    found = ddlnb.advise(task, cluster, throughput=1e7, most_plans=0, draws=0)
    assert found.options["memory_bytes"].isna().all()
    assert any("needs them" in one for one in found.unknowns)


def test_a_lossy_method_that_is_left_out_is_named_with_its_reason(question):
    halved = replace(question, workload=question.workload.sent_as("fp16"))
    found = advise_on(halved, lossy=("bsp + qsgd(127)",), most_plans=0, draws=0)
    said = [one for one in found.unknowns if one.startswith("Not judged: bsp + qsgd(127)")]
    assert len(said) == 1
    assert "float32" in said[0]


def test_iterations_of_lossy_methods_are_those_that_were_measured():
    ratio, workers = measured_iterations("bsp + top-k(0.01) + feedback", 12)
    assert workers in (8, 16)
    assert ratio.low <= ratio.estimate <= ratio.high
    assert measured_iterations("bsp + random-k(0.01) + feedback", 8)[0].estimate == math.inf
    assert math.isnan(measured_iterations("local(64)", 8)[0].estimate)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"measured": 100.0}, "give its name, such as DDP or MG-WFBP"),
        ({"measured": -1.0, "measured_method": "DDP"}, "measured -1.0 must be"),
        ({"measured": 100.0, "measured_method": "NOPE"}, "unknown method 'NOPE'"),
        ({"measured_method": "DDP"}, "give both"),
        ({"draws": -1}, "draws -1"),
        ({"most_plans": -1}, "most_plans -1"),
    ],
)
def test_what_was_measured_is_checked_before_anything_is_simulated(
    question, monkeypatch, wrong, said
):
    monkeypatch.setattr("ddlnb.advice.advise.method_options", None)
    with pytest.raises(InputError, match=said):
        advise_on(question, **wrong)


@pytest.mark.thorough
def test_use_no_more_names_the_gpus_that_are_fastest():
    """A node of eight beats four GPUs, and both beat four nodes on a slow network."""
    cluster = ddlnb.cluster_of("A100", nodes=4, gpus_per_node=8, network="100GbE")
    found = ddlnb.advise("bert-large", cluster, draws=0, most_plans=0)
    said = next(one for one in found.sentences if "Use no more" in one)
    assert said.startswith("8 GPUs by ")
    rows = ddlnb.forecast("bert-large", cluster, "DDP", gpus=[1, 4, 8, 32], draws=0)
    assert "Rather use 8 (speed-up" in rows.sentences[0]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("nodes", "each", "gpus"), [(16, 8, 8), (3, 1, 1)])
def test_a_node_or_a_gpu_that_is_faster_than_all_is_found(nodes, each, gpus):
    """Half of a cluster, a quarter and an eighth are not all that one can take."""
    on = ddlnb.cluster_of("A100", nodes=nodes, gpus_per_node=each, network="1GbE")
    found = ddlnb.advise("resnet50", on, draws=0, most_plans=0)
    rows = found.rows[found.rows["gpus"] == gpus]
    assert rows["throughput_samples_per_s"].max() > found.rows["throughput_samples_per_s"].iloc[0]
    assert any("Use no more" in said for said in found.sentences)


@pytest.mark.thorough
def test_the_hook_of_ddp_is_credited_with_what_ddp_gains():
    found = ddlnb.advise("resnet50", "survey-10GbE", gpus=16, draws=0, most_plans=0)
    rows = found.rows.set_index("option")["throughput_samples_per_s"]
    times = rows["16-bit gradients by the hook of DDP"] / rows["DDP"]
    assert times > 1
    assert f"throughput is {times:.2f} times DDP as it is" in " ".join(found.said)


def test_activations_of_one_of_several_batches_are_held():
    answers = [
        ddlnb.forecast("resnet50", "survey-10GbE", "DDP", gpus=4, draws=0, accumulate=n)
        for n in (1, 4)
    ]
    memory = [next(one for one in found.said if "Memory" in one) for found in answers]
    assert memory[0] == memory[1]
    assert "speed-up" in str(answers[1])


def test_a_node_is_not_tried_where_fewer_of_its_gpus_are_in_use():
    on = ddlnb.cluster_of("A100", nodes=1, gpus_per_node=8)
    found = ddlnb.advise("resnet50", on, gpus=4, draws=0, most_plans=0)
    assert found.rows["gpus"].max() == 4
