"""The command that executes strategies: its table, its lines, and what it refuses."""

from functools import partial

import pytest

from ddlnb.cli.survey import strategies
from ddlnb.parallelism.executed.table import strategy_rows


@pytest.mark.ranks
def test_a_layout_of_ones_own_is_executed(six_ranks, monkeypatch, capsys):
    rows = partial(strategy_rows, ranks=six_ranks)
    monkeypatch.setattr("ddlnb.parallelism.executed.table.strategy_rows", rows)
    strategies(layout=["dp2 zero1"], model="dense", rows=False, seed=1, csv=False)
    shown = capsys.readouterr().out
    assert "yes" in shown
    assert "4 = 4" in shown  # two calls on each of two ranks
