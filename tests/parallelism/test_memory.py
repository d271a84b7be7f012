"""What ranks store, against published values, closed forms and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import PRECISIONS, kept_bytes, memory
from ddlnb.parallelism.model import LayerShape, ModelShape, Transformer, Weight
from tests.parallelism.published import GPT3


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


SHAPE = Transformer("small", 8, 64, 8, 512, 64, gated=True, flash=False).shape


@given(st.integers(0, 2), st.sampled_from([1, 2, 4]), st.sampled_from([2, 4, 8]))
def test_more_sharding_never_takes_more(zero, tp, dp):
    less = memory(SHAPE, Layout(dp=dp, tp=tp, zero=zero + 1))
    more = memory(SHAPE, Layout(dp=dp, tp=tp, zero=zero))
    assert less.states < more.states
    assert memory(SHAPE, Layout(dp=2 * dp, tp=tp, zero=zero + 1)).states < less.states


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_splitting_the_model_takes_less(tp, pp, zero):
    one = memory(SHAPE, Layout(tp=tp, pp=pp, zero=zero, dp=2))
    assert memory(SHAPE, Layout(tp=2 * tp, pp=pp, zero=zero, dp=2)).states < one.states
    assert memory(SHAPE, Layout(tp=tp, pp=2 * pp, zero=zero, dp=2)).states < one.states
    plain, sequence, again = (
        memory(SHAPE, Layout.parse(text)).activations for text in ("tp2", "tp2 sp", "tp2 sp full")
    )
    assert again < sequence < plain


def test_one_rank_stores_the_single_worker():
    found = memory(SHAPE, Layout(zero=3), "fp32")
    assert found.states == SHAPE.parameters * 16
    assert found.gathered == 0
