"""Laws of the step: what must hold for every case; overlap, schedules and what a GPU computes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.files import PUBLISHED
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.config import get_shape
from ddlnb.parallelism.forecast.cases import FULL, SCANNED, SELECTIVE, Cases
from ddlnb.parallelism.forecast.fit import COUNTED, OWN_NETWORK, THEORY
from ddlnb.parallelism.forecast.forecast import (
    SENT_KEPT,
    activation_bytes,
    footprint,
    forecast,
)
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, matrix_flops, saved_fit
from ddlnb.parallelism.forecast.layouts import ranking_of
from ddlnb.parallelism.forecast.published import observed
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.step import (
    APART,
    GATED,
    GATED_APART,
    INNER,
    PLAIN,
    SMALL,
    WIDER,
    bubble_seconds,
    expert_seconds,
    head_seconds,
    layer_seconds,
    operations_of,
    passes_of,
    score_seconds,
    step,
    values_of,
)
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import memory
from ddlnb.parallelism.parts import SelfAttention, StateSpace
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.units import GIB
from ddlnb.workloads.counters import TrafficCounter
from ddlnb.workloads.roofline import efficiency_of


@pytest.fixture(scope="module")
def cases() -> Cases:
    return observed().cases


def seconds(cases: Cases) -> np.ndarray:
    return step(cases, saved_fit()).seconds


@pytest.mark.parametrize("better", ["inside", "across", "peak", "memory_bandwidth"])
def test_more_of_what_a_machine_has_never_hurts(cases: Cases, better: str) -> None:
    more = replace(cases, **{better: 2 * getattr(cases, better)})
    if better == "peak":
        more = replace(more, core_peak=2 * cases.core_peak)
    assert (seconds(more) <= seconds(cases) * (1 + 1e-12)).all()
    assert (seconds(more) < seconds(cases)).any()


def test_one_stage_has_no_bubble_and_no_transfers(cases: Cases) -> None:
    found, alone = step(cases, saved_fit()), cases.pp == 1
    for seconds_of in (found.bubble, found.transfers, found.slow):
        assert (seconds_of[alone] == 0).all()
    assert (found.bubble[~alone] > 0).all()


def test_recomputation_takes_longer_and_keeps_less(cases: Cases) -> None:
    again = replace(cases, recomputation=np.full(len(cases), float(FULL)))
    assert (seconds(again) >= seconds(cases)).all()
    assert (forecast(again).most_gib <= forecast(cases).most_gib * (1 + 1e-12)).all()


def test_adapters_spare_gradients_of_weights_their_exchange_and_the_optimizer(cases: Cases) -> None:
    adapted = replace(cases, adapters=np.ones(len(cases)))
    found, whole = step(adapted, saved_fit()), step(cases, saved_fit())
    assert (found.compute < whole.compute).all()
    assert (found.compute > whole.compute / 2).all()  # of three passes, two are left
    assert (found.reduction == 0).all()
    assert (found.optimizer == 0).all()
    assert (forecast(adapted).most_gib < forecast(cases).most_gib).all()


def traced(block: torch.nn.Module, **options: object) -> tuple[float, float]:
    """Operations of a block forward and backward, and its bytes per token and width."""
    tokens, hidden = 64, 1024
    block = block.to(torch.bfloat16).eval()  # without dropout
    for one in block.parameters():
        one.grad = torch.zeros_like(one)
    inputs = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    with TrafficCounter() as counter:
        outputs = block(inputs, **options)
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        outputs.backward(torch.ones_like(outputs))
    weights = sum(one.nbytes for one in block.parameters())
    return counter.work.operations, (counter.work.bytes - 3 * weights) / tokens / hidden


def test_operations_and_bytes_of_a_layer_are_those_that_torch_counts() -> None:
    """Adding the gradients up is among the operations, and is no traffic of a layer's elements."""
    from transformers import GPT2Config, LlamaConfig
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    from transformers.models.llama import modeling_llama

    config = GPT2Config(
        n_embd=1024, n_head=16, activation_function="gelu", attn_implementation="sdpa"
    )
    gpt = traced(GPT2Block(config, 0))
    config = LlamaConfig(
        hidden_size=1024, num_attention_heads=16, intermediate_size=2752, num_hidden_layers=1,
        attn_implementation="sdpa",
    )  # fmt: skip
    turned = modeling_llama.LlamaRotaryEmbedding(config)
    turns = turned(torch.zeros(1, 1, 1, dtype=torch.bfloat16), torch.arange(64)[None])
    llama = traced(modeling_llama.LlamaDecoderLayer(config, 0), position_embeddings=turns)
    plain, apart = sum(PLAIN), sum(APART)
    assert gpt[0] == pytest.approx(plain, rel=0.1)
    assert llama[0] == pytest.approx(plain + apart, rel=0.1)
    of_gates = INNER * (GATED_APART * 2752 / 4096 - 1)
    more = (SMALL + of_gates) * COUNTED["elementwise"]
    assert llama[1] - gpt[1] == pytest.approx(more, rel=0.1)


