"""Models as layers: published totals are sums over layers, and what does not divide is refused."""

from __future__ import annotations

import re

import pytest

import ddlnb
from ddlnb.errors import InputError
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import pipeline_stages, require_fits
from ddlnb.parallelism.model import Transformer, model_of
from ddlnb.parallelism.volumes import exchanges
from tests.parallelism.published import GPT3, WEAK_SCALING, megatron


@pytest.mark.item("D04")
@pytest.mark.parametrize("row", WEAK_SCALING, ids=lambda row: f"{row[0]}e9")
def test_parameters_of_megatrons_models(row):
    billions, heads, hidden, layers, *_ = row
    model = megatron(heads, hidden, layers).shape
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.06)
    closed = 1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden)
    final_norm = 2 * hidden  # which the closed form leaves out
    assert model.parameters - final_norm == pytest.approx(12 * layers * hidden**2 * closed)


@pytest.mark.item("D05")
@pytest.mark.parametrize("row", WEAK_SCALING, ids=lambda row: f"{row[0]}e9")
def test_flops_of_an_iteration_with_recomputation(row):
    _, heads, hidden, layers, *_ = row
    closed = 96 * layers * hidden**2 * 2048
    closed *= 1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden)
    assert megatron(heads, hidden, layers).shape.iteration_flops(1, "full") == pytest.approx(closed)


@pytest.mark.item("D05", "D06")
def test_seconds_of_an_iteration_and_days_of_training():
    largest = megatron(*WEAK_SCALING[-1][1:4]).shape
    assert largest.iteration_flops(3072, "full") / (3072 * 163e12) == pytest.approx(102.6, abs=0.05)
    # 8 FLOPs per token and parameter leave out attention and the head, a twentieth here.
    for model, tokens, gpus, rate, days in (
        (GPT3, 300e9, 1024, 140e12, 33.9),
        (largest, 450e9, 3072, 163e12, 83.2),
    ):
        found = model.iteration_flops(1, "full") / 2048 * tokens / (gpus * rate) / 86400
        assert found == pytest.approx(days, rel=0.05)


def test_selective_recomputation_repeats_the_core_of_attention():
    core = 4 * 2048**2 * 12288 * 96
    plain = GPT3.iteration_flops(1)
    assert GPT3.iteration_flops(1, "selective") - plain == pytest.approx(core)
    assert plain == 3 * GPT3.forward_flops


def test_a_mixture_computes_with_the_experts_that_tokens_take():
    dense = Transformer("dense", 4, 64, 4, 512, 32)
    mixture = Transformer("mixture", 4, 64, 4, 512, 32, experts=8, top_k=1)
    router = 64 * 8
    assert mixture.shape.parameters - dense.shape.parameters == 4 * (7 * 8 * 64**2 + router)
    extra = mixture.shape.forward_flops - dense.shape.forward_flops
    assert extra == 4 * 2 * 32 * router


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp4", "tp 4 does not divide heads 6 of model 'small'; use one of 1, 2, 3, 6"),
        ("cp5", "cp 5 does not divide sequence 128"),
        ("tp2 cp4 all-to-all", "tp * cp 8 does not divide key heads 6"),
        ("dp2 ep2", "ep 2 does not divide experts (there are none) 1 of model 'small'"),
        ("pp3 vpp2 acc3", "pp 3 times vpp 2 is more than the 4 layers of model 'small'"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_would(text, message):
    model = Transformer("small", 4, 96, 6, 512, 128).shape
    with pytest.raises(InputError, match=re.escape(message)):
        require_fits(model, Layout.parse(text))


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5])
def test_stages_hold_every_layer_once_and_blocks_evenly(pp):
    model = Transformer("small", 5, 96, 6, 512, 128).shape
    stages = pipeline_stages(model, pp)
    assert sum(layer.parameters * n for s in stages for layer, n in s.layers) == model.parameters
    blocks = [sum(n for layer, n in s.layers if layer.name == "block") for s in stages]
    assert sum(blocks) == 5
    assert max(blocks) - min(blocks) <= 1
    assert blocks[-1] == min(blocks)
    assert stages[0].layers[0][0].name == "embedding"
    assert stages[-1].layers[-1][0].name == "head"


def test_a_traced_workload_is_sharded_and_cut_into_stages():
    workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    model = model_of(workload)
    (found,) = exchanges(model, Layout(dp=4), "fp32")
    assert (found.primitive, found.bytes) == ("all-reduce", workload.gradient_bytes)
    assert model.iteration_flops(64) == pytest.approx(workload.flops, rel=0.05)
    with pytest.raises(InputError, match="is not known, and a pipeline of 2 stages is cut there"):
        exchanges(model, Layout(pp=2), "fp32")
    outputs = {layer.name: 100 for layer in workload.layers}
    (sent,) = exchanges(model_of(workload, outputs), Layout(pp=2, micro_batches=3), "fp32")
    assert (sent.primitive, sent.bytes, sent.times) == ("send", 400, 3)
    with pytest.raises(InputError, match="tp 2 does not divide splittable layers 1"):
        exchanges(model, Layout(tp=2))
    with pytest.raises(InputError, match="has no layers nowhere"):
        model_of(workload, {"nowhere": 3})
