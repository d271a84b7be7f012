"""Hybrid sharding, adapters and narrow precisions: what they store and exchange."""

import re

import pytest

from ddlnb.errors import InputError
from ddlnb.networks.topologies import Star
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.iteration import parts_of, play_iteration
from ddlnb.parallelism.layout import Layout, groups
from ddlnb.parallelism.memory import PRECISIONS, memory
from ddlnb.parallelism.model import Transformer, llama
from ddlnb.parallelism.volumes import exchanges

MODEL = llama("small", 8, 512, 8, 4, 1536, 1000, 512).shape
MIXTURE = Transformer("mixture", 8, 256, 8, 16, 128, experts=8, top_k=2).shape


def sent(layout: str, what: str, axis: str = "", precision: str = "mixed") -> float:
    """Return the bytes that a rank sends of something in an iteration."""
    found = exchanges(MODEL, Layout.parse(layout), precision)
    return sum(one.sent_bytes for one in found if one.what == what and axis in ("", one.axis))


def test_shards_are_of_neighbours_and_copies_apart() -> None:
    layout = Layout.parse("dp4 tp2 zero3 shard2")
    assert groups(layout, "shard") == ((0, 2), (4, 6), (1, 3), (5, 7))
    assert groups(layout, "copies") == ((0, 4), (2, 6), (1, 5), (3, 7))


def test_hybrid_sharding_stores_like_fewer_replicas_and_gathers_among_them() -> None:
    hybrid, few, all_of_them = (
        Layout.parse(text) for text in ("dp8 zero3 shard2", "dp2 zero3", "dp8 zero3")
    )
    assert memory(MODEL, hybrid).states == memory(MODEL, few).states
    assert memory(MODEL, hybrid).states > memory(MODEL, all_of_them).states
    assert sent("dp8 zero3 shard2", "parameters") == sent("dp2 zero3", "parameters")
    # An all-reduce of a half among four adds to the reduce-scatter among two.
    gradients = MODEL.parameters * 2
    assert sent("dp8 zero3 shard2", "gradients", "shard") == pytest.approx(gradients / 2, rel=1e-3)
    copies = 2 * (3 / 4) * gradients / 2
    assert sent("dp8 zero3 shard2", "gradients", "copies") == pytest.approx(copies, rel=1e-3)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_one_group_of_all_replicas_is_plain_sharding(zero: int) -> None:
    plain, whole = (Layout.parse(f"dp8 zero{zero}{text}") for text in ("", " shard8"))
    assert memory(MODEL, plain) == memory(MODEL, whole)
    for what in ("gradients", "parameters"):
        assert sent(str(plain), what) == pytest.approx(sent(str(whole), what))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp8 shard2", "shard 2 says over how many replicas ZeRO shards: give zero1"),
        ("dp8 ep2 zero1 shard2", "and no ep"),
        ("dp8 zero3 shard3", "shard 3 does not divide dp * cp 8; use one of 1, 2, 4, 8"),
    ],
)
def test_shards_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Layout.parse(text)


def test_adapters_alone_have_gradients_and_optimizer_states() -> None:
    shape = get_shape("llama2-7b")
    whole, adapters = (memory(shape.shape, Layout.parse(text)) for text in ("dp1", "lora16"))
    # By a loop over the matrices of a layer: query, key, value, output, gate, up, down.
    sides = 4 * [(4096, 4096)] + 2 * [(4096, 11008)] + [(11008, 4096)]
    trained = 32 * sum(16 * (rows + columns) for rows, columns in sides)
    assert trained == 39_976_960  # peft's count for r = 16 on all linear layers of Llama 2 7B
    assert adapters.parameters - whole.parameters == 2 * trained
    assert (adapters.gradients, adapters.optimizer) == (2 * trained, 12 * trained)


def test_adapters_send_their_gradients_and_gather_everything() -> None:
    trained = memory(MODEL, Layout.parse("lora4")).gradients / 2
    assert sent("dp2 lora4", "gradients") == 2 * trained
    assert sent("dp2 zero1 lora4", "parameters") == trained  # those that were updated
    gathered = 2 * (MODEL.parameters + trained)
    assert sent("dp2 zero3 lora4", "parameters") == pytest.approx(gathered, rel=1e-3)


def test_adapters_skip_the_gradients_of_weights() -> None:
    network = Star(2).network(bandwidth=1e15)
    whole, adapters = (
        parts_of(play_iteration(MODEL, Layout.parse(text), network, 1e12))["computation"]
        for text in ("dp2", "dp2 lora4")
    )
    shape = MODEL.block_layers[0]
    share = (shape.forward_flops - shape.core_flops) / (3 * shape.forward_flops)
    assert adapters == pytest.approx(whole * (1 - share), rel=0.01)  # and the head
    assert adapters > whole * 2 / 3  # the core of attention has none


def test_narrow_precisions_keep_and_dispatch_fewer_bytes() -> None:
    kept = {name: memory(MODEL, Layout(), name).activations for name in PRECISIONS}
    assert kept["nvfp4"] < kept["fp8"] < kept["mixed"] < kept["fp32"]
    assert kept["fp8"] == kept["fp8, DeepSeek-V3"]
    # Inputs of the four matrices of a block: attention's, its output's, the two of feed-forward.
    narrower = 8 * 512 * (512 + 8 * 64 + 512 + 1536)
    assert kept["mixed"] - kept["fp8"] == narrower

    def dispatched(precision: str) -> dict[str, float]:
        found = exchanges(MIXTURE, Layout(dp=4, ep=4), precision)
        return {one.what: one.bytes for one in found if one.axis == "ep"}

    wide, narrow = dispatched("mixed"), dispatched("fp8, DeepSeek-V3")
    assert narrow == {"dispatch": wide["dispatch"] / 2, "combine": wide["combine"]}


def test_states_of_deepseek_v3_are_those_of_its_report() -> None:
    # arXiv 2412.19437, section 3.3.2: master weights and gradients in fp32, moments in bf16.
    assert PRECISIONS["fp8, DeepSeek-V3"].states == 1 + 4 + (4 + 2 + 2)
