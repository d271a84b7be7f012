"""How wide tables are."""

from __future__ import annotations

import pytest

from ddlnb.cli.options import WIDTH, print_table

ROW = {"method": "MG-WFBP", "about": "word " * 100}


@pytest.mark.parametrize(
    ("columns", "width"),
    [("60", 60), ("250", 250), (None, WIDTH), ("", WIDTH), ("0", WIDTH), ("wide", WIDTH)],
)
def test_tables_outside_a_terminal_are_as_wide_as_columns_says(monkeypatch, capsys, columns, width):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    print_table([ROW], csv=False, title="Methods")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) == width


def test_comma_separated_values_have_no_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    print_table([ROW], csv=True, title="Methods")
    assert ROW["about"] in capsys.readouterr().out
