"""Models of one's own on the command line and in Python, as a new user would try them."""

from dataclasses import replace

import pandas as pd
import pytest

import ddlnb
from ddlnb.errors import InputError, ModelError, UnknownName
from ddlnb.simulator import profiles
from ddlnb.workloads.resolve import get_task as task_of
from tests.command_line import ddlnb as run

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


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "my.py"
    path.write_text(MINE)
    return f"{path}:task"


@pytest.fixture(scope="module")
def cluster():
    return ddlnb.cluster_of("A100", nodes=2, network="100GbE")


def test_a_file_of_one_s_own_is_forecast_on_hardware_by_name(mine, tmp_path):
    out = tmp_path / "rows.csv"
    words = ["--method", "MG-WFBP", "--method", "DDP", "--draws", "0", "--csv", str(out)]
    done = run("forecast", "--model", mine, *A100, *words, check=True)
    said = " ".join(done.stdout.split())
    assert "Workload('mine', batch=256, 4 gradients" in said
    assert "estimated from the data sheet of A100-SXM4-80GB at tf32" in said
    assert pd.read_csv(out)["method"].tolist() == ["MG-WFBP", "DDP"]


def test_a_profile_is_planned_with_its_own_seconds(tmp_path):
    kept = ddlnb.read_profile("small-conv_b64_cpu-1thread")
    path = tmp_path / "mine.json"
    path.write_text(kept.to_json())
    words = ["plan", "--method", "MG-WFBP"]
    planned = run(*words, "--model", str(path), check=True).stdout
    assert repr(kept) in planned
    named = run(*words, "--model", "small-conv", "--profile", path.name)
    assert "a file of yours is given as the model (--model mine.json)" in named.stderr
    more = run(*words, "--model", str(path), "--batch", "8", "--gpu", "A100")
    assert "has a batch and seconds of its own; leave out --batch and --gpu" in more.stderr
    again = run("measure", "profile", "--model", str(path))
    assert "mine.json' is a profile: it has seconds, and nothing to run; give the" in again.stderr


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
        ("resnet50", "survey-10GbE", {"local_batch": 5, "gpus": 8}, "data sheet of RTX2080Ti"),
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
