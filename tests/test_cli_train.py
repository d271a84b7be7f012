"""``ddlnb train``, as a person types it."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from typer.testing import CliRunner

from ddlnb.cli import app
from ddlnb.compression.catalogue import COMPRESSORS, FOR_ONE_MODEL
from ddlnb.training.catalogue import SYNCHRONISATIONS
from ddlnb.training.tasks import LEARNING_TASKS
from tests.test_cli import ddlnb

QUICK = ["--task", "quadratic", "--workers", "2", "--steps", "8", "--jobs", "1"]
TWO = ["--method", "bsp", "--method", "bsp + top-k(0.25) + feedback"]


def run(*words: str):
    return CliRunner().invoke(app, ["train", *words])


def test_the_lists_hold_every_choice_with_what_it_is():
    table = pd.read_csv(io.StringIO(run("--list", "--csv").stdout))
    names = set(table["name"].str.partition("(")[0])
    compressors = {*COMPRESSORS, *FOR_ONE_MODEL}
    assert {*LEARNING_TASKS, *SYNCHRONISATIONS, *compressors, "iid", "sgd"} <= names
    assert (table["about"].str.len() > 10).all()


def test_methods_are_a_table_and_curves_a_file(tmp_path):
    out = tmp_path / "curves.csv"
    done = run(*QUICK, *TWO, "--seeds", "2", "--target", "2.5", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "bsp + top-k(0.25) + feedback on A2A" in done.stdout
    assert "reached 2.5" in done.stdout
    assert "The best possible loss of quadratic is 0.0000" in done.stdout
    curves = pd.read_csv(out)
    assert curves.groupby(["method", "seed"]).ngroups == 4
    assert {"test_loss", "bytes_sent", "consensus_distance", "executor"} <= set(curves)


def test_curves_are_printed_for_machines_and_runs_kept(tmp_path):
    words = [*QUICK, *TWO, "--folder", str(tmp_path), "--csv", "--seed", "5"]
    first = run(*words)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    again = run(*words)
    assert first.stdout == again.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == kept
    assert pd.read_csv(io.StringIO(again.stdout))["seed"].unique().tolist() == [5]


def test_tuned_rates_are_told():
    done = run(*QUICK, *TWO, "--tune")
    assert done.exit_code == 0, done.output
    assert "tuned on held-out training samples" in done.stdout
    assert "tried" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give at least one --method"),
        (["--method", "bps"], "did you mean 'bsp'"),
        (["--method", "bsp", "--task", "digit"], "did you mean 'digits'"),
        (["--method", "bsp", "--out", "curves.txt"], "must have a name in .csv"),
        (["--method", "bsp", "--tune", "--lr", "0.1"], "leave out"),
        (["--method", "bsp", "--seeds", "0"], "seeds 0"),
        (["--method", "bsp", "--task", "wikitext"], "give their folder as data"),
    ],
)
def test_mistakes_are_told(words, told):
    done = run(*words)
    assert done.exit_code != 0
    assert told in str(done.exception)


def test_a_mistake_is_one_line_and_exit_status_2():
    done = ddlnb("train", "--method", "bsp + topk(0.1)")
    assert done.returncode == 2
    assert "did you mean 'top-k'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
