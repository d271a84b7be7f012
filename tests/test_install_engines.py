"""The script that builds the engines, with engines that are built in no time."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddlnb.files import ROOT

SCRIPT = "install_engines.sh"
PYTHON = """#!/bin/sh
[ "$1" = -c ] && echo cpython x86_64 2.0 || echo "$@" >>"$PIP_LOG"
"""
BUILDS = """[ "$1" = variant ] && echo cpu && exit
touch "$MARKS/{name}"
for tenth in $(seq 100); do  # until the other one is being built, too
    [ -e "$MARKS/{other}" ] && touch "$2/{name}.whl" && exit
    sleep 0.1
done
echo nobody builds {other}; exit 1
"""
FAILS = """[ "$1" = variant ] && echo cpu && exit
echo no compiler; exit 1
"""


@pytest.fixture
def install(tmp_path):
    """Install these engines, given as the texts of their scripts by name."""
    folder = tmp_path / "scripts"
    (folder / "engines").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / SCRIPT, folder)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / "marks").mkdir()
    environment = {
        "DDLNB_WHEELS": str(tmp_path / "wheels"),
        "PIP_LOG": str(tmp_path / "pip"),
        "MARKS": str(tmp_path / "marks"),
    }

    def run(
        engines: dict[str, str], *words: str
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        for name, text in engines.items():
            (folder / "engines" / f"{name}.sh").write_text(text)
        done = subprocess.run(
            ["sh", str(folder / SCRIPT), str(python), *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )
        log = tmp_path / "pip"
        installed = log.read_text().splitlines() if log.exists() else []
        return done, [Path(line.split()[-1]).name for line in installed]

    return run


def test_engines_are_built_side_by_side_and_once(install):
    engines = {
        "one": BUILDS.format(name="one", other="two"),
        "two": BUILDS.format(name="two", other="one"),
    }
    done, installed = install(engines, "wheels")
    assert done.returncode == 0, done.stderr
    assert not installed
    assert sorted(done.stdout.split("Building the engine ")[1:])[0].startswith("one; this takes")
    again, installed = install(engines)
    assert again.stdout == again.stderr == ""
    assert installed == ["one.whl", "two.whl"]


def test_an_engine_that_cannot_be_built_is_told_and_left_out(install):
    done, installed = install({"one": FAILS, "two": BUILDS.format(name="two", other="two")})
    assert done.returncode == 0
    assert "The engine one was not built; all else works without it" in done.stderr
    assert done.stderr.endswith("no compiler\n")
    assert installed == ["two.whl"]
