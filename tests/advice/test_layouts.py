"""Advice on large models: counterfactuals are forecasts, chances are calibrated, words are true."""

import re
from dataclasses import replace

import numpy as np
import pytest

import ddlnb
from ddlnb.advice.explain import counterfactuals
from ddlnb.advice.layouts import LayoutAdvice, Splits, advise_on_layouts, layout_sentences
from ddlnb.advice.question import Prices
from ddlnb.advice.splits import (
    COUNTED,
    TOKENS,
    PricedQuestion,
    layout_counterfactuals,
    layout_reasons,
    split_on,
    split_options,
    verdict_of,
    without,
)
from ddlnb.errors import InputError, UnknownName
from ddlnb.hardware.catalogue import get_interconnect
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.forecast import forecast as forecasts
from ddlnb.parallelism.forecast.exchanges import (
    gather_latency,
)
from ddlnb.parallelism.forecast.fit import drawn_seconds
from ddlnb.parallelism.forecast.forecast import MOMENTS, memory_spread
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, saved_fit
from ddlnb.parallelism.forecast.layouts import scale, unsplit
from ddlnb.parallelism.forecast.mixture import Open, expected
from ddlnb.parallelism.forecast.published import observed
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.plans.methods import get_method
from ddlnb.simulator.simulate import Cell
from ddlnb.units import GIB
from ddlnb.workloads.memory import FLOAT32, OPTIMIZER_COPIES

PRICES = ddlnb.Prices(gpu_hour=2.0)


@pytest.fixture(scope="module")
def asked():
    return PricedQuestion("llama3-8b", "H100", nodes=4, sequence=4096, prices=PRICES)


@pytest.fixture(scope="module")
def advice(asked):
    return advise_on_layouts(asked, top=6, draws=50)


def test_options_are_those_of_scale_and_the_first_is_its_best(asked, advice):
    rows = scale("llama3-8b", "H100", 4, sequence=4096).rows(6)
    splits = advice.options[advice.options["kind"] == "layout"]
    assert splits["layout"].tolist() == [row["layout"] for row in rows]
    assert splits[TOKENS].to_numpy() == pytest.approx(
        [32 * row["tokens_per_s_per_gpu"] for row in rows]
    )
    assert splits["chance_best"].sum() == pytest.approx(1)
    assert advice.options["over_best"].iloc[0] == 1


def test_frameworks_are_ranked_by_their_own_forecasts_and_those_apart_are_named():
    asked = PricedQuestion("llama3-8b", "A100", 8, framework="nanotron")
    of = {name: replace(asked, framework=name).ranking.rows(1)[0] for name in FRAMEWORKS}
    ranked = sorted(of, key=lambda name: -of[name]["tokens_per_s_per_gpu"])
    said = next(one for one in Splits((asked,), 3).sentences if "by framework" in one)
    assert re.findall(r"([a-z-]+) [\d.]+ \(\d", said) == ranked
    assert of["megatron-deepspeed"]["high"] < of["nanotron"]["low"] < of["nemo"]["low"]
    assert said.endswith("of nanotron overlaps none of megatron, megatron-deepspeed.") == (
        of["megatron"]["high"] < of["nanotron"]["low"]
    )
    assert re.search(r"the interval of nanotron overlaps none of .*megatron-deepspeed", said)
    none = " ".join(Splits((replace(asked, framework=""),), 3).sentences)
    assert re.search(r"interval of nemo overlaps none of .*megatron-deepspeed", none)  # the fastest
    assert re.search(r"as a mixture of [a-z-]+(, [a-z-]+)+; narrow it with --framework", none)
    few = " ".join(Splits((PricedQuestion("llama3-70b", "H100", 3, gpus_per_node=6),), 3).sentences)
    assert (
        "the best layout is forecast as fsdp-compiled alone; choose another with --framework" in few
    )


def test_what_is_said_of_a_gpus_memory_adds_up():
    asked = LayoutQuestion("llama3-8b", "MI300X", 8)
    held = unsplit(asked)
    said = r"of (\d+) bytes each, gradients (\d+), .* adam (\d+), buffers ([\d.]+)"
    each = re.search(said, held.states)
    sum_of_parts = sum(map(float, each.groups())) * asked.model.shape.parameters
    assert 0 < held.fixed - sum_of_parts < 2 * GIB  # the rest is the context