def test_an_operation_holds_up_a_host_as_long_as_programs_on_one_gpu_say() -> None:
    host = efficiency_of(get_gpu("H100"), "bf16").host.value
    assert THEORY["launch"] == pytest.approx(host, rel=0.02)
    for name in FRAMEWORKS:
        assert saved_fit().of(name).launch == pytest.approx(host, rel=0.15)


def test_exchanges_and_recomputation_are_operations_and_fusing_spares_some(cases: Cases) -> None:
    fused, apart = (
        replace(cases, framework=np.full(len(cases), name)) for name in ("nemo", "internevo")
    )
    alone = replace(fused, tp=np.ones(len(cases)))
    assert (operations_of(alone) <= operations_of(fused)).all()
    again = replace(fused, recomputation=np.full(len(cases), float(FULL)))
    assert (operations_of(again) > operations_of(fused)).all()
    assert (operations_of(fused) < operations_of(apart)).all()


def test_attention_in_instructions_of_ampere_is_slower_on_newer_gpus(cases: Cases) -> None:
    own = replace(cases, newer=np.zeros(len(cases)))
    assert (
        layer_seconds(own, saved_fit().parameters) < layer_seconds(cases, saved_fit().parameters)
    ).all()
    kept = replace(cases, framework=np.full(len(cases), "nemo"))
    assert np.array_equal(
        layer_seconds(kept, saved_fit().of("nemo")),
        layer_seconds(replace(kept, newer=own.newer), saved_fit().of("nemo")),
    )


def test_sharding_needs_less_memory(cases: Cases) -> None:
    many = cases.select(cases.dp > 1)
    by_degree = [
        forecast(replace(many, zero=np.full(len(many), float(zero)))).most_gib for zero in range(4)
    ]
    for more, less in pairwise(by_degree):
        assert (less < more).all()


def test_attention_that_keeps_scores_moves_them(cases: Cases) -> None:
    """Twice the sequence has twice the scores per token; recomputation moves them once more."""
    one = replace(cases, recomputation=np.zeros(len(cases)))
    longer = score_seconds(replace(one, sequence=2 * one.sequence))
    assert longer == pytest.approx(4 * score_seconds(one))
    for again in (SELECTIVE, FULL):
        computed_again = replace(one, recomputation=np.full(len(one), float(again)))
        assert score_seconds(computed_again) == pytest.approx(45 / 32 * score_seconds(one))
    keeps = replace(one, framework=np.full(len(one), "megatron"))
    free = replace(keeps, memory_bandwidth=1e6 * keeps.memory_bandwidth)
    moved = step(keeps, saved_fit()).compute - step(free, saved_fit()).compute
    assert (moved > 0.9 * one.micro_batches * score_seconds(one)).all()


def scheduled(cases: Cases, name: str) -> Cases:
    return replace(cases, schedule=np.full(len(cases), name))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 3, 4, 8, 32])
