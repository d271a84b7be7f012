"""Exchanges of a step beside plain counts of messages, measured collectives, and TCP."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.collectives import collectives
from ddlnb.calibration.nccl import hop_seconds
from ddlnb.clusters.named import cluster_of
from ddlnb.hardware.catalogue import get_interconnect
from ddlnb.hardware.machine import protocols
from ddlnb.parallelism.forecast.cases import USUAL_HOP, Cases
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
    transfers_beyond,
)
from ddlnb.parallelism.forecast.forecast import (
    footprint,
    forecast,
    spread_of,
)
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, saved_fit
from ddlnb.parallelism.forecast.layouts import ranking_of, scale
from ddlnb.parallelism.forecast.published import FOUNDRY, H100, observed
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.row import Row
from ddlnb.parallelism.forecast.step import (
    step,
)
from ddlnb.parallelism.forecast.table import case
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.volumes import exchanges
from tests.parallelism.forecast.tables import RUN


@pytest.fixture(scope="module")
def cases() -> Cases:
    return observed().cases


def seconds(cases: Cases) -> np.ndarray:
    return step(cases, saved_fit()).seconds


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
    cells = RUN | MIXTURE | {"ep": str(ep), "framework": framework, "source_date": "2021"}
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


def test_no_pipeline_outruns_the_links_between_its_stages() -> None:
    """Transfers that go beside computation take what they take where that is longer."""
    cells = {"framework": "nemo", "tp": "4", "pp": "4", "dp": "1", "vpp": "4", "micro_batch": "1"}
    cells |= {"grad_accum": "256", "activation_checkpointing": "none"}
    for network, holds_up in (("8x400 Gb/s IB", False), ("100GbE", True)):
        columns = case(Row(2, RUN | cells | {"network": network}))
        one = Cases.of(**columns)
        sent = 4 * 2 * columns["sequence"] * columns["hidden"] / 4  # by the ranks of a stage
        least = 256 * (2 * 4 - 1) * sent / columns["across"]
        computed = np.ones(1)
        assert (transfers_beyond(one, computed) > 0) == (least > computed) == holds_up
        assert forecast(one).step.seconds >= least
    assert not transfers_beyond(Cases.of(**columns | {"vpp": 1}), np.zeros(1))
