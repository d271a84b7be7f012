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
    ("sinfo", "found", "detail"),
    [
        ("echo 'all* up'", True, "sinfo shows a partition that is up"),
        ("echo 'all* down'", False, "no partition is up"),
        (
            "echo no source >&2; echo no controller >&2; exit 1",
            False,
            "Slurm's programs are here, but sinfo failed: no controller",
        ),
    ],
)
def test_the_doctor_calls_slurm_usable_only_where_it_answers(
    sinfo, found, detail, monkeypatch, tmp_path
):
    for name, line in (("sbatch", "exit 0"), ("sinfo", sinfo)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (said,) = [one for one in examine() if one.part == "launcher slurm"]
    assert (said.found, said.detail) == (found, detail)


@pytest.mark.parametrize(("program", "part"), [("mpiexec", "mpi"), ("ssh", "ssh")])
def test_the_doctor_tries_a_launcher_before_it_says_yes(program, part, monkeypatch, tmp_path):
    (tmp_path / program).write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (said,) = [one for one in examine() if one.part == f"launcher {part}"]
    assert not said.found
    assert said.detail.endswith("failed: broken")