def test_the_bubble_is_that_of_the_schedule_when_it_is_played(
    name: str, stages: int, rounds: int
) -> None:
    forward, inputs, weights = 1.0, 1.5, 0.8
    one = observed().cases.select(np.array([0]))
    one = replace(scheduled(one, name), pp=np.array([stages * 1.0]),
                  micro_batches=np.array([rounds * 1.0]))  # fmt: skip
    stage = np.full((1, stages), forward + inputs + weights)
    found = bubble_seconds(one, stage, np.full((1, stages), weights) / stage)
    parts = {"F": forward, "B": inputs, "W": weights}
    if name != "zero-bubble":
        parts = {"F": forward, "B": inputs + weights}
    played = play(schedule(name, stages, rounds), parts).seconds
    assert found[0] == pytest.approx(played - rounds * stage[0, 0])


def test_zero_bubble_is_never_slower_than_1f1b_and_faster_with_stages() -> None:
    cases = observed().cases
    zero = step(scheduled(cases, "zero-bubble"), saved_fit()).seconds
    usual = step(scheduled(cases, "1f1b"), saved_fit()).seconds
    staged = cases.pp > 1
    assert (zero[staged] < usual[staged]).all()
    assert np.array_equal(zero[~staged], usual[~staged])
    assert (step(scheduled(cases, "zero-bubble"), saved_fit()).bubble >= 0).all()


def test_gpipe_keeps_every_micro_batch() -> None:
    cases = observed().cases
    more = forecast(scheduled(cases, "gpipe")).most_gib
    usual = forecast(scheduled(cases, "1f1b")).most_gib
    staged = cases.pp > 1
    assert (more[staged] >= usual[staged]).all()
    longer = staged & (cases.micro_batches > cases.pp)
    assert (more[longer] > usual[longer]).all()
    assert np.array_equal(more[~staged], usual[~staged])


def test_a_cluster_without_known_runs_has_the_shares_of_its_own_collectives() -> None:
    rows = pd.read_csv(PUBLISHED / "collectives_upto2nodes.csv")
    own = rows[rows["network"].str.contains("EFA", na=False) & (rows["collective"] != "all_reduce")]
    reached = own.groupby("nodes")["busbw_GBps"].mean()
    inside, across = (get_gpu("H100").inside_bandwidth / 1e9, 400)
    assert OWN_NETWORK["inside_share"] == pytest.approx(reached[1] / inside, rel=0.02)
    assert OWN_NETWORK["across_share"] == pytest.approx(reached[2] / across, rel=0.02)


@pytest.mark.parametrize("gpu", ["H100", "B200"])
def test_fp8_makes_the_matrices_of_layers_faster_and_neither_the_head_nor_attention(gpu) -> None:
    of = saved_fit().of("nemo")
    seconds = {}
    for precision in ("bf16", "fp8"):
        question = LayoutQuestion("llama3-8b", gpu, 8, framework="nemo", precision=precision)
        cases = ranking_of(question, Layout(dp=64, zero=1)).outlook.cases
        without_core = replace(cases, core=0 * cases.core)
        layer = layer_seconds(cases, of)
        seconds[precision] = head_seconds(cases, of), layer - layer_seconds(without_core, of), layer
    (*same, slower), (*again, quicker) = seconds.values()
    assert np.allclose(same, again, rtol=1e-9)
    assert (quicker < 0.9 * slower).all()


