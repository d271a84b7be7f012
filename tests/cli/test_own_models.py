"""Models of one's own on the command line and in Python, as a new user would try them."""

from __future__ import annotations

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


def test_the_plan_of_a_large_model_needs_neither_memory_nor_its_gpu():
    words = ["--model", "llama3-8b", "--sequence", "128", "--gpu", "H100", "--precision", "bf16"]
    said = run("plan", *words, "--gradients", "bf16", "--method", "DDP", check=True).stdout
    assert "291 gradients, 16.1 GB" in said
    assert "data sheet of H100-SXM at bf16" in said


def test_named_models_are_traced(mine):
    said = run("models", mine, "resnet18", "--csv", check=True).stdout
    assert said.splitlines()[2].startswith("resnet18,11689512,62,46.76,10.648")
    refused = run("models", "--batch", "4")
    assert refused.stderr == "ddlnb: only models that are named are traced; leave out --batch\n"


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


def test_python_answers_the_question_as_it_is_asked(mine, cluster):
    task = ddlnb.trace(mine).model
    rows = ddlnb.forecast(mine, cluster, ["all", "DDP"], draws=0)
    assert task == "mine"
    assert rows["method"].tolist()[-1] == "DDP"
    assert rows.attrs["seconds"].startswith("estimated from the data sheet of A100-SXM4-80GB")
    measured = ddlnb.forecast(mine, cluster, "DDP", throughput=1e5, draws=0)
    assert measured.attrs["seconds"].startswith("one GPU at 100000 samples/s")


def test_a_kept_profile_is_taken_where_there_is_one_for_the_hardware():
    rows = ddlnb.forecast("resnet50", "survey-10GbE", "DDP", gpus=8, draws=0)
    assert "fitted by ddlnb calibrate survey" in rows.attrs["seconds"]
    other = ddlnb.forecast("resnet50", "survey-10GbE", "DDP", local_batch=5, gpus=8, draws=0)
    assert "data sheet of RTX2080Ti" in other.attrs["seconds"]


def test_a_profile_of_one_s_own_is_taken_if_it_is_of_the_same_model(mine, cluster, monkeypatch):
    traced = ddlnb.trace(mine, 256)
    kept = ddlnb.workloads.from_throughput(traced, 5e4, "my own log", hardware=cluster.hardware)
    monkeypatch.setattr(profiles, "_profiles", lambda *_: ["mine_b256_a100"])
    monkeypatch.setattr(profiles, "read_profile", lambda name: kept)
    assert profiles.workload_on(task_of(mine), cluster) == kept
    other = replace(kept, layers=kept.layers[::-1])
    monkeypatch.setattr(profiles, "read_profile", lambda name: other)
    assert "data sheet" in profiles.workload_on(task_of(mine), cluster).source


def test_a_traced_workload_takes_seconds_from_the_cluster_s_gpu(mine, cluster):
    traced = ddlnb.trace(mine, 64)
    rows = ddlnb.forecast(traced, cluster, "DDP", draws=0)
    assert rows["local_batch"].tolist() == [64]
    with pytest.raises(InputError, match=r"local_batch 8 is not that of the workload of 'mine'"):
        ddlnb.forecast(traced, cluster, "DDP", local_batch=8)


def test_half_precision_and_accumulation_gain_on_a_slow_network(mine):
    slow = ddlnb.cluster_of("A100", nodes=4, gpus_per_node=1, network="1GbE")

    def rate(**options):
        rows = ddlnb.forecast(mine, slow, "DDP", draws=0, **options)
        return rows["throughput_samples_per_s"].item()

    assert rate(gradients="fp16") > 1.5 * rate()
    assert rate(accumulate=4) > 2 * rate()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"gradients": "fp8"}, UnknownName, "unknown type of gradients 'fp8'; choose one of fp32"),
        ({"accumulate": 0}, InputError, "accumulate 0 must be a whole number"),
        ({"sequence": 8}, ModelError, "'mine' has no sequences"),
        ({"precision": "fp7"}, UnknownName, "fp7"),
    ],
)
def test_options_that_cannot_be_get_one_error(mine, cluster, options, error, said):
    words = {"precision": "", **options}
    with pytest.raises(error, match=said):
        ddlnb.forecast(mine, cluster, local_batch=8, draws=0, **words)


def test_hardware_that_nobody_knows_needs_a_rate(mine):
    here = ddlnb.get_cluster("two-cores-2-workers")
    with pytest.raises(InputError, match=r"nothing says how long 'mine' .* hardware is unnamed"):
        ddlnb.forecast(mine, here)
    rows = ddlnb.forecast(mine, here, "DDP", throughput=1000, draws=0)
    assert "one worker at 1000 samples/s" in rows.attrs["seconds"]
    with pytest.raises(InputError, match="precision 'bf16' needs the data sheet of a GPU"):
        ddlnb.forecast(mine, here, precision="bf16")
