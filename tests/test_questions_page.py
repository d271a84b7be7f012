"""Every command of docs/questions.md prints the lines that stand below it."""

import re
import shlex

import pytest

from ddlnb.files import ROOT
from tests.command_line import ddlnb

PAGE = (ROOT / "docs" / "questions.md").read_text()
BLOCKS = re.findall(r"```\n\$ \.venv/bin/ddlnb (.*)\n((?:.*\n)+?)```", PAGE)


def test_every_question_has_a_command_and_its_answer():
    assert len(BLOCKS) == PAGE.count("\n## ") == PAGE.count("$ .venv/bin/ddlnb")


@pytest.mark.slow
@pytest.mark.parametrize(("words", "answer"), BLOCKS, ids=[words for words, _ in BLOCKS])
def test_a_question_s_command_prints_its_answer(words, answer, monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = ddlnb(*shlex.split(words), check=True).stdout.splitlines()
    assert [line for line in answer.splitlines() if line not in printed] == []