def test_a_layout_that_one_gpu_holds_is_no_split():
    """Of what the hungriest framework holds the GPU has less, and another one holds less."""
    asked = PricedQuestion("llama3-1b", "RTX 4090", 1, gpus_per_node=1, sequence=2048)
    assert unsplit(asked).bytes_at(1) > asked.gpu.memory
    said = verdict_of(asked).said[1]
    assert said.startswith("Verdict: it fits by what a framework or layout saves; fastest of")


def test_each_reason_is_a_forecast_of_its_own(advice):
    reasons = advice.reasons.set_index("what")
    assert (reasons["times_as_fast"] > 1 - 1e-9).all()  # nothing that is added makes it slower
    wider = scale("llama3-8b", "H100", 4, sequence=4096, network="8x800GbIB").rows(1)[0]
    found = reasons.loc["twice the bandwidth between nodes"]
    assert found["iteration_seconds"] == pytest.approx(wider["seconds"])
    assert found["layout"] == wider["layout"]
    bare = without(saved_fit(), ("launch",))
    quicker = scale("llama3-8b", "H100", 4, sequence=4096, fitted=bare).rows(1)[0]
    floor = reasons.loc["no floor of starting kernels"]
    assert floor["tokens_per_s"] == pytest.approx(32 * quicker["tokens_per_s_per_gpu"])
    island = scale("llama3-8b", "H100", 2, gpus_per_node=16, sequence=4096).rows(1)[0]
    assert reasons.loc["NVLink 4 over 16 GPUs", "iteration_seconds"] == pytest.approx(
        island["seconds"]
    )


@pytest.mark.thorough
def test_a_named_network_gets_faster_by_its_ports(asked):
    named = replace(asked, network=ddlnb.hardware.get_interconnect("8x400GbIB"))
    same, usual = (advise_on_layouts(one, draws=0).reasons for one in (named, asked))
    assert same["iteration_seconds"].tolist() == pytest.approx(usual["iteration_seconds"].tolist())


def test_what_sockets_cannot_move_is_offered_by_rdma_alone():
    asked = PricedQuestion("llama3-8b", "H100", 4, network="100GbE", sequence=4096)
    reasons = layout_reasons(asked).set_index("what")
    twice = "twice the bandwidth between nodes"
    rdma = get_interconnect("100 Gb/s RoCE")
    moved = asked.network.bandwidth.value  # of 100 Gb/s, by sockets
    for what, network in (
        ("RDMA between nodes", rdma),
        (f"{twice}, by RDMA", replace(rdma, port_rate=2 * moved / rdma.protocol.share.value)),
    ):
        other = scale("llama3-8b", "H100", 4, sequence=4096, network=network).rows(1)[0]
        assert reasons.loc[what, "iteration_seconds"] == pytest.approx(other["seconds"])
        assert reasons.loc[what, "times_as_fast"] > 1.2
    slow = replace(asked, network=get_interconnect("10GbE"))
    offered = {one.what for one in layout_counterfactuals(slow)}
    assert twice in offered  # of 22 Gb/s
    assert "RDMA between nodes" not in offered
    small = ddlnb.cluster_of("H100", nodes=4, network="100GbE")
    cell = Cell(ddlnb.read_profile("resnet50_b64_rtx2080ti"), small, get_method("MG-WFBP"))
    assert f"{twice}, by RDMA" in {one.what for one in counterfactuals(cell)}
    for own in ("1 Gb/s", "90 Gb/s"):  # which sockets move twice, or which the file has measured
        there = replace(cell, cluster=small.with_effects(between_bandwidth=own))
        assert twice in {one.what for one in counterfactuals(there)}


def test_costs_are_hours_times_prices_and_fewer_gpus_are_compared_per_gpu(advice):
    rows = advice.options.set_index("option")
    best = rows.iloc[0]
    assert best["cost"] == pytest.approx(32 * 2.0 / 3600 / best[TOKENS] * 1e6)
    half = rows[rows["gpus"] == 16].iloc[0]
    assert half["per_gpu_over_best"] == pytest.approx(2 * half["over_best"])
    assert f"16 GPUs keep {half['per_gpu_over_best']:.0%}" in str(advice)


def test_one_gpu_has_no_advice_about_exchanges():
    found = ddlnb.advise_layouts("llama3-1b", "H100", 1, gpus_per_node=1, sequence=2048, draws=0)
    assert not found.reasons["what"].str.contains("nodes|latency|slow|NVLink").any()
    assert "There is no other split that fits to compare it with." in found.sentences


