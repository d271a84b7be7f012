"""Commands of docs/questions.md and other pages print the lines that stand below them."""

import re
import shlex

import pytest

from ddlnb.files import ROOT
from tests.command_line import ddlnb

BLOCK = re.compile(r"```\n\$ \.venv/bin/ddlnb (.*)\n((?:[^`].*\n)+)```")
PAGE = (ROOT / "docs" / "questions.md").read_text()
BLOCKS = BLOCK.findall(PAGE)
PAGES = ("advise", "own_cluster", "own_model")  # others show parts of answers, or measure


def test_every_question_has_a_command_and_its_answer():
    assert len(BLOCKS) == PAGE.count("\n## ") == PAGE.count("$ .venv/bin/ddlnb")


@pytest.mark.thorough(but=4)
@pytest.mark.slow
@pytest.mark.parametrize(("words", "answer"), BLOCKS, ids=[words for words, _ in BLOCKS])
def test_a_question_s_command_prints_its_answer(words, answer, monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = ddlnb(*shlex.split(words), check=True).stdout.splitlines()
    assert [line for line in answer.splitlines() if line not in printed] == []


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_first_command_of_a_page_prints_its_answer(name, monkeypatch, tmp_path):
    text = (ROOT / "docs" / f"{name}.md").read_text()
    (words, answer), *_ = BLOCK.findall(text)
    if model := re.search(r"```python\n(.*?)```", text, re.DOTALL):
        (tmp_path / "my.py").write_text(model[1])
    monkeypatch.chdir(tmp_path)
    printed = ddlnb(*shlex.split(words), check=True).stdout.splitlines()
    assert [line for line in answer.splitlines() if line not in printed] == []
