"""Whatever is asked of a model on machines, memory, throughput and verdict are the same."""

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import ddlnb
from ddlnb.advice.advise import advise_on
from ddlnb.advice.layouts import Splits
from ddlnb.advice.machines import gpu_of, network_of
from ddlnb.advice.question import AdviceQuestion
from ddlnb.advice.sharded import Sharded, seconds_of
from ddlnb.advice.splits import PricedQuestion, posed, verdict_of
from ddlnb.cli.advise import advice_page
from ddlnb.cli.layouts import app
from ddlnb.clusters.file import get_cluster
from ddlnb.clusters.heterogeneous import Heterogeneity
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.simulator.profiles import workload_on
from ddlnb.units import GIB
from ddlnb.workloads.roofline import estimate

CLUSTERS = {
    "A100": {"nodes": 4, "gpus_per_node": 8, "network": "200GbIB"},
    "H100": {"nodes": 8, "gpus_per_node": 8, "network": "8x400GbIB"},
    "V100": {"nodes": 2, "gpus_per_node": 8, "network": "100GbE"},
    "RTX 2080 Ti": {"nodes": 4, "gpus_per_node": 4, "network": "10GbE"},
}
NOTHING_FITS = {("llama3-8b", "RTX 2080 Ti"): {"nodes": 2}}
LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
OWN = """
import torch
from torch import nn
import ddlnb

def batch(samples, seed):
    return (torch.randn(samples, 256, generator=torch.Generator().manual_seed(seed)),)

def loss(module, batch):
    return module(batch[0]).square().mean()

layers = [nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(4)]
task = ddlnb.task(nn.Sequential(*layers), batch=batch, loss=loss, name="own")
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "llama-7b.json").write_text(json.dumps(LLAMA_7B))
    (folder / "own.py").write_text(OWN)
    own, config = f"{folder}/own.py:task", f"{folder}/llama-7b.json"
    names = ("llama3-8b", "resnet50", "bert-large", "gpt2-xl")
    return {"own": own, "config": config} | {name: name for name in names}


def test_a_larger_batch_takes_the_same_in_advice_and_in_a_forecast_of_it():
    batch, on = 128, "survey-10GbE"
    advised = ddlnb.advise("resnet50", on, draws=0, most_plans=0).rows
    larger = advised[advised["option"].str.startswith(f"batch {batch} per GPU")].iloc[0]
    method = larger["option"].rpartition(", ")[2]
    told = ddlnb.forecast("resnet50", on, methods=method, local_batch=batch, draws=0)
    forecast = told.rows.set_index("method").loc[method, "throughput_samples_per_s"]
    assert larger["throughput_samples_per_s"] == pytest.approx(forecast)
    kept, other = (workload_on("resnet50", get_cluster(on), one) for one in (64, batch))
    assert kept.source in other.source
    assert kept.spread < other.spread < estimate(kept, "RTX2080Ti").spread
    assert 1.9 < other.compute_seconds / kept.compute_seconds < 2
    rows = ddlnb.advise("bert-large", "v100-nvlink", local_batch=64, draws=0, most_plans=0).rows
    larger = rows[rows["option"].str.startswith("batch 128 per GPU")].iloc[0]
    assert larger["over_best"] < 1.02  # its profile, of that batch alone, is a guess
    guessed = workload_on("bert-large", get_cluster("v100-nvlink"), 64)  # its profile is a guess
    assert "data sheet of V100" in guessed.source


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("gpu", CLUSTERS)
@pytest.mark.parametrize("model", ["config", "llama3-8b"])
def test_every_answer_on_layouts_says_the_same(models, model, gpu):
    named, machines = models[model], CLUSTERS[gpu] | NOTHING_FITS.get((model, gpu), {})
    cluster = ddlnb.cluster_of(gpu, **machines)
    asked = PricedQuestion(named, gpu, **machines)
    answers = [
        lambda: ddlnb.advise(named, cluster, draws=0).verdict,
        lambda: ddlnb.forecast(named, cluster, draws=0).verdict,
        lambda: ddlnb.scaling(named, cluster, draws=0).verdict,
        lambda: Splits((asked,)).verdict,
    ]
    if (model, gpu) in NOTHING_FITS:
        said = [refusal(one) for one in answers]
        assert said == [said[0]] * len(said)
        assert "no layout of llama3-8b fits on 8 x RTX2080Ti: the least needs 17 GiB" in said[0]
    else:
        require_equal([one() for one in answers])


@pytest.mark.parametrize("gpu", CLUSTERS)
@pytest.mark.parametrize(
    "model", ["own", "resnet50", "bert-large", pytest.param("gpt2-xl", marks=pytest.mark.slow)]
)
def test_every_answer_on_replicas_says_the_same(models, model, gpu):
    named, cluster = models[model], ddlnb.cluster_of(gpu, **CLUSTERS[gpu])
    question = posed(AdviceQuestion(named, cluster), cluster, unused={})
    found = [
        verdict_of(question),
        Sharded(question).verdict,
        ddlnb.forecast(named, cluster, "MG-WFBP", draws=0).verdict,
        ddlnb.scaling(named, cluster, "MG-WFBP", gpus=cluster.workers, draws=0).verdict,
    ]
    require_equal(found)


@pytest.mark.parametrize("precision", ["", "fp32"])
def test_replicas_of_known_layers_are_one_thing_in_the_table_and_the_verdict(tmp_path, precision):
    small = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 8, "num_key_value_heads": 8}
    (config := tmp_path / "config.json").write_text(json.dumps(LLAMA_7B | small))
    cluster = ddlnb.cluster_of("A100", nodes=2)
    asked = {"sequence": 2048, "local_batch": 1, "precision": precision, "draws": 0}
    found = ddlnb.forecast(str(config), cluster, "DDP", **asked)
    assert found["throughput_samples_per_s"].tolist() == [found.verdict.samples_per_s]
    assert f"2,048 tokens in {precision or 'its own precision'}" in found.verdict.said[0]


def test_what_a_cluster_file_measured_counts_for_large_models_too():
    by_name = ddlnb.cluster_of("H100", 4)
    assert network_of(by_name) == get_interconnect(by_name.network)
    unlimited = by_name.with_effects(between_bandwidth=math.inf)
    assert network_of(unlimited) == get_interconnect(by_name.network)
    rates = []
    for own in ("1 Gb/s", "200 Gb/s", "1000 Gb/s"):
        measured = by_name.with_effects(between_bandwidth=own)
        bandwidth = network_of(measured).bandwidth.value
        assert bandwidth == pytest.approx(measured.effects.between_bandwidth)
        rates.append(ddlnb.forecast("llama3-8b", measured, draws=0).verdict.samples_per_s)
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] / 10
    tcp = ddlnb.cluster_of("A100", 2, network="400GbE").with_effects(between_bandwidth="90 Gb/s")
    assert network_of(tcp).bandwidth.value == pytest.approx(tcp.effects.between_bandwidth)
    rates = []
    for own in (by_name.effects.inside_bandwidth / 20, by_name.effects.inside_bandwidth, math.inf):
        measured = by_name.with_effects(inside_bandwidth=own)
        rates.append(ddlnb.forecast("llama3-8b", measured, draws=0).verdict.samples_per_s)
    assert rates[0] < 0.9 * rates[1]
    slot = ddlnb.cluster_of("RTX 3090", 2)
    slow = slot.with_effects(inside_bandwidth=slot.effects.inside_bandwidth / 10)
    assert gpu_of(slot, get_gpu("RTX 3090")) == get_gpu("RTX 3090")
    of_slot = gpu_of(slow, get_gpu("RTX 3090")).inside_bandwidth
    assert of_slot == pytest.approx(get_gpu("RTX 3090").inside_bandwidth / 10)
    assert (
        rates[1] == rates[2] == ddlnb.forecast("llama3-8b", by_name, draws=0).verdict.samples_per_s
    )


@pytest.mark.parametrize(
    ("otherwise", "named"),
    [
        ({"heterogeneity": Heterogeneity(((0, 2.0),))}, "--slow"),
        ({"topology": "fat-tree(4)"}, "--topology"),
    ],
)
def test_what_only_data_parallelism_plays_of_a_cluster_is_played_or_refused(otherwise, named):
    cluster = replace(ddlnb.cluster_of("H100", 4), **otherwise)
    with pytest.raises(InputError, match=rf"and then [a-z ]* \({named}\) cannot be given"):
        ddlnb.forecast("llama3-8b", cluster, draws=0)
    found = ddlnb.forecast("gpt2", cluster, draws=0)
    assert set(found.rows["method"]) >= {"DDP", "MG-WFBP"}


def test_advice_on_replicas_has_the_verdict_of_its_question(models):
    cluster = ddlnb.cluster_of("V100", **CLUSTERS["V100"])
    found = ddlnb.advise(models["own"], cluster, draws=0, most_plans=0)
    require_equal([found.verdict, ddlnb.forecast(models["own"], cluster, "DDP", draws=0).verdict])
    ddp = found.options.set_index("option").loc["DDP"]
    assert ddp["throughput_samples_per_s"] == found.verdict.samples_per_s
    assert ddp["memory_bytes"] == found.verdict.memory_bytes


def test_what_no_gpu_holds_is_sharded_and_no_method_is_recommended(models):
    cluster = ddlnb.cluster_of("V100", nodes=2, gpus_per_node=8, network="100GbE")
    known = posed(AdviceQuestion(models["own"], cluster), cluster, unused={})
    states = known.footprint.fixed
    asked = replace(known, gpu_memory=0.8 * states)
    rows = Sharded(asked).rows.set_index("layout")
    found = verdict_of(asked)
    assert found.fits is False
    assert rows["fits"].tolist() == [True, True, True, False]  # all but plain data parallelism
    assert found.way == rows.index[0]
    assert found.samples_per_s == rows["throughput_samples_per_s"].iloc[0]
    shard = {one.split()[1]: row["memory_bytes"] for one, row in rows.iterrows() if "zero" in one}
    each = known.footprint.per_sample * 32
    # of 16 bytes per parameter, ZeRO-1 leaves 8 + 8/16, ZeRO-2 4 + 12/16 (arXiv 1910.02054)
    assert shard["zero1"] - each == pytest.approx(states * (8 + 8 / 16) / 16, rel=1e-3)
    assert shard["zero2"] - each == pytest.approx(states * (4 + 12 / 16) / 16, rel=1e-3)
    advice = advise_on(asked, lossy=(), most_plans=0, draws=0)
    assert advice.sentences == ()
    assert advice.tables[-1] == Sharded(asked).tables[0]
    page = advice_page(advice)
    assert "How to shard it" in page
    assert all(one["layout"] in page for one in advice.tables[-1].rows)
    assert "is to be taken" not in page


def test_shards_are_played_on_the_links_of_the_cluster_as_fitted(models):
    cluster = ddlnb.cluster_of("V100", nodes=2, gpus_per_node=8, network="100GbE")
    half = cluster.with_effects(between_bandwidth=cluster.effects.between_bandwidth / 2)
    seconds = {}
    for name, on in {"whole": cluster, "half": half}.items():
        rows = Sharded(posed(AdviceQuestion(models["own"], on), on, unused={})).rows
        seconds[name] = rows.set_index("zero")["iteration_seconds"]
    assert (seconds["half"] > 1.5 * seconds["whole"]).all()  # of DDP as of every degree of ZeRO


@pytest.mark.thorough
def test_scaling_of_what_no_gpu_holds_has_layouts_of_the_sizes_that_hold_one(models, monkeypatch):
    cluster = ddlnb.cluster_of("V100", nodes=2, gpus_per_node=8, network="100GbE")
    known = posed(AdviceQuestion(models["own"], cluster), cluster, unused={})
    for share, least in [(0.8, 2), (0.2, 8), (0.001, None)]:
        asked = replace(known, gpu_memory=share * known.footprint.fixed)
        monkeypatch.setattr("ddlnb.advice.scaling.answered", lambda *_, a=asked, **__: Sharded(a))
        found = ddlnb.scaling(models["own"], cluster)
        require_equal([found.verdict, Sharded(asked).verdict])
        sizes = [one for one in (2, 4, 8, 16) if least and one >= least]
        assert found.rows["gpus"].tolist() == sizes
        for row in found.rows.to_dict("records"):
            own = Sharded(replace(asked, cluster=cluster.with_workers(row["gpus"]))).verdict
            assert (row["method"], row["throughput_samples_per_s"]) == (own.way, own.samples_per_s)
        assert bool(found.sentences) == bool(found.tables) == bool(sizes)
        if sizes:  # 8 GPUs are one node, 16 two
            assert (found.beyond, found.bottleneck) == (16, "the bandwidth between nodes")
            quick = ddlnb.cluster_of("V100", nodes=2, gpus_per_node=8, network="8x400GbIB")
            assert seconds_of(replace(asked, cluster=quick), 3) < seconds_of(asked, 3) / 2


@pytest.mark.parametrize("model", ["config", "own"])
def test_an_iteration_that_is_played_says_the_verdict(models, model):
    """With the layout that is the fastest, its forecast and its memory are those of the verdict."""
    machines = CLUSTERS["A100"]
    cluster = ddlnb.cluster_of("A100", **machines)
    found = ddlnb.forecast(models[model], cluster, draws=0).verdict
    layout = found.way if model == "config" else f"dp{cluster.workers}"
    on = ["--gpu", "A100", "--nodes", "4", "--network", machines["network"]]
    ask = ["iteration", "--model", models[model], *on, "--layout", layout]
    done = CliRunner().invoke(app, ask, env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    assert all(one in done.output for one in found.said)
    if model == "config":
        [row] = csv.DictReader(io.StringIO(CliRunner().invoke(app, [*ask, "--csv"]).stdout))
        rate = found.samples_per_s * LLAMA_7B["max_position_embeddings"] / cluster.workers
        assert float(row["forecast tokens/s/GPU"]) == round(rate)
        assert float(row["GiB"]) == round(found.way_bytes / GIB, 1)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("model", "samples"), [("config", 1024), ("llama3-8b", 512), ("own", 256), ("bert-large", 64)]
)
def test_each_of_several_kinds_alone_is_what_every_answer_says_of_it(models, model, samples):
    """The same throughput and bytes of a GPU, at the same batch, in the same nodes."""
    counts = {"A100": 8, "H100": 8}
    large = model in ("config", "llama3-8b")
    found = ddlnb.balance(models[model], counts, samples=samples).rows.set_index("way")
    for name, count in counts.items():
        cluster = ddlnb.cluster_of(name, nodes=1, gpus_per_node=count)
        batch = samples // count if large else None
        verdict = ddlnb.forecast(
            models[model], cluster, "all" if large else "DDP", local_batch=batch, draws=0,
            precision="bf16",
        ).verdict  # fmt: skip
        alone = found.loc[f"only {get_gpu(name).name}"]
        assert alone["samples_per_second"] == pytest.approx(verdict.samples_per_s, rel=1e-9)
        assert alone["held_gib"] * GIB == pytest.approx(verdict.way_bytes)
        assert alone["fits"]


def refusal(ask):
    with pytest.raises(InputError) as refused:
        ask()
    return str(refused.value)


def require_equal(verdicts):
    assert verdicts == [verdicts[0]] * len(verdicts)  # equal, not near
    assert verdicts[0].memory_bytes > 0
    assert verdicts[0].fits is not None
    assert verdicts[0].samples_per_s > 0 or "fit" in verdicts[0].said[1]
