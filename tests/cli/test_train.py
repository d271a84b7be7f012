"""``ddlnb train``, as a person types it."""

import io

import pandas as pd
import pytest

from ddlnb.compression.catalogue import COMPRESSORS, FOR_ONE_MODEL
from ddlnb.training.executors.clock import STRAGGLERS
from ddlnb.training.gossip import GRAPHS
from ddlnb.training.method import SYNCHRONISATIONS
from ddlnb.training.optimizers import OPTIMIZERS
from ddlnb.training.tasks.catalogue import LEARNING_TASKS
from tests.command_line import ddlnb

QUICK = ["--task", "quadratic", "--workers", "2", "--steps", "8", "--jobs", "1"]
TWO = ["--method", "bsp", "--method", "bsp + top-k(0.25) + feedback"]


def run(*words: str):
    return ddlnb("train", *words, check=True)


def test_the_lists_hold_every_choice_with_what_it_is():
    table = pd.read_csv(io.StringIO(run("--list", "--csv").stdout))
    names = set(table["name"].str.partition("(")[0])
    compressors = {*COMPRESSORS, *FOR_ONE_MODEL}
    assert {*OPTIMIZERS, *STRAGGLERS, *GRAPHS} <= names
    assert {*LEARNING_TASKS, *SYNCHRONISATIONS, *compressors, "iid", "sgd"} <= names
    assert (table["about"].str.len() > 10).all()
    assert "d-psgd(graph=ring|torus|complete, mixing=after|before)" in set(table["name"])


def test_methods_are_a_table_curves_a_file_and_kept_runs_are_not_repeated(tmp_path):
    out = tmp_path / "curves.csv"
    done = run(*QUICK, *TWO, "--seeds", "2", "--target", "2.5", "--out", str(out))
    assert "bsp + top-k(0.25) + feedback on A2A" in done.stdout
    assert "reached 2.5" in done.stdout
    assert "The best possible loss of quadratic is 0.0000" in done.stdout
    curves = pd.read_csv(out)
    assert curves.groupby(["method", "seed"]).ngroups == 4
    assert {"test_loss", "bytes_sent", "consensus_distance", "executor"} <= set(curves)
    words = [*QUICK, *TWO, "--folder", str(tmp_path), "--csv", "--seed", "5"]
    first = run(*words)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    again = run(*words)
    assert first.stdout == again.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == kept
    assert pd.read_csv(io.StringIO(again.stdout))["seed"].unique().tolist() == [5]


def test_stragglers_make_seconds_that_are_told():
    words = [*QUICK, "--method", "bsp", "--method", "asp", "--straggler", "one-slow(3)"]
    done = run(*words, "--target", "2.5")
    assert "seconds to it" in done.stdout
    curves = pd.read_csv(io.StringIO(run(*words, "--csv").stdout))
    ends = curves.groupby("method")["seconds"].max()
    assert ends["bsp on A2A"] == 24.0
    assert ends["asp on PS"] == 24.0
    halves = curves[curves["step"] == 4].set_index("method")["seconds"]
    assert halves["asp on PS"] < halves["bsp on A2A"] == 12.0


@pytest.mark.ranks
def test_real_processes_are_an_option():
    words = [*QUICK[:-2], "--method", "bsp", "--executor", "distributed", "--csv"]
    done = run(*words)
    curves = pd.read_csv(io.StringIO(done.stdout))
    assert set(curves["executor"]) == {"distributed"}
    assert curves["seconds"].iloc[-1] > 0


def test_a_rate_at_which_nothing_is_learnt_is_said_and_the_clock_has_a_column():
    words = [*QUICK, "--method", "bsp", "--method", "bsp + signsgd"]
    done = run(*words, "--lr", "1.3", "--straggler", "log-normal(0.5)")
    assert "No lower loss than before training: bsp + signsgd(1) on A2A. Another" in done.stdout
    assert "seconds" in done.stdout
    plain = run(*words, "--lr", "0.01").stdout
    assert "No lower loss" not in plain
    assert "seconds" not in plain
