"""Hundreds of command lines as people type them: the sensible end well, the others are refused.

`command_lines.txt` keeps them. A refusal is one sentence with exit status 2 that says what stands
behind the arrow, and no line ends in a traceback, which would be raised here.
"""

import shlex
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from tests.command_line import ddlnb

GIVEN = Path(__file__).with_name("given")  # files that the lines name


def lines() -> dict[str, list[list[str]]]:
    """Return the command lines of each part of the list, with what they say."""
    parts: dict[str, list[list[str]]] = defaultdict(list)
    name = ""
    for line in Path(__file__).with_name("command_lines.txt").read_text().splitlines():
        if line.startswith("["):
            name = line.strip("[]")
        elif line and not line.startswith("#"):
            parts[name].append([*map(str.strip, line.partition("  =>  "))][::2])
    return parts


LINES = lines()
LONG = (pytest.mark.slow, pytest.mark.thorough)


@pytest.fixture(autouse=True)
def beside_the_files(tmp_path, monkeypatch):
    shutil.copytree(GIVEN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("words", "said"), LINES["refused"])
def test_a_call_that_makes_no_sense_is_one_line(words, said):
    done = ddlnb(*shlex.split(words))
    assert done.returncode == 2
    [error] = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("Cluster ", "note: ", "This takes "))
    ]
    assert error.startswith("ddlnb: ")
    assert said in error


@pytest.mark.parametrize(
    ("words", "said"),
    [*LINES["fine"], *(pytest.param(*line, marks=LONG) for line in LINES["slow"])],
)
def test_a_call_that_makes_sense_ends_well(words, said):
    done = ddlnb(*shlex.split(words))
    assert done.returncode == 0, done.stderr
    assert said in " ".join((done.stdout + done.stderr).split())
    assert "ddlnb: " not in done.stderr


def test_the_list_is_long_and_has_every_command():
    assert sum(map(len, LINES.values())) >= 337
    every = [words for part in LINES.values() for words, _ in part]
    assert len(set(every)) == len(every)
