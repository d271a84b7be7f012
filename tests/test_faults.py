"""Faults at random moments of real sweeps: eight kinds at most; all of them by `make faults`.

All are injected by one process, which has the ranks, and the mounts, to itself.
"""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddlnb.emulation.network import lacking
from ddlnb.results.schema import RUN_COLUMNS
from tests.faults import commands
from tests.faults.campaign import KINDS, append, read, summary
from tests.faults.injection import Moment
from tests.faults.outcome import Outcome
from tests.faults.sweep import Onlooker, Sweep
from tests.kept import sentence

ROOT = Path(__file__).parents[1]
EMULATED = {"loss-10%"}
# Only by `make faults`: commands, a minute each, and what tests of ranks and of emulated networks
# inject, too.
ELSEWHERE = {*commands.KINDS, "worker-killed", "ctrl-c", "link-cut", "link-restored"}
TRIED = [kind for kind in KINDS if kind not in ELSEWHERE]
POSSIBLE = [kind for kind in TRIED if kind not in EMULATED or not lacking()]
# What the user sees when it is not always the same; of the others see EXPECTED.
EXPECTED = {
    "engine-stopped": {"RankError"},
    "loss-10%": {""},
    "straggler": {""},
    "kernel-killed": {""},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, request):
    """What became of one fault of each kind that a test asks for, by kind."""
    tests = [getattr(item, "callspec", None) for item in request.session.items]
    kinds = [test.params["kind"] for test in tests if test and "kind" in test.params]
    kinds = [kind for kind in POSSIBLE if kind in kinds]
    out = tmp_path_factory.mktemp("faults") / "faults.csv"
    words = ["--count", str(len(kinds)), "--kinds", *kinds, "--out", str(out)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--seed", "85", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ,
        check=False,
    )
    assert out.exists(), ran.stderr
    assert "left at the end" not in ran.stderr
    return {outcome.kind: outcome for outcome in read(out)}


@pytest.mark.thorough(but=2)
@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", POSSIBLE)
def test_a_fault_is_told_once_in_time_and_loses_and_leaves_nothing(kind, outcomes):
    outcome = outcomes[kind]
    assert outcome.good, outcome
    assert outcome.error in EXPECTED.get(kind, {"", "RankError", "ResultsError"})
    assert outcome.seconds <= outcome.allowed


# The instruments: they see what they are there to see.


@pytest.fixture
def sweep(tmp_path):
    """Of which two runs were finished."""
    sweep = Sweep(tmp_path)
    sweep.runs.write_text(",".join(RUN_COLUMNS) + "\na,1\nb,2\n")
    return sweep


def test_a_run_that_vanishes_or_changes_was_lost(sweep):
    onlooker = Onlooker(sweep)
    assert onlooker.look() == 2
    assert onlooker.lost() == 0
    text = sweep.runs.read_text()
    sweep.runs.write_text(text.replace("b,2", "b,3"))
    assert onlooker.lost() == 1
    sweep.runs.write_text("".join(text.splitlines(keepends=True)[:1]))
    onlooker.stop()
    assert onlooker.lost() >= 2


def test_a_line_that_is_cut_off_is_no_run(sweep):
    sweep.runs.write_text(sweep.runs.read_text()[:-1])
    assert sweep.finished() == [("a", "1")]


def test_an_incomplete_sweep_is_not_in_order(sweep):
    assert sweep.what_is_wrong() == "2 runs instead of 6"


@pytest.mark.parametrize(
    "change", [{"hung": 1}, {"lost": 1}, {"left": "x"}, {"wrong": "x"}, {"resumed": 0}]
)
def test_one_thing_amiss_is_not_good(change):
    good = {"number": 0, "kind": "loss", "resumed": 1}
    assert Outcome(**good).good
    assert not Outcome(**(good | change)).good


def test_the_table_reads_what_it_wrote_and_counts_it(tmp_path):
    out = tmp_path / "faults.csv"
    written = [
        Outcome(0, "a", error="RankError", told="rank 1: 'x', died", seconds=1.5, resumed=1),
        Outcome(1, "b", seconds=2.5, lost=2, left="process: 1", wrong="x"),
    ]
    for outcome in written:
        append(out, outcome)
    assert read(out) == written
    counts = summary(written).loc["all"]
    assert counts["injected"] == 2
    assert counts["error"] == "1 RankError"
    assert counts["rows lost"] == 2
    assert counts["left behind"] == counts["went on"] == counts["resumed"] == 1


def test_the_page_says_what_the_kept_inputs_showed_and_of_which_code():
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert sentence() in page, "write what `python -m tests.kept` prints"


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 8
    for path, name in named:
        assert f"def {name}" in (ROOT / path).read_text()


def test_moments_are_reproducible_and_come_before_the_last_run(tmp_path):
    sweep = Sweep(tmp_path)
    moments = [Moment.any_of(sweep, random.Random(f"1 {number}")) for number in range(200)]
    assert moments == [Moment.any_of(sweep, random.Random(f"1 {n}")) for n in range(200)]
    assert {moment.runs for moment in moments} == set(range(sweep.total - 1))
    seen = [Moment.any_of(sweep, random.Random(n), must_be_seen=True) for n in range(200)]
    assert {moment.runs for moment in seen} == set(range(sweep.total - 2))
