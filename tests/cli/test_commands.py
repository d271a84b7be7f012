"""The commands as a whole: how many, what their help shows, what became of the old names."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

from ddlnb.cli.app import COMMANDS, OLD, app, renamed
from ddlnb.cli.options import OWN
from tests.command_line import ddlnb

ROOT = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT, info_name="ddlnb")


def every_command():
    """Yield the words of every command, and the command."""
    for name in COMMANDS:
        found = ROOT.get_command(CONTEXT, name)
        members = getattr(found, "commands", {"": found})
        for member, command in members.items():
            yield (name if member in ("", OWN) else f"{name} {member}"), command


EVERY = dict(every_command())


def test_a_newcomer_meets_at_most_fourteen_commands_in_groups():
    assert len(ROOT.list_commands(CONTEXT)) <= 14
    said = ddlnb("-h").stdout
    assert re.findall(r"─ (\w+) ─", said) == ["Options", "Ask", "Run", "Look", "Know", "Book"]
    assert all(f"│ {name}" in said for name in COMMANDS)
    assert not any(re.search(rf"│ {name} ", said) for name in OLD)
    assert ddlnb().stdout == said
    assert ddlnb("--version").stdout.startswith("ddlnb 0.")


@pytest.mark.parametrize("words", EVERY)
def test_the_help_of_every_command_has_two_examples_that_parse(words):
    said = " ".join((EVERY[words].help or "").split())
    examples = [one for one in re.findall(r"`(ddlnb [^`]+)`", said.partition("Examples: ")[2])]
    assert len(examples) == 2
    for example in examples:
        assert example.startswith(f"ddlnb {words}")
        given = shlex.split(example.removeprefix(f"ddlnb {words}"))
        EVERY[words].make_context(words, given, parent=CONTEXT)  # refuses what it does not know


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_goes_on_and_names_the_new_one_in_one_line(old):
    done = ddlnb(old, "--help", check=True)
    new = " ".join(renamed(old)[:2])
    assert done.stderr == f"note: `ddlnb {old}` is now `ddlnb {new}`\n"
    assert f"Usage: ddlnb {new}" in done.stdout


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ddlnb fore", "forecast"),
        ("ddlnb forecast sca", "scaling"),
        ("ddlnb forecast --clu", "--cluster"),
        ("ddlnb forecast --cluster survey-10", "survey-10GbE"),
        ("ddlnb forecast --method MG", "MG-WFBP"),
    ],
)
def test_the_shell_completes(line, found):
    place = str(len(line.split()) - 1)
    asked = {"_DDLNB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": place}
    done = subprocess.run(
        [sys.executable, "-c", "from ddlnb.cli.app import app; app(prog_name='ddlnb')"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found in done.stdout.split()


def test_only_the_command_that_is_asked_for_is_loaded():
    code = (
        "import sys; from ddlnb.cli.app import app; app(['--help'], standalone_mode=False); "
        "print([name for name in ('torch', 'pandas', 'numba', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