def test_what_is_not_known_depends_on_what_was_asked(asked, advice):
    assert not any("Prices" in one for one in advice.unknowns)
    large = replace(asked, nodes=32, framework="megatron", prices=ddlnb.Prices())
    said = " ".join(advise_on_layouts(large, draws=0).unknowns)
    assert "Prices were not given" in said
    assert "more than 128 GPUs" in said
    assert "other GPUs: megatron (A100 and V100);" in said


@pytest.mark.parametrize("framework", ["nanotron", "megatron"])
def test_how_well_memory_is_known_is_said_where_the_fit_is_not_sure(framework):
    """A GPU of as much memory as the best layout takes holds it in about half of all runs."""
    asked = PricedQuestion(
        "llama3-8b", "H100", 1, sequence=4096, framework=framework, global_batch=8
    )
    [row] = asked.ranking.rows(1)
    sure = replace(asked, gpu=replace(asked.gpu, memory=1 << 44))
    assert not [one for one in advise_on_layouts(sure, draws=0).unknowns if "fits" in one]
    tight = replace(asked, gpu=replace(asked.gpu, memory=int(1.06 * row["memory_gib"] * GIB)))
    [said] = [one for one in advise_on_layouts(tight, draws=0).unknowns if "fits" in one]
    index = int(tight.ranking.order[0])
    spread = memory_spread(tight.ranking.outlook.cases)
    fit = tight.ranking.outlook.chance_of_fit[index]
    assert said == (
        f"Whether it fits is known within {float(np.ravel(spread)[0]):.0%}: it does with a chance "
        f"of {fit:.0%}."
    )
    assert fit < 0.9


@pytest.mark.parametrize("framework", ["nanotron", "nemo"])
def test_draws_share_the_parameters_and_nothing_else(framework, monkeypatch):
    found = scale("llama3-8b", "H100", 8, sequence=4096, framework=framework).outlook
    assert found.chance[0] == 0
    drawn = drawn_seconds(found, [0, 0], 400, seed=1)
    assert np.corrcoef(np.log(drawn).T)[0, 1] < 0.9  # each has a residual of its own
    assert np.median(drawn, axis=0) == pytest.approx(found.seconds[[0, 0]], rel=0.05)
    assert drawn_seconds(found, [0], 0).shape == (0, 1)
    monkeypatch.setattr(forecasts, "spread_of", lambda cases, fitted: np.full(len(cases), 1e-9))
    common = np.log(drawn_seconds(found, [0, 0], 400, seed=1))
    assert np.corrcoef(common.T)[0, 1] > 0.99
    assert (common.std(axis=0) > 1e-3).all()


def test_chances_are_how_often_the_one_of_two_published_layouts_was_faster():
    """Of pairs of layouts of a model on as many GPUs that are said to be 7 to 3, 7 in 10 are."""
    runs = observed()
    outlook = expected(Open(runs.cases, np.arange(len(runs)), np.ones(len(runs))))
    groups = np.char.add(runs.models, runs.cases.gpus.astype(str))
    said, was, shuffled = [], [], np.random.default_rng(1)
    for group in np.unique(groups):
        which = shuffled.permutation(np.flatnonzero(groups == group))  # the file has them by speed
        drawn, measured = drawn_seconds(outlook, which, 100), runs.seconds[which]
        for one in range(len(which) - 1):
            said += (drawn[:, one, None] < drawn[:, one + 1 :]).mean(axis=0).tolist()
            was += (measured[one] < measured[one + 1 :]).tolist()
    chance, won = np.array(said), np.array(was)
    for low in np.arange(0, 1, 0.2):
        here = (chance >= low) & (chance <= low + 0.2)
        assert here.sum() > 50
        assert won[here].mean() == pytest.approx(chance[here].mean(), abs=0.12), low


@pytest.mark.parametrize(("chance", "said"), [(0.0, "risks none of it"), (0.01, "hardly risks it")])
def test_a_small_chance_of_a_slow_run_is_not_called_none(chance, said):
    asked = PricedQuestion("llama3-70b", "H100", 16, framework="nanotron")
    rows = split_options(asked, top=2)
    rows["chance_of_slow"] = [0.16, chance]
    slow = next(one for one in layout_sentences(asked, rows) if one.startswith("With a chance"))
    assert f"{rows['option'].iloc[1]} {said}, at" in slow


