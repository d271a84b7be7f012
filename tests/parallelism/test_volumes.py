"""What ranks send, against published values, closed forms and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.parallelism.layout import AXES, Layout
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.volumes import exchanges
from tests.parallelism.published import GPT3

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
