"""`ddlnb board`, as a person types it."""

from io import StringIO

import pandas as pd

from ddlnb.survey.board import KINDS, read_board
from tests.command_line import ddlnb


def test_the_board_is_printed_without_being_named_at_the_first_level():
    short, long = ddlnb("board", check=True), ddlnb("survey", "board", check=True)
    assert short.stdout == long.stdout
    assert short.stderr == ""
    said = " ".join(short.stdout.split())
    assert all(f"{name}: {kind.trivial}" in said for name, kind in KINDS.items())
    assert "judgements: - " in said


def test_one_kind_is_printed_as_rows():
    done = ddlnb("board", "--kind", "testbed", "--csv", check=True)
    rows = pd.read_csv(StringIO(done.stdout))
    kept = read_board()
    assert list(rows["digest"]) == list(kept["digest"][kept["kind"] == "testbed"])
