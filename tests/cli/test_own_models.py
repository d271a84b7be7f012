"""Models of one's own on the command line and in Python, as a new user would try them."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import ddlnb
from ddlnb.cli.app import app
from ddlnb.errors import InputError, ModelError, UnknownName
from ddlnb.simulator import profiles
from ddlnb.workloads.resolve import get_task as task_of

MINE = """
import torch
import ddlnb

def draw(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, 512, generator=generator),)

def loss(module, batch):
    return module(batch[0]).square().mean()

wide = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 9))
task = ddlnb.task(wide, batch=draw, loss=loss, name="mine", local_batch=256)
"""
A100 = ["--gpu", "A100", "--nodes", "2", "--network", "100GbE"]
FOUR = """
import torch
from torch import nn
import ddlnb

def seeded(seed):
    return torch.Generator().manual_seed(seed)

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 17, 5, stride=3)
        self.apart = nn.Conv2d(17, 17, 3, groups=17, bias=False)
        self.last = nn.Linear(17, 7)

    def forward(self, images):
        return self.last(torch.relu(self.apart(self.first(images))).mean((2, 3)))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 500, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.block(self.words(tokens)))

class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(1000, 32, mode="mean")
        self.top = nn.Sequential(nn.Linear(45, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, items, numbers):
        return self.top(torch.cat([self.bag(items), numbers], 1))

class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(20, 30), nn.Linear(40, 30)

    def forward(self, left, right):
        return self.one(left), self.other(right)

def images(count, seed):
    return torch.randn(count, 3, 33, 33, generator=seeded(seed)), torch.arange(count) % 7

def tokens(count, seed):
    return (torch.randint(0, 500, (count, 16), generator=seeded(seed)),)

def visits(count, seed):
    numbers = torch.randn(count, 13, generator=seeded(seed))
    return torch.randint(0, 1000, (count, 5), generator=seeded(seed)), numbers

def pairs(count, seed):
    return torch.randn(count, 20, generator=seeded(seed)), torch.randn(count, 40)

def labelled(module, batch):
    return nn.functional.cross_entropy(module(batch[0]), batch[1])

def next_token(module, batch):
    said = module(batch[0])[:, :-1].flatten(0, 1)
    return nn.functional.cross_entropy(said, batch[0][:, 1:].flatten())

def clicked(module, batch):
    return nn.functional.softplus(-module(*batch)).mean()

def apart(module, batch):
    one, other = module(*batch)
    return (1 - nn.functional.cosine_similarity(one, other)).mean()

odd = ddlnb.task(Odd(), batch=images, loss=labelled, name="odd")
tied = ddlnb.task(Tied(), batch=tokens, loss=next_token, name="tied")
recommender = ddlnb.task(Recommender(), batch=visits, loss=clicked, name="recommender")
twins = ddlnb.task(Twins(), batch=pairs, loss=apart, name="twins")
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "my.py"
    path.write_text(MINE)
    return f"{path}:task"


@pytest.fixture(scope="module")
def cluster():
    return ddlnb.cluster_of("A100", nodes=2, network="100GbE")


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("model", ["odd", "tied", "recommender", "twins", "config"])
def test_every_question_takes_every_model_and_has_one_verdict(model, tmp_path):
    (tmp_path / "four.py").write_text(FOUR)
    (tmp_path / "7b.json").write_text(json.dumps(CONFIG))
    named = f"{tmp_path}/7b.json" if model == "config" else f"{tmp_path}/four.py:{model}"
    found = ddlnb.forecast(named, ddlnb.cluster_of("A100", nodes=2, network="100GbE"), draws=0)
    layout = found.verdict.way if model == "config" else "dp16"
    quick = ["--draws", "0"]
    for ask in (
        ["advise", *A100, *quick, *([] if model == "config" else ["--plans", "0"])],
        ["forecast", *A100, *quick],
        ["forecast", "scaling", *A100, *quick],
        ["layouts", "scale", *A100],
        ["layouts", "iteration", *A100, "--layout", layout],
    ):
        done = CliRunner().invoke(app, [*ask, "--model", named], env={"COLUMNS": "400"})
        assert done.exit_code == 0, done.output
        assert all(one in done.output for one in found.verdict.said), ask
    share = ["--gpu", "4xA100", "--gpu", "4xH100"]
    done = CliRunner().invoke(app, ["layouts", "balance", *share, "--model", named])
    assert done.exit_code == 0, done.output


def test_a_profile_of_one_s_own_is_taken_if_it_is_of_the_same_model(mine, cluster, monkeypatch):
    traced = ddlnb.trace(mine, 256)
    kept = ddlnb.workloads.from_throughput(traced, 5e4, "my own log", hardware=cluster.hardware)
    monkeypatch.setattr(profiles, "_profiles", lambda *_: ["mine_b256_a100"])
    monkeypatch.setattr(profiles, "read_profile", lambda name: kept)
    assert profiles.workload_on(task_of(mine), cluster) == kept
    other = replace(kept, layers=kept.layers[::-1])
    monkeypatch.setattr(profiles, "read_profile", lambda name: other)
    assert "data sheet" in profiles.workload_on(task_of(mine), cluster).source


def test_half_precision_and_accumulation_gain_on_a_slow_network(mine):
    slow = ddlnb.cluster_of("A100", nodes=4, gpus_per_node=1, network="1GbE")

    def rate(**options):
        rows = ddlnb.forecast(mine, slow, "DDP", draws=0, **options)
        return rows["throughput_samples_per_s"].item()

    assert rate(gradients="fp16") > 1.5 * rate()
    assert rate(accumulate=4) > 2 * rate()


HERE = "two-cores-2-workers"  # of hardware that nobody knows


@pytest.mark.parametrize(
    ("model", "on", "options", "said"),
    [
        ("mine", "", {}, "estimated from the data sheet of A100-SXM4-80GB"),
        ("mine", "", {"throughput": 1e5}, "one GPU at 100000 samples/s"),
        ("mine", HERE, {"throughput": 1000}, "one worker at 1000 samples/s"),
        ("resnet50", "survey-10GbE", {"gpus": 8}, "fitted by ddlnb cluster fit survey"),
        ("resnet50", "survey-10GbE", {"local_batch": 5, "gpus": 8}, "seconds at batch 64 grown"),
        ("gpt2", "survey-10GbE", {"gpus": 8}, "data sheet of RTX2080Ti"),
    ],
)
def test_a_forecast_says_where_its_seconds_are_from(mine, cluster, model, on, options, said):
    found = ddlnb.forecast(mine if model == "mine" else model, on or cluster, ["DDP"],
                           draws=0, **options)  # fmt: skip
    assert said in found.attrs["seconds"]
    assert set(found["method"]) == {"DDP"}


@pytest.mark.parametrize(
    ("on", "options", "error", "said"),
    [
        ("", {"gradients": "fp8"}, UnknownName, "unknown type of gradients 'fp8'; choose one of"),
        ("", {"accumulate": 0}, InputError, "accumulate 0 must be a whole number"),
        ("", {"sequence": 8}, ModelError, "'mine' has no sequences"),
        ("", {"precision": "fp7"}, UnknownName, "fp7"),
        (HERE, {}, InputError, "nothing says how long 'mine' .* hardware is unnamed"),
        (HERE, {"precision": "bf16"}, InputError, "precision 'bf16' needs the data sheet of a GPU"),
    ],
)
def test_options_that_cannot_be_get_one_error(mine, cluster, on, options, error, said):
    with pytest.raises(error, match=said):
        ddlnb.forecast(mine, on or cluster, local_batch=8, draws=0, **options)


def test_a_traced_workload_has_a_batch_and_takes_seconds_from_the_cluster_s_gpu(mine, cluster):
    traced = ddlnb.trace(mine, 64)
    assert ddlnb.forecast(traced, cluster, "DDP", draws=0)["local_batch"].tolist() == [64]
    with pytest.raises(InputError, match=r"local_batch 8 is not that of the workload of 'mine'"):
        ddlnb.forecast(traced, cluster, "DDP", local_batch=8)
