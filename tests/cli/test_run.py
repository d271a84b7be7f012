"""How commands end, whatever they have to say, and how wide their tables are."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from ddlnb.cli.app import run
from ddlnb.cli.options import WIDTH, print_table, say
from ddlnb.errors import InputError, RankError
from tests.command_line import ddlnb

WRONG = "workers 0 must be a whole number, at least 1"
TIMEOUT = (
    "2 of 2 ranks did not answer within 1 s; allow more with timeout_seconds\n"
    "  rank 0: no answer after 1.0 s\n"
    "    in wait\n"
    "  rank 1: stopped, no answer after 1.0 s"
)
NO_PLACE = "a file in the place of the folder of the log"
ROW = {"method": "MG-WFBP", "about": "word " * 100}


@pytest.mark.parametrize(
    ("error", "status", "said", "log"),
    [
        (RankError(TIMEOUT), 2, f"{TIMEOUT.splitlines()[0]}; details in LOG", f"{TIMEOUT}\n"),
        (RankError(TIMEOUT), 2, TIMEOUT, NO_PLACE),
        (InputError(WRONG), 2, WRONG, None),
        (FileNotFoundError(2, "No such file or directory", "rows.csv"), 2,
         "cannot use 'rows.csv': no such file or directory", None),
        (MemoryError(), 2, "no memory is left; give this process more", None),
        (KeyboardInterrupt(), 130, "interrupted", None),
        (typer.Abort(), 130, "interrupted", None),
    ],
)  # fmt: skip
def test_an_error_is_one_line_that_names_the_log_of_what_has_more(
    error, status, said, log, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if log == NO_PLACE:
        (tmp_path / "ddlnb").write_text(NO_PLACE)
    end(error, status, monkeypatch)
    path = tmp_path / "ddlnb" / "last-error.log"
    assert capsys.readouterr() == ("", f"ddlnb: {said.replace('LOG', str(path))}\n")
    kept = path.parent if log == NO_PLACE else path
    assert (kept.read_text() if kept.exists() else None) == log


def end(error, status, monkeypatch):
    """Run a command that raises the error; the process ends with the status."""
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["ddlnb"])
    with pytest.raises(SystemExit) as ended:
        run(app, "ddlnb")
    assert ended.value.code == status


@pytest.mark.parametrize(
    ("columns", "width"), [("60", 60), ("250", 250), ("", WIDTH), ("0", WIDTH), ("wide", WIDTH)]
)
def test_tables_outside_a_terminal_are_as_wide_as_columns_says(monkeypatch, capsys, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    print_table([ROW], csv=False, title="Methods")
    assert max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) == width
    print_table([ROW], csv=True, title="Methods")
    assert ROW["about"] in capsys.readouterr().out


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("shell", "status", "said"),
    [
        ("ddlnb methods >&-", 2, "ddlnb: the output cannot be written: it is closed"),
        ("ddlnb models 'größe'", 2, "ddlnb: unknown model 'gr"),
        ("ddlnb train --method bsp --workers 2 --steps 2 2>&- <&-", 0, "bsp on A2A"),
        ("cd $(mktemp -d); rmdir $PWD; ddlnb methods", 2, "ddlnb: the working folder was removed"),
        pytest.param(
            "ddlnb cluster list --csv > /dev/full",
            2,
            "ddlnb: the output cannot be written: No space left on device\n",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here"),
        ),
    ],
)
def test_a_closed_or_full_output_and_an_old_locale_are_no_tracebacks(shell, status, said):
    done = subprocess.run(
        shell.replace("ddlnb", f"{shlex.quote(sys.executable)} -m ddlnb"),
        shell=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert "Traceback" not in done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_ctrl_c_amid_an_import_that_would_swallow_it_is_one_sentence(tmp_path):
    swallow = "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass"
    (tmp_path / "swallowing.py").write_text(f"import os, signal\n{swallow}\n")
    (tmp_path / "mine.py").write_text("import swallowing\n")
    done = subprocess.run(
        [sys.executable, "-m", "ddlnb", "--with", tmp_path / "mine.py", "models"],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # none in the background
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ddlnb: interrupted\n")


def test_columns_without_room_are_named_and_what_a_terminal_would_obey_is_shown(
    capsys, monkeypatch
):
    print_table([{"model": "a\x1b[2Jb"}], csv=False, title="\x07]0;")
    say(["c\x1b[31m"])
    said = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(said)
    assert all(name in said for name in (r"a\x1b[2Jb", r"\x07]0;", r"c\x1b[31m"))
    monkeypatch.setenv("COLUMNS", "40")
    row = {
        "method": "MG-WFBP",
        "samples/s": "1955",
        "interval": "1853 to 2048",
        "about": "word " * 9,
    }
    print_table([row], False, "Title")
    narrow = capsys.readouterr().out
    assert "1853 to 2048" in narrow
    assert narrow.endswith("More columns with --wide: about.\n")
    assert max(map(len, narrow.splitlines())) <= 40
    monkeypatch.setenv("COLUMNS", "80")
    assert "--wide" not in ddlnb("methods", "--wide", check=True).stdout
    print_table([row], False, "Title")
    assert "about" in capsys.readouterr().out  # the last column wraps
