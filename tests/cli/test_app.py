"""The command line, as a person types it."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys

import pandas as pd
import pytest
import typer

from ddlnb.cli.app import main
from ddlnb.cli.models import methods
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.models import TASKS
from tests.command_line import ddlnb

COMMANDS = ["models", "methods", "plan", "measure", "survey", "doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    done = ddlnb(command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_without_a_command_the_help_is_shown():
    done = ddlnb()
    assert all(command in done.stdout + done.stderr for command in COMMANDS)


@pytest.mark.parametrize(
    ("words", "status", "said", "complained"),
    [
        (["methods", "--csv"], 0, "method,", ""),
        (["plan", "--model", "small-conv", "--method", "WFPB-PS"], 2, "", "ddlnb: unknown method"),
    ],
)
def test_a_process_ends_as_its_command_does(words, status, said, complained):
    command = [sys.executable, "-m", "ddlnb.cli.app", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.startswith(said)
    assert done.stderr.startswith(complained)
    assert len(done.stderr.splitlines()) == bool(complained)
    assert bool(done.stdout) == bool(said)


def test_models_are_a_table_for_machines_too():
    table = pd.read_csv(io.StringIO(ddlnb("models", "--csv", check=True).stdout))
    assert list(table["model"]) == list(TASKS)
    sizes = dict(zip(table["model"], table["parameters"], strict=True))
    assert (sizes["resnet50"], sizes["gpt2"]) == (25_557_032, 124_439_808)


def test_methods_print_the_survey_s_sentence():
    said = ddlnb("methods", check=True).stdout
    assert "MG-WFBP: it exploits BSP with no compression and tensor fusion" in said


def test_a_plan_is_printed():
    words = ["--model", "bert-large", "--profile", "bert-large_b8_rtx2080ti"]
    said = ddlnb("plan", *words, "--method", "ByteScheduler-PS", "--servers", "2", check=True)
    assert "push_pull on 2 servers" in said.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--model", "small-conv", "--method", "WFPB-PS"], "did you mean 'WFBP-PS'"),
        (["plan", "--model", "smal-conv", "--method", "WFBP-PS"], "did you mean 'small-conv'"),
        (["measure", "--model", "small-conv", "--workers", "0"], "workers 0"),
        (["measure", "--model", "small-conv", "--engine", "horovod9"], "unknown engine"),
        (["measure", "--model", "small-conv", "--profile", "papre"], "did you mean 'paper'"),
        (["measure", "--model", "small-conv", "--workers", "2,0"], "workers[1] 0"),
        (["survey", "reproduce", "--profile", "quik"], "did you mean 'quick'"),
        (["survey", "reproduce", "--set", "launcher"], "--set 'launcher' must be name=value"),
        (["survey", "reproduce", "--set", "options={a"], "--set 'options={a' must be name=value"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(words, said):
    done = ddlnb(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["forcast"], "no such command 'forcast'. Did you mean 'forecast'"),
        (["plan", "--method", "BSP-PS"], "give --model; see"),
        (["forecast", "--nodes", "two"], "--nodes 'two' must be a whole number, such as --nodes 4"),
        (["forecast", "--draws", "1.5"], "--draws '1.5' must be a whole number, such as --draws 4"),
        (["advise", "--measured", "fast"], "--measured 'fast' must be a number, such as --meas"),
        (["forecast", "--nodes"], "'--nodes' requires an argument; see 'ddlnb forecast --help'"),
        (["--versoin"], "no such option: --versoin"),
        (["models", "--cvs"], "no such option: --cvs (Possible options: --csv)"),
        (["measure", "--model", "small-conv", "--workers", "2,x"], "'2,x' must be whole numbers"),
        (["forecast", "--gpus", "8,x"], "'8,x' must be whole numbers, separated by commas"),
    ],
)
def test_wrong_usage_is_one_line_without_a_box(words, said):
    done = ddlnb(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("ddlnb: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_one_line(monkeypatch, capsys, tmp_path):
    def write(**options: object) -> None:
        (tmp_path / "missing" / "rows.csv").write_text("")

    monkeypatch.setattr("ddlnb.cli.app.app", write)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "rows.csv': no such file or directory" in capsys.readouterr().err


def test_the_version_and_the_short_form_of_help():
    assert ddlnb("--version", check=True).stdout.startswith("ddlnb 0.")
    assert "Usage" in ddlnb("forecast", "-h", check=True).stdout


def test_several_numbers_are_given_at_once_or_repeated():
    words = ["forecast", "--model", "resnet50", "--cluster", "survey-10GbE", "--draws", "0"]
    at_once, repeated = ["--gpus", "4,8"], ["--gpus", "4", "--gpus", "8"]
    assert ddlnb(*words, *at_once).stdout == ddlnb(*words, *repeated, check=True).stdout


def test_a_method_of_the_reader_s_own_is_listed(monkeypatch, capsys):
    mine = dataclasses.replace(METHODS["MG-WFBP"], name="mine")
    monkeypatch.setitem(METHODS, "mine", mine)
    methods(csv=True)
    assert "\nmine,BSP," in capsys.readouterr().out


@pytest.mark.ranks
def test_measure_writes_rows_that_can_be_read(tmp_path):
    out = tmp_path / "rows.csv"
    words = ["--model", "small-conv", "--batch", "4", "--workers", "2", "--method", "BSP-PS"]
    words += ["--iterations", "2", "--warmup", "0", "--repeat", "1", "--out", str(out), "--csv"]
    printed = pd.read_csv(io.StringIO(ddlnb("measure", *words, check=True).stdout))
    assert printed["method"].tolist() == ["single", "DDP", "BSP-PS"]
    assert len(pd.read_csv(out)) == 3


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, typer.Abort])
def test_ctrl_c_is_one_line_and_status_130(interrupt, monkeypatch, capsys):
    def pressed(**options: object) -> None:
        raise interrupt()

    monkeypatch.setattr("ddlnb.cli.app.app", pressed)
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr() == ("", "ddlnb: interrupted\n")
