"""The page on methods and compressors of one's own, as its reader would try it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.files import ROOT
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.resolve import run_file
from tests.command_line import ddlnb

PAGE = (ROOT / "docs" / "own_method.md").read_text()
CODE = next(iter(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    yield str(path)
    METHODS.pop("Doubling-A2A", None)
    COMPRESSORS.pop("uniform", None)


def test_the_commands_of_the_page_print_what_it_shows(mine):
    commands = re.findall(r"```\n\$ \.venv/bin/ddlnb (.*?)\n(.*?)```", PAGE, re.DOTALL)
    found = [(one, out) for one, out in commands if " measure " not in one]
    assert len(found) >= 3
    for command, shown in found:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
        done = ddlnb(*(mine if word == "mine.py" else word for word in words), check=True)
        said = done.stdout.splitlines()
        for line in shown.splitlines():
            assert line == "..." or line in said


def test_a_file_that_has_not_changed_is_run_once(tmp_path):
    path = tmp_path / "counts.py"
    path.write_text("state = []\n")
    first = run_file(path)
    assert run_file(path) is first
    path.write_text("state = [1]\n")
    assert run_file(path).state == [1]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.py", None, "absent.py' is no Python file; give one that registers"),
        ("mine.txt", "", "mine.txt' is no Python file"),
        ("broken.py", "1 / 0", "broken.py' cannot be run: ZeroDivisionError: division by zero"),
        (
            "taken.py",
            "import ddlnb\nfrom dataclasses import replace\n"
            "ddlnb.register_method(replace(ddlnb.get_method('DeAR'), name='MG-WFBP'))",
            "method 'MG-WFBP' is registered with other choices; give yours another name, or",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, name, text, said):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    done = ddlnb("--with", str(path), "methods")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