def test_experts_that_every_token_meets_are_one_wide_layer_but_for_what_experts_cost() -> None:
    """Four experts of a quarter of the width: as many elements between matrices, kept and moved."""
    dense = LayoutQuestion("llama3-8b").model
    mixed = replace(dense, experts=4, top_k=4, ffn=dense.ffn // 4)
    values, found = saved_fit(), {}
    for name, model in (("dense", dense), ("mixed", mixed)):
        question = LayoutQuestion(model, "H100", 8, framework="nemo", precision="fp8")
        cases = ranking_of(question, Layout(dp=64, zero=1)).outlook.cases
        of = values.of("nemo")
        rate = matrix_flops(cases.peak, cases.sustained, of)
        own = layer_seconds(cases, of) - expert_seconds(cases, rate, passes_of(cases))
        found[name] = own, footprint(cases, values, np.zeros(1)).max()
    (dense_own, dense_held), (mixed_own, mixed_held) = found.values()
    assert mixed_own == pytest.approx(dense_own, rel=1e-3)  # but for the router
    copies = 4 * SENT_KEPT * dense.layers * dense.sequence * dense.hidden / GIB
    assert mixed_held == pytest.approx(dense_held + copies, rel=1e-3)


@pytest.mark.parametrize(
    "name", ["qwen3-30b-a3b", "deepseek-v3", "mixtral-8x7b", "gpt-oss-20b", "nemotron-h-8b"]
)
@pytest.mark.parametrize("layout", ["dp64 zero1", "dp8 tp8 sp zero1", "dp8 tp8 zero1"])
def test_activations_are_to_their_count_as_those_of_a_dense_model(name, layout) -> None:
    """By layers and parts, tensor by tensor; what frameworks fuse or keep twice is fitted."""
    shares = []
    for model in ("llama3-8b", name):
        small = replace(LayoutQuestion(model).model, vocab=128)  # hardly any logits
        question = LayoutQuestion(small, "H100", 8, framework="nanotron")
        cases = ranking_of(question, one := Layout.parse(layout)).outlook.cases
        of = saved_fit().of("nanotron")
        kept = cases.layers * activation_bytes(cases, of, np.zeros(1))
        shares.append(float(kept[0]) / memory(small.shape, one, "mixed").activations)
    dense, other = shares
    assert 0.7 * dense < other < 1.3 * dense


def test_a_state_space_scores_no_tokens() -> None:
    """Where attention keeps its scores: of 52 layers of Nemotron-H 8B four have any."""
    shares = {}
    for name in ("mamba2-2.7b", "nemotron-h-8b", "llama3-8b"):
        question = LayoutQuestion(name, "A100", 1, framework="megatron")
        cases = ranking_of(question, Layout(dp=8, zero=1)).outlook.cases
        whole = replace(cases, attending=np.ones(1))
        shares[name] = float((score_seconds(cases) / score_seconds(whole))[0])
    assert shares == pytest.approx({"mamba2-2.7b": 0, "nemotron-h-8b": 4 / 52, "llama3-8b": 1})


@pytest.mark.parametrize("name", ["mamba2-2.7b", "nemotron-h-8b"])
def test_a_state_space_moves_what_its_kernels_read_and_write(name: str) -> None:
    """Elements of a token by kernels of mamba_ssm, forward; backward 2.5 times as many."""
    model = get_shape(name)
    [space] = {part for block in model.blocks for part in block if isinstance(part, StateSpace)}
    inner, shared = space.heads * space.head_size, 2 * space.groups * space.state
    states = 2 * inner * space.state / space.chunk  # in fp32
    kernels = {
        "convolution": 2 * (inner + shared),
        "states of chunks": inner + shared / 2 + states,
        "states passed on": 2 * states,
        "outputs": 2 * inner + shared + states,
        "gate and norm": 3 * inner,
    }
    counted = 3.5 * 2 * sum(kernels.values())
    cases = ranking_of(LayoutQuestion(name, "A100", 1), Layout(dp=8, zero=3)).outlook.cases
    parts = [part for block in model.blocks for part in block]
    spaces, attending = (
        sum(isinstance(part, kind) for part in parts) for kind in (StateSpace, SelfAttention)
    )
    mixing = (SCANNED * inner * spaces + model.hidden * attending) / len(model.blocks)
    assert cases.mixed[0] == pytest.approx(mixing)
    values, tokens = values_of(cases, saved_fit()), float(cases.tokens[0])
    without = replace(cases, mixed=cases.mixed_width - SCANNED * inner)
    scanning = layer_seconds(cases, values) - layer_seconds(without, values)
    gates = INNER * (GATED if cases.gated[0] else 1) / WIDER * inner * values.elementwise[0]
    moved = float(scanning[0] * cases.memory_bandwidth[0]) / tokens + gates
    assert 0.7 * counted < moved < 1.3 * counted
