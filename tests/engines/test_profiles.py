"""The survey's protocol: its numbers, what a machine has room for, and the ways to ask for it."""

import contextlib
import io
import os
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml

from ddlnb.cli.app import app
from ddlnb.engines import measure as measuring
from ddlnb.engines.settings import PAPER
from ddlnb.errors import InputError
from ddlnb.files import NOTEBOOKS
from ddlnb.launch import capacity
from ddlnb.launch.capacity import fitting_workers
from ddlnb.launch.options import HERE, LaunchOptions, emulated
from tests.command_line import ddlnb

ALL = [1, 2, 4, 8, 16, 32]
SURVEY_BATCHES = {"resnet50": 64, "bert-base": 64, "bert-large": 8}


class Started(Exception):
    """The measurement would have begun."""


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


@pytest.fixture
def asked(monkeypatch):
    """What the command asks of the library, which does not run."""
    found: dict = {}

    def scaling(model, methods, **options):
        found.update(options, model=model, methods=methods)
        raise Started

    monkeypatch.setattr(measuring, "measure_scaling", scaling)
    return found


def call(*words: str) -> None:
    with contextlib.suppress(Started):
        app(["measure", "--model", "small-conv", *words], standalone_mode=False)


def test_the_paper_s_protocol_is_that_of_section_4_1():
    settings = PAPER.settings
    assert (settings.warmup, settings.iterations, settings.repetitions) == (10, 100, 5)
    assert list(PAPER.workers) == ALL
    assert settings.workers == 32


