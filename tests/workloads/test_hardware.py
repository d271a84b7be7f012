"""Seconds know their hardware, and are not forecast on other hardware without a word."""

from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from ddlnb.cli.measure import app
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import is_same_hardware, require_named_for
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.forecast import forecast
from ddlnb.simulator.simulate import simulate
from ddlnb.training.cost.estimate import best_lossless, iteration_cost
from ddlnb.workloads.profiling import profile, write_profile
from ddlnb.workloads.roofline import from_throughput
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import read_profile
from tests.cli.test_app import ddlnb

SURVEY = get_cluster("survey-10GbE", 8)
CPU = read_profile("resnet50_b4_cpu-2threads")
ASKED = {
    "forecast": lambda workload: forecast(workload, SURVEY, "MG-WFBP", draws=0),
    "simulate": lambda workload: simulate(workload, SURVEY, "MG-WFBP"),
    "cost": lambda workload: iteration_cost(workload, SURVEY, "bsp + top-k(0.01)"),
    "best": lambda workload: best_lossless(workload, SURVEY),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_seconds_of_a_cpu_are_refused_on_a_gpu(ask):
    told = (
        r"'cpu-2threads', and cluster 'survey-10GbE' has 'rtx2080ti'; give the samples per second"
    )
    with pytest.raises(InputError, match=told):
        ask(CPU)
    ask(CPU.scaled(0.02, "a guess", hardware="rtx2080ti"))  # the way out
    ask(replace(CPU, hardware=""))  # by hand, or of an earlier edition


def test_a_cluster_that_names_no_hardware_takes_any_seconds():
    simulate(CPU, replace(SURVEY, hardware=""), METHODS["MG-WFBP"])


def test_what_is_profiled_here_knows_the_threads_it_took():
    assert profile("small-conv", 2, iterations=1, warmup=0, threads=1).hardware == "cpu-1thread"
    assert trace("small-conv").hardware == ""
    rate = from_throughput(trace("small-conv", 4), 100, "my log", hardware="a100")
    assert rate.hardware == "a100"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("v100", "Tesla V100-SXM2-32GB", True),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", True),
        ("rtx2080", "NVIDIA GeForce RTX 2080 Ti", True),  # a part of the name
        ("a10", "NVIDIA A100-SXM4-80GB", False),
        ("cpu-1thread", "cpu-2threads", False),
        ("cpu-1thread", "a100", False),
        ("", "a100", True),
    ],
)
def test_names_mean_the_same_if_one_is_made_of_parts_of_the_other(one, other, same):
    assert is_same_hardware(one, other) is is_same_hardware(other, one) is same


def test_the_name_of_a_profile_does_not_claim_other_hardware(tmp_path):
    """The error of a missing profile proposed it, and CPU seconds became those of an A100."""
    measured = profile("small-conv", 2, iterations=1, warmup=0, threads=1)
    told = "'small-conv_b2_a100' says 'a100', .* 'cpu-1thread'; name it small-conv_b2_cpu-1thread"
    with pytest.raises(InputError, match=told):
        write_profile(measured, "small-conv_b2_a100", tmp_path)
    write_profile(measured, "small-conv_b2_cpu-1thread", tmp_path)
    write_profile(measured, "mine", tmp_path)
    require_named_for("resnet50_b64_a100", "NVIDIA A100-SXM4-80GB")


def test_the_command_refuses_such_a_name_before_it_measures():
    done = ddlnb("profile", "--model", "bert-large", "--name", "bert-large_b8_a100")
    assert done.returncode == 2
    assert "says 'a100', and its seconds are those of 'cpu-" in done.stderr


def test_a_missing_profile_is_proposed_on_that_hardware():
    words = ["--model", "bert-large", "--cluster", "two-cores-2-workers", "--batch", "9"]
    said = ddlnb("forecast", *words).stderr
    assert "give --throughput" in said
    assert "--name bert-large_b9_HARDWARE" in said


def test_a_profile_says_what_others_took_of_the_machine_and_is_as_wide(monkeypatch, tmp_path):
    monkeypatch.setattr("ddlnb.launch.capacity.Load.spread", 0.25)
    here = partial(write_profile, folder=tmp_path)
    monkeypatch.setattr("ddlnb.workloads.profiling.write_profile", here)
    words = ["--model", "small-conv", "--batch", "2", "--iterations", "1", "--threads", "1"]
    done = CliRunner().invoke(app, ["profile", *words, "--name", "mine", "--csv"])
    assert done.exit_code == 0, done.output
    assert "of the cores meanwhile" in done.stderr
    assert done.stdout.splitlines()[0].startswith("layer,")
    assert read_profile("mine", tmp_path).spread == 0.25
