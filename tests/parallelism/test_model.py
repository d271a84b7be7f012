"""What models are, store and send: published values, closed forms and laws of sums over layers."""

import re

import pytest
from hypothesis import given, strategies as st

import ddlnb
from ddlnb.errors import InputError
from ddlnb.parallelism.layout import AXES, Layout
from ddlnb.parallelism.memory import PRECISIONS, kept_bytes, memory, pipeline_stages, require_fits
from ddlnb.parallelism.model import LayerShape, ModelShape, Transformer, gpt, model_of
from ddlnb.parallelism.parts import Weight
from ddlnb.parallelism.volumes import exchanges

# arXiv 2104.04473, Table 1: parameters in 1e9, heads, hidden, layers, tensor and pipeline ranks.
WEAK_SCALING = (
    (1.7, 24, 2304, 24, 1, 1),
    (3.6, 32, 3072, 30, 2, 1),
    (7.5, 32, 4096, 36, 4, 1),
    (18.4, 48, 6144, 40, 8, 1),
    (39.1, 64, 8192, 48, 8, 2),
    (76.1, 80, 10240, 60, 8, 4),
    (145.6, 96, 12288, 80, 8, 8),
    (310.1, 128, 16384, 96, 8, 16),
    (529.6, 128, 20480, 105, 8, 35),
    (1008.0, 160, 25600, 128, 8, 64),
)
GPT3 = gpt("gpt-3", 96, 12288, 96, 51200, 2048).shape


def megatron(heads: int, hidden: int, layers: int):
    """Return a row of that table as a model."""
    return gpt("row", layers, hidden, heads, 51200, 2048)


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


def plain(parameters: int) -> ModelShape:
    """Return a model of one layer with so many parameters."""
    return ModelShape("plain", (LayerShape("layer", (Weight("w", parameters),), 0.0, 0),), (0, 1))


@pytest.mark.item("D01")
def test_model_states_of_zero():
    model = plain(7_500_000_000)
    found = [memory(model, Layout(dp=64, zero=zero)).states / 1e9 for zero in range(4)]
    assert found == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


@pytest.mark.item("D02")
def test_largest_models_of_zero_on_32_gb():
    for zero, published in ((1, 7.5e9), (2, 14e9), (3, 128e9)):
        assert memory(plain(int(published)), Layout(dp=64, zero=zero)).states <= 32.05e9
        assert memory(plain(int(1.1 * published)), Layout(dp=64, zero=zero)).states > 32.05e9
    assert memory(plain(10**12), Layout(dp=1024, zero=3)).states <= 16e9


def test_activations_per_layer_are_those_of_korthikanti_and_others():
    # arXiv 2205.05198, Table 2: bytes per layer over sbh, for every way.
    s, h, a, t = 2048, 12288, 96, 8
    block = GPT3.block_layers[0]
    scores = 5 * a * s / h
    for text, closed in (
        ("dp1", 34 + scores),
        (f"tp{t}", 10 + 24 / t + scores / t),
        (f"tp{t} sp", (34 + scores) / t),
        (f"tp{t} selective", 10 + 24 / t),
        (f"tp{t} sp selective", 34 / t),
        ("full", 2),
    ):
        layout = Layout.parse(text)
        found = kept_bytes(block, layout, PRECISIONS["mixed"], layout.recomputation)
        assert found == pytest.approx(s * h * closed), text


@pytest.mark.item("D03")
def test_checkpoints_divided_over_tensor_ranks():
    # ZeRO, section 6.1: 100e9 parameters, batch 32, 16 ranks: about 33 GB of checkpoints, then 2.
    # The sentence gives no shape: 33 GB are those of 31 wide layers; 125 of 8192 keep 67 GB.
    for layers, hidden, gigabytes in ((31, 16384, 33), (125, 8192, 67)):
        model = Transformer("100 B", layers, hidden, 64, 51200, 1024).shape
        assert model.parameters / 1e9 == pytest.approx(100, rel=0.02)
        for text, ways in (("tp16 mb32 full", 1), ("tp16 mb32 full sp", 16)):
            block = model.block_layers[0]
            kept = layers * kept_bytes(block, Layout.parse(text), PRECISIONS["mixed"], "full")
            assert kept / 1e9 == pytest.approx(gigabytes / ways, rel=0.02)


GATED = Transformer("small", 8, 64, 8, 512, 64, gated=True, flash=False).shape


@given(st.integers(0, 2), st.sampled_from([1, 2, 4]), st.sampled_from([2, 4, 8]))
def test_more_sharding_never_takes_more(zero, tp, dp):
    less = memory(GATED, Layout(dp=dp, tp=tp, zero=zero + 1))
    more = memory(GATED, Layout(dp=dp, tp=tp, zero=zero))
    assert less.states < more.states
    assert memory(GATED, Layout(dp=2 * dp, tp=tp, zero=zero + 1)).states < less.states


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_splitting_the_model_takes_less(tp, pp, zero):
    one = memory(GATED, Layout(tp=tp, pp=pp, zero=zero, dp=2))
    assert memory(GATED, Layout(tp=2 * tp, pp=pp, zero=zero, dp=2)).states < one.states
    assert memory(GATED, Layout(tp=tp, pp=2 * pp, zero=zero, dp=2)).states < one.states
    plain, sequence, again = (
        memory(GATED, Layout.parse(text)).activations for text in ("tp2", "tp2 sp", "tp2 sp full")
    )
    assert again < sequence < plain


