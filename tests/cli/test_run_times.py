"""What documents, notebooks, help and bars say of times is what was kept, and short is short."""

import io
import re

import pytest
from tqdm import tqdm

from benchmarks.run_times import SAID, documented, sentences
from ddlnb.cli.app import COMMANDS
from ddlnb.files import ROOT
from ddlnb.survey.notebooks import (
    command_help,
    in_words,
    kept_commands,
    kept_notebooks,
    notebook_seconds,
    reproduce_help,
)
from ddlnb.survey.runner import Progress, described, expected_seconds, notebook_runs, total_seconds
from tests.command_line import ddlnb


def test_the_quick_profile_was_timed_and_the_readme_and_the_help_say_how_long_it_takes():
    kept = notebook_seconds("quick")
    assert set(kept) == {run.notebook.name for run in notebook_runs("quick")}
    assert min(kept.values()) > 0
    assert all(row["machine"] and row["commit"] and row["time"] for row in kept_notebooks())
    profile = (ROOT / "notebooks" / "parameters" / "quick.yaml").read_text()
    assert "expected_seconds" not in profile
    runs = notebook_runs("quick")
    seconds = total_seconds(runs, expected_seconds(runs, "quick"), jobs=2)
    assert f"({in_words(seconds)} on two cores)" in (ROOT / "README.md").read_text()
    said = ddlnb("survey", "reproduce", "--help", check=True).stdout
    said = " ".join(re.sub(r"[│╭╰─╮╯]", " ", said).split())
    assert reproduce_help() in said


def test_every_notebook_says_how_long_it_took():
    for path, told in sentences().items():
        assert SAID.findall(path.read_text()) == [told], f"{path.name}: {told}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_commands_says_how_long_they_took(command):
    if told := command_help(command):
        shown = " ".join(ddlnb(command, "--help").stdout.replace("│", " ").split())
        assert told in shown


def test_help_is_made_from_kept_times_of_documented_commands(tmp_path):
    columns = "command,seconds,cpu_seconds,load,machine,commit,time"
    rows = 'ddlnb measure --model small-conv,33.4,40,0.1,"EPYC, 2 cores",abc,2026\n'
    rows += 'ddlnb plan,120,4.4,9.5,"EPYC, 2 cores",abc,2026\n'
    (tmp_path / "commands.csv").write_text(f"{columns}\n{rows}")
    told = "Time on EPYC, 2 cores: `ddlnb measure --model small-conv` took 35 seconds."
    assert command_help("measure", tmp_path) == told
    told = "`ddlnb plan` computed for 5 seconds (and took 120 seconds beside other work"
    assert told in command_help("plan", tmp_path)
    assert command_help("forecast", tmp_path) is None
    assert reproduce_help("quick", tmp_path) is None
    assert {row["command"] for row in kept_commands()} <= set(documented())


def test_the_bar_names_what_runs_and_is_not_there_where_nothing_does(capsys, monkeypatch):
    with Progress({}, kept=36, show=True):
        pass
    assert capsys.readouterr() == ("", "")
    out = io.StringIO()
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **words: tqdm(file=out, **words))
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress({"a": 30.0, "b": 70.0}, kept=2, show=True) as bar, bar.running("b"):
        with bar.running("a"):
            pass
        assert "1 of 2 done, running b |" in out.getvalue()
    shown = out.getvalue()
    assert "2 notebooks, 2 kept" in shown
    assert "0 of 2 done, running b and a" in shown
    assert " 30 %" in shown
    assert described(2, 2, []) == "2 of 2 done"


def test_a_log_has_a_line_for_every_notebook_that_ends_and_no_bar(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with Progress({"a": 30.0, "b": 70.0}, kept=2, show=True) as bar:
        for name in "ba":
            with bar.running(name) as failed:
                failed += ["notebook 'a' failed: why"] * (name == "a")
    told = "1 of 2 ended: b\n2 of 2 ended: a\nnotebook 'a' failed: why\n"
    assert capsys.readouterr().err == told
