"""The command that executes strategies: its table, its lines, and what it refuses."""

from __future__ import annotations

from functools import partial

import pytest

from ddlnb.cli.survey import strategies
from ddlnb.parallelism.executed.table import strategy_rows
from tests.cli.test_app import ddlnb


@pytest.mark.ranks
def test_a_layout_of_ones_own_is_executed(six_ranks, monkeypatch, capsys):
    rows = partial(strategy_rows, ranks=six_ranks)
    monkeypatch.setattr("ddlnb.parallelism.executed.table.strategy_rows", rows)
    strategies(layout=["dp2 zero1"], model="dense", rows=False, seed=1, csv=False)
    shown = capsys.readouterr().out
    assert "yes" in shown
    assert "4 = 4" in shown  # two calls on each of two ranks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "mixture"], "each strategy has its own; give --layout; leave out --model"),
        (["--layout", "dp2", "--model", "dens"], "did you mean 'dense'?"),
        (["--layout", "tp3"], "tp 3 does not divide heads 4 of model 'small transformer'"),
        (["--layout", "dp2 pp2 zero3"], "give zero1 or pp 1"),
        (["--layout", "dp2 tq2"], "unknown word in a layout: 'tq2'"),
        (["--seed", "-3"], "seed -3 must be a whole number, at least 0"),
    ],
)
def test_a_bad_word_is_one_line(words, said):
    done = ddlnb("survey", "strategies", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