@pytest.mark.parametrize("launcher", ["local", "mpi"])
def test_workers_of_this_machine_take_a_core_each(launcher, four_cores):
    kept, said = fitting_workers(ALL, LaunchOptions(launcher))
    assert kept == [1, 2, 4]
    assert said.startswith("8, 16 and 32 workers are left out: this machine has 4 cores")
    assert fitting_workers([1, 4], LaunchOptions(launcher)) == ([1, 4], "")


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_workers_on_gpus_take_one_each(gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if not gpus:
        with pytest.raises(InputError, match=r"nothing is left to measure: .* has 0 GPUs"):
            fitting_workers(ALL, HERE, "cuda")
        return
    kept, said = fitting_workers(ALL, HERE, "cuda")
    assert kept == [count for count in ALL if count <= gpus]
    assert f"{gpus} GPU{'s' * (gpus > 1)}," in said


def test_workers_of_an_emulated_network_take_memory_only(monkeypatch, four_cores):
    monkeypatch.setattr(capacity, "most_ranks", lambda: 20)
    kept, said = fitting_workers(ALL, emulated("10GbE"))
    assert kept == [1, 2, 4, 8, 16]
    assert said.startswith("32 workers are left out: this machine has memory for 20 processes")


@pytest.mark.parametrize(
    "site",
    [
        LaunchOptions("slurm"),
        LaunchOptions("ssh", hosts=("a", "b")),
        LaunchOptions("mpi", "10.1.0.5"),
    ],
)
def test_other_machines_are_left_to_their_launcher(site, four_cores):
    assert fitting_workers(ALL, site) == (ALL, "")


PROFILE = ["--profile", "paper"]
GIVEN = ["--iterations", "3", "--workers", "2,8", "--timeout", "60", *PROFILE]
THERE = ["--host", "10.1.0.5", "--launcher"]


def at(launcher: str, *hosts: str) -> dict:
    """The options of the profile on other machines, where a queue takes its time."""
    site = LaunchOptions(launcher, "10.1.0.5", hosts)
    return {"start_timeout_seconds": 86400, "site": site}


@pytest.mark.parametrize(
    ("words", "workers", "options", "left_out"),
    [
        ([], [2], vars(measuring.DEFAULTS), ""),
        (PROFILE, [1, 2, 4], PAPER.options, "8, 16 and 32 workers are left out"),
        # More than there are cores, but asked for; what is given counts more than the profile.
        (GIVEN, [2, 8], PAPER.options | {"iterations": 3, "timeout_seconds": 60}, ""),
        ([*PROFILE, *THERE, "slurm"], ALL, at("slurm"), ""),
        ([*PROFILE, *THERE, "ssh", "--on", "a", "--on", "b"], ALL, at("ssh", "a", "b"), ""),
        ([*PROFILE, *THERE, "mpi"], ALL, at("mpi"), ""),
    ],
)
def test_measure_takes_profile_and_options_and_says_what_it_leaves_out(
    words, workers, options, left_out, asked, four_cores, capsys
):
    call(*words)
    assert asked["workers"] == workers
    assert {name: getattr(asked["settings"], name) for name in options} == options
    said = capsys.readouterr().err
    assert said.startswith(left_out)
    assert ("left out" in said) == bool(left_out)


def test_the_notebooks_of_the_profile_measure_by_the_same_protocol():
    content = yaml.safe_load((NOTEBOOKS / "parameters" / "paper.yaml").read_text())
    entries = [one for one in content.values() if one.get("notebook") == "fig4_throughput"]
    assert [entry["parameters"]["model"] for entry in entries] == list(SURVEY_BATCHES)
    for entry in entries:
        given = entry["parameters"]
        options = dict(given["options"])
        assert options.pop("only_fitting") is True
        chosen = {name: given[name] for name in ("iterations", "repetitions")} | options
        assert measuring.DEFAULTS.changed(workers=32, **chosen) == PAPER.settings
        assert given["workers"] == list(PAPER.workers)
    files = [entry["parameters"]["rows_file"] for entry in entries]
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("model", SURVEY_BATCHES)
def test_the_models_come_with_the_survey_s_batches(model):
    assert measuring.get_task(model).local_batch == SURVEY_BATCHES[model]


def test_the_library_warns_of_what_it_leaves_out(four_cores, monkeypatch):
    ran = []

    def one(task, methods, settings, *_):
        ran.append(settings.workers)
        row = {"method": "MG-WFBP", "gpus": settings.workers, "engine": "torch", "settings": ""}
        return pd.DataFrame([row])

    up = SimpleNamespace(site=measuring.DEFAULTS.site)
    monkeypatch.setattr(measuring, "_measured", one)
    monkeypatch.setattr(measuring, "_ranks_or", lambda *_: contextlib.nullcontext(up))
    with pytest.warns(measuring.LeftOut, match="16 workers are left out"):
        measuring.measure_scaling("small-conv", workers=[2, 4, 16], only_fitting=True)
    assert ran == [2, 4]
    measuring.measure_scaling("small-conv", workers=[16])  # asked for as it is: no warning
    assert ran == [2, 4, 16]


@pytest.mark.thorough
@pytest.mark.ranks
def test_a_short_run_through_the_profile_measures_one_worker_and_more(tmp_path):
    words = ["--profile", "paper", "--model", "small-conv", "--batch", "4", "--method", "WFBP-A2A"]
    words += ["--iterations", "2", "--repeat", "1", "--out", str(tmp_path / "rows.csv"), "--csv"]
    words += ["--workers", "1,2"]
    done = ddlnb("measure", *words, check=True)
    rows = pd.read_csv(io.StringIO(done.stdout)).set_index(["method", "gpus"])
    assert sorted(rows.index) == [
        ("DDP", 1), ("DDP", 2), ("WFBP-A2A", 1), ("WFBP-A2A", 2), ("single", 1)
    ]  # fmt: skip
    assert set(rows["warmup"]) == {10}
    assert set(rows["iterations"]) == {2}
    assert rows.loc[("single", 1), "speedup"] == 1
    again = ddlnb("measure", *(one for one in words if one != "--csv"), check=True)
    assert f"Nothing was measured: {tmp_path / 'rows.csv'} has every run" in again.stdout
    assert "of the cores meanwhile" not in again.stdout