@pytest.mark.thorough
def test_data_parallelism_hands_over_what_it_cannot_hold():
    cluster = ddlnb.cluster_of("H100", nodes=16)
    found = ddlnb.advise("llama3-70b", cluster, draws=0)
    assert isinstance(found, LayoutAdvice)
    assert found.verdict.fits is False
    assert "it has to be split" in found.verdict.said[1]
    assert (
        found.options["layout"].iloc[0]
        == scale("llama3-70b", "H100", 16, network="8x400GbIB").rows(1)[0]["layout"]
        == found.verdict.way
    )
    with pytest.raises(InputError, match=r"It has to be split, and then .*--throughput.* cannot"):
        ddlnb.advise("llama3-70b", cluster, throughput=3.0)
    with pytest.raises(InputError, match=r"'llama3-1b' is known by its layers alone.* \(--method"):
        ddlnb.forecast("llama3-1b", cluster, "DDP", draws=0)
    with pytest.raises(InputError, match="unknown software 'foo'"):
        ddlnb.forecast("gpt2", cluster, "DDP", software="foo", draws=0)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"throughput": 3.0}, "throughput (--throughput)"),
        ({"prices": Prices(2.0, server_hour=1.0)}, "the price server_hour (--server-price)"),
        ({"measured": 3.0}, "measured (--measured)"),
        ({"most_plans": 0}, "most_plans (--plans)"),
        (
            {"measured": 3.0, "measured_method": "DDP"},
            "measured (--measured) and measured_method (--method)",
        ),
    ],
)
def test_what_only_data_parallelism_has_is_refused(given, named):
    with pytest.raises(InputError, match=f"It has to be split, and then {re.escape(named)} cannot"):
        ddlnb.advise("llama3-8b", ddlnb.cluster_of("H100", nodes=2), draws=0, **given)


@pytest.mark.thorough
def test_layouts_say_that_they_count_adam():
    cluster = ddlnb.cluster_of("H100", nodes=2)
    adam, sgd = (
        ddlnb.advise("llama3-8b", cluster, optimizer=one, draws=0) for one in ("adam", "sgd")
    )
    parameters = get_shape("llama3-8b").shape.parameters
    assert adam.verdict.memory_bytes - sgd.verdict.memory_bytes == pytest.approx(8 * parameters)
    assert "with Adam, not sgd" in str(sgd)
    assert "with Adam, not" not in str(adam)
    # a parameter's copy in fp32 and two moments, which are Adam's
    assert FLOAT32 * (1 + OPTIMIZER_COPIES[COUNTED]) == MOMENTS
    with pytest.raises(UnknownName, match="adam"):
        ddlnb.advise("llama3-8b", cluster, optimizer="adamw8bit")


def test_a_batch_per_gpu_is_the_batch_of_a_step_over_all():
    cluster = ddlnb.cluster_of("H100", nodes=2)
    asked = split_on("llama3-8b", cluster, local_batch=3, sequence=1024)
    assert (asked.global_batch, asked.sequence, asked.gpus) == (48, 1024, 16)
    assert str(asked) == "llama3-8b on 16 x H100-SXM, 8x400GbIB (framework not named)"
    with pytest.raises(InputError, match="are not known; name them"):
        split_on("llama3-8b", ddlnb.get_cluster("two-cores-4-workers"))


@pytest.mark.thorough
def test_a_network_of_a_file_s_own_is_taken_with_its_measured_bandwidth():
    known = ddlnb.cluster_of("H100", nodes=8, network="100GbIB")
    found = ddlnb.advise("llama3-70b", replace(known, network="our fabric"), draws=0)
    assert found.question.network.name == "our fabric"
    assert found.question.network.line_rate == known.effects.between_bandwidth


def test_without_latency_shards_of_many_gpus_are_gathered_as_quickly_as_those_of_few():
    asked = PricedQuestion("llama3-8b", "H100", 512, framework="fsdp", global_batch=4096)
    prompt = {one.what: one.cell for one in layout_counterfactuals(asked)}[
        "no latency of exchanges"
    ]

    def rate(question: PricedQuestion) -> float:
        rows = {row["layout"]: row["tokens_per_s_per_gpu"] for row in question.ranking.rows(3)}
        return rows["dp4096 zero3"]

    assert rate(prompt) > 1.3 * rate(asked)
    assert prompt.across == pytest.approx(asked.across)
    assert not any(one.any() for one in gather_latency(prompt.ranking.outlook.cases))
