"""The command line, as a person types it."""

import io
import subprocess
import sys

import pandas as pd
import pytest

from ddlnb.workloads.models import TASKS
from tests.command_line import ddlnb


@pytest.mark.parametrize(
    ("words", "status", "said", "complained"),
    [
        (["methods", "--csv"], 0, "method,", ""),
        (
            ["plan", "--model", "small-conv", "--method", "WFPB-PS"],
            2,
            "",
            "ddlnb: --method: unknown method",
        ),
    ],
)
def test_a_process_ends_as_its_command_does(words, status, said, complained):
    command = [sys.executable, "-m", "ddlnb.cli.app", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.startswith(said)
    assert done.stderr.startswith(complained)
    assert len(done.stderr.splitlines()) == bool(complained)
    assert bool(done.stdout) == bool(said)


def test_models_are_a_table_for_machines_too():
    table = pd.read_csv(io.StringIO(ddlnb("models", "--csv", check=True).stdout))
    assert list(table["model"]) == list(TASKS)
    sizes = dict(zip(table["model"], table["parameters"], strict=True))
    assert (sizes["resnet50"], sizes["gpt2"]) == (25_557_032, 124_439_808)
