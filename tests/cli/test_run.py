"""Errors of the command line are one line, whatever they have to say."""

from __future__ import annotations

import pytest
import typer

from ddlnb.cli.run import run
from ddlnb.errors import InputError, RankError

TIMEOUT = (
    "2 of 2 ranks did not answer within 1 s; allow more with timeout_seconds\n"
    "  rank 0: no answer after 1.0 s\n"
    "    in wait\n"
    "  rank 1: stopped, no answer after 1.0 s"
)


def run_into(error: Exception) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    run(app, "ddlnb")


@pytest.fixture(autouse=True)
def called_without_words(monkeypatch):
    monkeypatch.setattr("sys.argv", ["ddlnb"])


def test_a_time_out_of_ranks_is_one_line_that_names_the_log_of_all_ranks(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        run_into(RankError(TIMEOUT))
    log = tmp_path / "ddlnb" / "last-error.log"
    assert capsys.readouterr().err == f"ddlnb: {TIMEOUT.splitlines()[0]}; details in {log}\n"
    assert log.read_text() == f"{TIMEOUT}\n"


def test_where_no_log_can_be_written_the_error_says_all(monkeypatch, capsys, tmp_path):
    (tmp_path / "ddlnb").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        run_into(RankError(TIMEOUT))
    assert capsys.readouterr().err == f"ddlnb: {TIMEOUT}\n"


def test_an_error_of_one_line_needs_no_log(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        run_into(InputError("workers 0 must be a whole number, at least 1"))
    assert capsys.readouterr().err == "ddlnb: workers 0 must be a whole number, at least 1\n"
    assert not list(tmp_path.iterdir())