def test_one_rank_stores_the_single_worker():
    found = memory(GATED, Layout(zero=3), "fp32")
    assert found.states == GATED.parameters * 16
    assert found.gathered == 0


SHAPE = Transformer("small", 8, 64, 8, 512, 64).shape
MIXTURE = Transformer("mixture", 8, 64, 8, 512, 64, experts=8, top_k=2).shape


def sent(model, layout, axis, stage=0, **keep):
    return sum(
        one.sent_bytes
        for one in exchanges(model, layout, "mixed", stage)
        if one.axis == axis and all(getattr(one, name) in value for name, value in keep.items())
    )


def test_one_worker_exchanges_nothing():
    assert exchanges(SHAPE, Layout(zero=3, micro_batches=4)) == ()


@pytest.mark.item("D09")
def test_bytes_of_gpt3():
    blocks = ("attention", "feed-forward")
    tensor = sent(GPT3, Layout(tp=8), "tp", what=blocks)
    assert tensor / 96 / 1e9 == pytest.approx(0.352, abs=0.0005)
    assert tensor / 1e9 == pytest.approx(33.8, abs=0.05)
    assert sent(GPT3, Layout(tp=8, pp=8), "pp") / 1e6 == pytest.approx(50.3, abs=0.05)
    # 2 psi elements of two bytes: the buffer both ways of a long ring, and a share of 1/64.
    gradients = sum(
        one.bytes
        for stage in range(8)
        for one in exchanges(GPT3, Layout(tp=8, pp=8, dp=2), stage=stage)
        if one.axis == "data"
    )
    assert 2 * gradients / 8 / 1e9 == pytest.approx(10.9, abs=0.2)


@pytest.mark.parametrize(("zero", "psi"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_sends_two_or_three_times_the_parameters(zero, psi):
    for dp in (2, 3, 8):
        layout = Layout(dp=dp, zero=zero)
        elements = sent(SHAPE, layout, "data") / 2
        assert elements == pytest.approx(psi * SHAPE.parameters * (dp - 1) / dp)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_volume(tp):
    closed = 4 * 2 * (tp - 1) / tp * 64 * 64 * 8 * 2  # elements of s*h, 8 layers, 2 bytes
    blocks = ("attention", "feed-forward")
    assert sent(SHAPE, Layout(tp=tp), "tp", what=blocks) == pytest.approx(closed)
    again = sent(SHAPE, Layout(tp=tp, recomputation="full"), "tp", what=blocks)
    assert again == pytest.approx(closed * 6 / 4)
    sequence = Layout(tp=tp, sequence_parallel=True, gather_again=False)
    assert sent(SHAPE, sequence, "tp", what=blocks) == pytest.approx(closed)


def test_pipeline_and_interleaving():
    one = 64 * 64 * 2
    layout = Layout(pp=4, micro_batches=8)
    assert sent(SHAPE, layout, "pp", 0) == 8 * one
    assert sent(SHAPE, layout, "pp", 1) == 2 * 8 * one
    twice = Layout(pp=4, micro_batches=8, vpp=2, schedule="interleaved")
    assert sum(sent(SHAPE, twice, "pp", stage) for stage in range(4)) == 2 * 7 * 8 * one


def test_experts_are_dispatched_four_times_per_layer():
    each = (4 - 1) / 4 * 64 * 2 * 64 * 2  # (e-1)/e of q topk h, 2 bytes
    assert sent(MIXTURE, Layout(dp=4, ep=4), "ep") == pytest.approx(4 * 8 * each)
    held = [one for one in exchanges(MIXTURE, Layout(dp=4, ep=2)) if one.axis == "expert-data"]
    assert [one.ranks for one in held] == [2]


def test_context_parallel_volume():
    width, cp = 64 * 64 * 2, 4
    ring = sent(SHAPE, Layout(cp=cp), "cp")
    # Keys and values pass cp - 1 times each way, their gradients cp times.
    assert ring == pytest.approx(8 * (2 * (cp - 1) + cp) * 2 * width / cp)
    pairs = sent(SHAPE, Layout(cp=cp, context="all-to-all"), "cp")
    assert pairs == pytest.approx(8 * 2 * 4 * width / cp * (cp - 1) / cp)


@given(
    st.permutations(AXES),
    st.sampled_from(["dp4 tp2 pp2 acc4", "dp2 cp2 tp2 zero3", "dp4 ep2 pp2 zero1 acc2"]),
)
def test_relabelling_ranks_changes_no_volume(order, text):
    layout = Layout.parse(text)
    other = Layout.parse(f"{text} order={'-'.join(order)}")
    assert exchanges(MIXTURE, layout) == exchanges(MIXTURE, other)


def test_a_tied_embedding_is_kept_equal_by_the_first_and_the_last_stage():
    tied = Transformer("tied", 8, 64, 8, 512, 64, tied=True).shape
    for stage, times in ((0, 1), (1, 0), (3, 1)):
        found = exchanges(tied, Layout(pp=4), stage=stage)
        assert [one.bytes for one in found if one.axis == "ends"] == [512 * 64 * 2] * times
