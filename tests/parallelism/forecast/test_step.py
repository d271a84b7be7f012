"""Laws of the step: what must hold for every case; overlap, schedules, slow runs, and TCP."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.calibration.collectives import collectives
from ddlnb.calibration.nccl import hop_seconds
from ddlnb.clusters.named import cluster_of
from ddlnb.files import PUBLISHED
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.hardware.machine import protocols
from ddlnb.parallelism.forecast.cases import FULL, SELECTIVE, USUAL_HOP, Cases
from ddlnb.parallelism.forecast.exchanges import (
    HOP,
    LINE,
    copies_rate,
    dispatch_seconds,
    exposed,
    gather_latency,
    gathered_seconds,
    group_rate,
    key_bytes,
    shard_group,
    tensor_bytes,
)
from ddlnb.parallelism.forecast.fit import COUNTED, OWN_NETWORK, THEORY
from ddlnb.parallelism.forecast.forecast import (
    SENT_KEPT,
    WITHOUT_MEMORY,
    activation_bytes,
    chance_of_slow,
    footprint,
    forecast,
    links_across,
    spread_of,
)
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, matrix_flops, saved_fit
from ddlnb.parallelism.forecast.layouts import ranking_of, scale
from ddlnb.parallelism.forecast.published import FOUNDRY, H100, observed
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.step import (
    APART,
    GATED_APART,
    INNER,
    PLAIN,
    SMALL,
    bubble_seconds,
    expert_seconds,
    layer_seconds,
    operations_of,
    passes_of,
    score_seconds,
    step,
)
from ddlnb.parallelism.forecast.table import Row, case
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import memory
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.parallelism.volumes import exchanges
from ddlnb.units import GIB
from ddlnb.workloads.counters import TrafficCounter
from ddlnb.workloads.roofline import efficiency_of
from tests.parallelism.forecast.tables import RUN


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


@pytest.mark.parametrize("path", [H100, FOUNDRY])  # without ZeRO, with ZeRO-1, with ZeRO-3
def test_overlap_is_never_slower_and_helps_where_replicas_exchange(path) -> None:
    cases = observed(path).cases
    beside, after = (seconds(replace(cases, overlap=np.full(len(cases), one))) for one in (1, 0))
    assert (beside <= after * (1 + 1e-12)).all()
    alone = cases.replicas == 1
    assert np.array_equal(beside[alone], after[alone])
    # One layer of a stage has nothing beside it.
    several = cases.stages.layers.max(axis=1) > 1
    hidden = (cases.framework == "nanotron") & (cases.zero == 0)  # gradients are, in any case
    assert (beside < after)[~alone & several & ~hidden].all()


def test_what_is_longer_than_the_computation_beside_it_is_exposed() -> None:
    cases = replace(observed().cases, overlap=np.ones(530))
    rng = np.random.default_rng(7)
    exchange, computation = rng.lognormal(size=(2, 530))
    hides = np.ones(530, bool)
    left = exposed(cases, exchange, computation, hides)
    assert (left >= np.maximum(exchange - computation, 0) - 1e-12).all()
    assert (left <= exchange).all()
    none = exposed(cases, exchange, np.zeros(530), hides)
    assert none == pytest.approx(exchange)
    assert np.array_equal(exposed(cases, exchange, computation, ~hides), exchange)


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


def chance(cases: Cases, lacking: bool = False) -> np.ndarray:
    return chance_of_slow(cases, saved_fit(), np.full(len(cases), lacking))


def counted(tp: int, dp: int, pp: int, per_node: int) -> int:
    """Count the links to another node: tensors, then replicas, then stages on neighbours."""
    ranks = tp * dp
    return sum(
        rank // per_node != (rank + ranks) // per_node
        for stage in range(pp - 1)
        for rank in range(stage * ranks, (stage + 1) * ranks)
    )


def test_links_are_those_that_are_counted_rank_by_rank(cases: Cases) -> None:
    found = links_across(cases)
    shapes = np.stack([cases.tp, cases.dp, cases.pp, cases.gpus_per_node], axis=1).astype(int)
    assert found.tolist() == [counted(*shape) for shape in shapes.tolist()]
    assert len(set(found)) > 10


def test_only_runs_of_several_stages_replicas_and_nodes_can_be_slow(cases: Cases) -> None:
    able = (cases.pp > 1) & (cases.dp > 1) & (cases.nodes > 1)
    assert (chance(cases) > 0).tolist() == able.tolist()
    assert (chance(cases, lacking=True)[able] == WITHOUT_MEMORY).all()
    assert not chance(replace(cases, framework=np.full(len(cases), "fsdp")), lacking=True).any()


def test_of_a_cluster_that_nobody_knows_any_run_with_a_pipeline_may_be_slow(cases: Cases) -> None:
    unknown = replace(saved_fit(), parameters=replace(saved_fit().parameters, **OWN_NETWORK))
    none = np.zeros(len(cases), bool)
    found = chance_of_slow(cases, unknown, none)
    able = (cases.pp > 1) & (cases.nodes > 1)
    assert (found > 0).tolist() == able.tolist()
    assert found[able] == pytest.approx(OWN_NETWORK["slow_cluster"], rel=0.4)
    quick, slow = forecast(cases, saved_fit()), forecast(cases, unknown)
    wider = (slow.high / slow.low > quick.high / quick.low)[able & (quick.chance < 0.01)]
    assert wider.all()


def test_a_cluster_without_known_runs_has_the_shares_of_its_own_collectives() -> None:
    rows = pd.read_csv(PUBLISHED / "collectives_upto2nodes.csv")
    own = rows[rows["network"].str.contains("EFA", na=False) & (rows["collective"] != "all_reduce")]
    reached = own.groupby("nodes")["busbw_GBps"].mean()
    inside, across = (get_gpu("H100").inside_bandwidth / 1e9, 400)
    assert OWN_NETWORK["inside_share"] == pytest.approx(reached[1] / inside, rel=0.02)
    assert OWN_NETWORK["across_share"] == pytest.approx(reached[2] / across, rel=0.02)


def test_runs_whose_links_are_independent_stay_quick_together(cases: Cases) -> None:
    """Twice the links: the chance that none is slow is squared; never more than certain."""
    some = cases.select((cases.pp > 1) & (cases.dp > 1) & (cases.nodes > 2))
    twice = replace(some, dp=2 * some.dp)
    doubled = links_across(twice) == 2 * links_across(some)
    assert doubled.sum() > 50
    assert 1 - chance(twice)[doubled] == pytest.approx((1 - chance(some)[doubled]) ** 2)
    many, more = (replace(some, dp=factor * some.dp) for factor in (500, 1000))
    assert ((chance(some) < chance(many)) & (chance(many) <= 1)).all()
    assert (chance(many) == chance(more)).all()  # further than runs tell of


def test_whole_optimizer_states_make_slow_runs_likelier(cases: Cases) -> None:
    able = cases.select((chance(cases) > 0) & (cases.micro_batches > 8))
    whole, sharded = (replace(able, zero=np.full(len(able), float(zero))) for zero in (0, 1))
    assert (chance(whole) > chance(sharded)).all()


MESSAGE = 1e9  # bytes, beside which latencies are small


def cases_on(network: str, gpus_per_node: int = 1, **options: object) -> Cases:
    found = scale("llama3-1b", "A100", 2, gpus_per_node=gpus_per_node, network=network,
                  sequence=2048, **options)  # fmt: skip
    return found.outlook.cases


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("network", ["1GbE", "10GbE", "25GbE", "100GbE", "4x100GbE"])
def test_an_all_reduce_on_two_nodes_takes_as_long_as_in_a_forecast(
    network: str, framework: str
) -> None:
    cases = cases_on(network, framework=framework)
    both = cases.select(np.flatnonzero(cases.dp == 2)[:1])
    each = group_rate(both, saved_fit().of(framework), *shard_group(both))
    alone = cluster_of("A100-PCIe", nodes=2, gpus_per_node=1, network=network)
    expected = MESSAGE / alone.effects.between_bandwidth
    assert 2 * MESSAGE * each == pytest.approx(expected, rel=0.02)
    assert alone.cost.seconds(MESSAGE) == pytest.approx(expected, rel=0.02)


def test_networks_with_rdma_count_as_they_were_fitted() -> None:
    for cases in (observed().cases, cases_on("8x400GbIB", 8), cases_on("8x400 Gb/s RoCE", 8)):
        assert np.isinf(cases.sockets).all()


def test_a_gpu_that_is_usually_joined_by_ethernet_is_so_here() -> None:
    usual = LayoutQuestion("llama3-1b", "T4", 2, gpus_per_node=4, precision="fp16")
    assert usual.joined.socket_bandwidth == get_interconnect("50GbE").bandwidth.value


def test_sockets_never_help_and_slow_down_all_that_crosses_nodes() -> None:
    cases = observed().cases
    cases = cases.select(cases.nodes > 1)
    slow = replace(cases, sockets=np.full(len(cases), 1.25e9))
    fast, found = step(cases, saved_fit()), step(slow, saved_fit())
    assert (found.seconds >= fast.seconds).all()
    assert (found.reduction > fast.reduction)[cases.dp > cases.gpus_per_node].all()
    assert (found.transfers > fast.transfers)[cases.pp > 1].all()
    assert (found.tensor > fast.tensor)[cases.tp > cases.gpus_per_node].all()


def test_a_stage_sends_its_activations_through_the_port_of_its_node() -> None:
    cases = observed().cases
    cases = cases.select(cases.pp > 1)
    one = cases.select(np.flatnonzero((cases.nodes > 1) & (cases.tp * cases.dp >= 8))[:1])
    one = replace(one, across=np.full(1, 1e15))  # a line on which nothing takes long
    slow = replace(one, sockets=np.full(1, 1e9))
    times = step(slow, saved_fit()).transfers - step(one, saved_fit()).transfers
    each = 8 / one.tp * 2 * one.tokens * one.hidden / 1e9  # split sequences: a tensor's part
    assert float(one.sequence_parallel[0]) == 1
    many = times / each
    assert many == pytest.approx(np.round(many), rel=1e-5)
    assert many >= 2


def test_no_cluster_with_sockets_is_the_one_that_was_fitted() -> None:
    home = observed().cases
    home = home.select(home.nodes > 1)
    over, elsewhere = replace(home, sockets=home.across), replace(home, across=home.across / 4)
    assert (spread_of(over, saved_fit()) == spread_of(elsewhere, saved_fit())).all()
    assert (spread_of(over, saved_fit()) > spread_of(home, saved_fit())).any()


@pytest.mark.parametrize(
    ("words", "gbits"),
    [
        ("10GbE per node", 9.35),
        ("8x 100 GbE", 8 * 22),
        ("100GbE per GPU", 8 * 22),
        ("gVNIC 200 Gb/s per node", 22),
        ("AWS EFA (3200 Gb/s per node nominal)", np.inf),
        ("Selene: 8x HDR InfiniBand 200 Gb/s per node, fat-tree", np.inf),
        ("RoCE", np.inf),
        ("not stated", np.inf),
    ],
)
def test_rows_of_tables_say_tcp_in_words(words: str, gbits: float) -> None:
    found = case(Row(2, RUN | {"network": words}))
    assert found["sockets"] == pytest.approx(gbits * 1e9 / 8)


MIXTURE = {
    "model": "qwen3-235b-a22b", "params_b": "", "layers": "", "hidden": "", "heads": "",
    "kv_heads": "", "ffn": "", "vocab": "", "num_gpus": "64", "tp": "1", "pp": "1", "dp": "64",
}  # fmt: skip


def dispatched(ep: int, framework: str) -> float:
    """Return bytes that a GPU sends to experts for a micro batch, over bytes of its activations."""
    cells = RUN | MIXTURE | {"ep": str(ep), "framework": framework}
    one = Cases.of(**{**case(Row(2, cells)), "across": 8 / LINE, "sockets": np.inf})
    return float(dispatch_seconds(one, np.ones(1), np.ones(1))[0])


def test_tokens_go_to_experts_inside_nodes_and_across_them() -> None:
    """Of 8 copies, there and back in both passes; inside and across, a GPU sends 1 byte/s here."""
    assert dispatched(8, "megatron") == pytest.approx(4 * 8 * 7 / 8)
    assert dispatched(64, "megatron") == pytest.approx(4 * 8 * 56 / 64)
    hit = 8 * (1 - (7 / 8) ** 8)  # nodes with one of the 8 experts, of 8 nodes
    assert dispatched(64, "nemo") == pytest.approx(4 * hit * 7 / 8)
    assert dispatched(1, "nemo") == 0


def hybrid(cases: Cases, shard: float) -> Cases:
    return replace(cases, shard=np.full(len(cases), shard))


def test_sharding_over_all_replicas_is_no_hybrid_sharding() -> None:
    cases = cases_on("100GbE", 8, framework="fsdp")
    whole = cases.select(np.flatnonzero(cases.shard == 0))
    asked = hybrid(whole, whole.replicas[0])
    assert seconds(asked) == pytest.approx(seconds(whole), rel=1e-12)
    values = saved_fit()
    none = np.zeros(len(whole))
    assert footprint(asked, values, none) == pytest.approx(footprint(whole, values, none))


def test_the_copies_of_a_shard_send_what_the_plain_count_of_messages_says() -> None:
    """Across four nodes of eight, a node's ranks send their own shard, twice, and no parameters."""
    values = saved_fit().of("fsdp")
    found = scale("llama3-1b", "A100", 4, gpus_per_node=8, network="100GbE", framework="fsdp")
    every = replace(found.outlook.cases, inside=np.full(len(found.outlook.cases), np.inf))
    whole, hsdp = (every.select(np.flatnonzero(every.shard == one)[:1]) for one in (0, 8))
    assert group_rate(hsdp, values, *shard_group(hsdp)) == 0  # all inside
    over_all = group_rate(whole, values, *shard_group(whole))
    assert copies_rate(hsdp, values) == pytest.approx(over_all)
    assert copies_rate(whole, values) == 0
    sent = {}
    for shard in (0, 8):
        layout = Layout(dp=32, zero=3, shard=shard)
        every_one = exchanges(found.model.shape, layout, "mixed")
        among = [one for one in every_one if one.axis != "shard"]
        ranks = 8 if shard else 1  # of a node, each with a shard of its own
        sent[shard] = ranks * sum(
            (1 + (one.primitive == "all-reduce")) * one.bytes * one.times for one in among
        )
    (hsdp_layer, _), (layer, _) = (gathered_seconds(one, values) for one in (hsdp, whole))
    assert hsdp_layer / layer == pytest.approx(sent[8] / sent[0], rel=1e-6)


