"""What this machine can run: the doctor tries before it says yes."""

import io

import pandas as pd
import pytest
from typer.testing import CliRunner

from ddlnb.cli.app import app
from ddlnb.cli.doctor import examine


def test_the_doctor_names_a_fix_for_what_is_missing():
    done = CliRunner().invoke(app, ["doctor", "--csv"])
    table = pd.read_csv(io.StringIO(done.stdout))
    missing = table[table.iloc[:, 1] != "yes"]
    assert missing["fix"].notna().all()


@pytest.mark.parametrize(
    ("part", "programs", "found", "detail"),
    [
        (
            "slurm",
            {"sbatch": "exit 0", "sinfo": "echo 'all* up'"},
            True,
            "sinfo shows a partition that is up",
        ),
        (
            "slurm",
            {"sbatch": "exit 0", "sinfo": "echo 'all* down'"},
            False,
            "no partition is up",
        ),
        (
            "slurm",
            {"sbatch": "exit 0", "sinfo": "echo no source >&2; echo no controller >&2; exit 1"},
            False,
            "Slurm's programs are here, but sinfo failed: no controller",
        ),
        ("mpi", {"mpiexec": "echo broken >&2; exit 1"}, False, "failed: broken"),
        ("ssh", {"ssh": "echo broken >&2; exit 1"}, False, "failed: broken"),
    ],
)
def test_the_doctor_tries_a_launcher_before_it_says_yes(
    part, programs, found, detail, monkeypatch, tmp_path
):
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (said,) = [one for one in examine() if one.part == f"launcher {part}"]
    assert said.found == found
    assert said.detail.endswith(detail)