@pytest.mark.parametrize("vocab", [1_000, 256_000])
@pytest.mark.parametrize("tied", [False, True])
def test_all_parameters_are_gathered_by_fsdp_those_of_embedding_and_head_too(vocab, tied) -> None:
    """As many bytes as the plain count of exchanges has, which is that of the played iteration."""
    values = saved_fit().of("fsdp")
    small = LayoutQuestion("llama3-1b").model
    model = replace(small, vocab=vocab, tied=tied)
    asked = LayoutQuestion(model, "A100", 4, network="10GbE", framework="fsdp")
    cases = ranking_of(asked, Layout(dp=32, zero=3)).outlook.cases
    layer, others = gathered_seconds(cases, values)
    counted = exchanges(model.shape, Layout(dp=32, zero=3), "mixed")
    sent = sum(one.bytes * one.times for one in counted)
    found = cases.layers * layer + others.sum(axis=1)
    rate = group_rate(cases, values, *shard_group(cases))
    assert found == pytest.approx(rate * sent, rel=1e-3)


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


@pytest.mark.parametrize(("recomputed", "more"), [("none", 1), ("full", 1), ("selective", 5 / 4)])
def test_tokens_go_to_experts_as_the_plain_count_of_messages_says(recomputed, more) -> None:
    """Once more than it says with selective recomputation, which the forecast has copies out of."""
    question = LayoutQuestion("mixtral-8x7b", "H100", 1, framework="megatron")
    layout = Layout(dp=8, ep=8, zero=1, recomputation=recomputed)
    cases = ranking_of(question, layout).outlook.cases
    every = exchanges(question.model.shape, layout, "mixed")
    sent = sum(one.bytes * one.times for one in every if one.axis == "ep") * 7 / 8
    unit = np.full(1, 2.0) * cases.tokens * cases.hidden
    seconds = cases.layers * dispatch_seconds(cases, unit, np.ones(1))  # at a byte a second
    assert seconds == pytest.approx(more * sent, rel=1e-6)


@pytest.mark.parametrize(
    "name",
    ["llama3-8b", "gpt3-175b", "mixtral-8x7b", "llama4-maverick", "nemotron-h-8b", "mamba2-2.7b"],
)
def test_tensors_exchange_what_the_plain_count_of_messages_says(name) -> None:
    """Twice per part and pass: layers of hybrid models have one part. Embedding and head beside."""
    question = LayoutQuestion(name, "H100", 1, framework="nemo")
    layout = Layout(dp=2, tp=4, zero=1)
    cases = ranking_of(question, layout).outlook.cases
    every = exchanges(question.model.shape, layout, "mixed")
    sent = sum(2 * one.bytes * one.times for one in every if one.axis == "tp")
    assert 0.97 * sent < cases.layers * tensor_bytes(cases) < sent


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("llama3-8b", 4),
        ("qwen3-30b-a3b", 8),  # of four heads of keys
        ("gpt-oss-20b", 1),
        ("deepseek-v3", 8),
        ("nemotron3-nano-30b-a3b", 2),
    ],
)
@pytest.mark.parametrize(("recomputed", "share"), [("none", 9 / 10), ("full", 12 / 13)])
def test_keys_and_values_go_round_as_the_plain_count_of_messages_says(
    name, tp, recomputed, share
) -> None:
    """Heads of any size, latents, and layers without any; gradients go one hop more, home."""
    question = LayoutQuestion(name, "H100", 8, framework="nemo", cp=4)
    layout = Layout(dp=16 // tp, tp=tp, cp=4, zero=1, recomputation=recomputed)
    cases = ranking_of(question, layout).outlook.cases
    every = exchanges(question.model.shape, layout, "mixed")
    sent = sum(one.bytes * one.times for one in every if one.axis == "cp")
    found = cases.layers * key_bytes(cases)
    assert found == pytest.approx(sent * share, rel=1e-6)


def test_hops_are_those_of_the_files_that_they_are_said_to_be_of() -> None:
    assert protocols()["InfiniBand"].latency.value == USUAL_HOP
    assert pytest.approx(hop_seconds("NVLINK", "Ring", "LL128")) == HOP


def test_a_state_space_scores_no_tokens() -> None:
    """Where attention keeps its scores: of 52 layers of Nemotron-H 8B four have any."""
    shares = {}
    for name in ("mamba2-2.7b", "nemotron-h-8b", "llama3-8b"):
        question = LayoutQuestion(name, "A100", 1, framework="megatron")
        cases = ranking_of(question, Layout(dp=8, zero=1)).outlook.cases
        whole = replace(cases, attending=np.ones(1))
        shares[name] = float((score_seconds(cases) / score_seconds(whole))[0])
    assert shares == pytest.approx({"mamba2-2.7b": 0, "nemotron-h-8b": 4 / 52, "llama3-8b": 1})


def test_a_rack_of_nvlink_changes_no_latency_between_racks() -> None:
    cells = RUN | {"gpu": "GB200", "gpus_per_node": "4", "network": "8x400GbIB"}
    cells |= {"num_gpus": "144", "dp": "36", "global_batch_seqs": "144"}
    assert case(Row(2, cells))["hop"] == get_interconnect("8x400GbIB").latency.value


@pytest.mark.parametrize(
    ("words", "network", "least", "most"),
    [
        ("NDR 8x400 Gb/s", "8x400GbIB", 0.8, 1.4),
        ("8x400 Gb/s RoCE", "8x400 Gb/s RoCE", 0.8, 1.4),
        ("100GbE TCP", "100GbE", 0.6, 1.4),
        ("EFA 3200 Gb/s", "3200 Gb/s EFA", 0.5, 1.4),  # hops of which open tables say little
    ],
)
def test_gathers_round_many_ranks_take_as_long_as_measured_collectives_say(
    words, network, least, most
) -> None:
    """A layer of 436 MB on 16 to 4,096 GPUs: latency decides beyond some hundred."""
    values, model = saved_fit().of("fsdp"), LayoutQuestion("llama3-8b").model
    rows = {"collective": "all_gather", "gpu": "H100", "gpus_per_node": 8, "size_bytes": 436e6}
    counts = (2, 4, 16, 64, 128, 512)
    asked = pd.DataFrame([{**rows, "network": words, "nodes": n} for n in counts])
    for nodes, measured in zip(counts, collectives(asked)["time_us"] / 1e6, strict=True):
        question = LayoutQuestion(model, "H100", nodes, framework="fsdp", network=network)
        cases = ranking_of(question, Layout(dp=8 * nodes, zero=3)).outlook.cases
        (layer, _), (late, _) = gathered_seconds(cases, values), gather_latency(cases)
        assert least < (layer + late) / 3 / measured < most


def test_shards_that_cross_the_end_of_a_node_have_no_forecast() -> None:
    asked = LayoutQuestion("llama3-1b", "A100", 3, gpus_per_node=8, framework="fsdp")
    layouts = {shard: Layout(dp=24, zero=3, shard=shard) for shard in (4, 6, 8)}
    known = {shard: ranking_of(asked, one) is not None for shard, one in layouts.items()}
    assert known == {4: True, 6: False, 8: True}


@pytest.mark.parametrize(
    ("gpu", "per_node", "nodes", "framework", "offered"),
    [
        ("H100", 8, 4, "fsdp", {(1, 0), (1, 8)}),
        ("GB200", 4, 32, "fsdp", {(1, 0), (1, 4), (1, 64)}),  # hosts of 4 that NVLink joins
    ],
)
def test_hybrid_sharding_is_looked_at_within_hosts_and_within_nvlink(
    gpu: str, per_node: int, nodes: int, framework: str, offered: set[tuple[int, int]]
) -> None:
    found = scale("llama3-8b", gpu, nodes, gpus_per_node=per_node, framework=framework)
    cases = found.outlook.cases
    assert set(zip(cases.tp.tolist(), cases.shard.tolist(), strict=True)) == offered


def test_hybrid_sharding_beside_tensor_parallelism_stays_within_a_node() -> None:
    cases = scale("llama3-8b", "H100", 4, framework="fsdp-compiled").outlook.cases
    hybrid_ones = cases.select(np.flatnonzero(cases.shard > 0))
    assert set((hybrid_ones.tp * hybrid_ones.shard).tolist()) == {8}
    assert len(set(hybrid_ones.tp.tolist())) > 1
