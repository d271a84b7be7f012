"""Find out what this machine can run, and how to fix what it cannot.

Launchers are tried: that a program is installed does not mean that it starts anything.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ddlnb.cli.options import App, Csv, print_table
from ddlnb.emulation.network import lacking
from ddlnb.engines.catalogue import ENGINES
from ddlnb.files import cores, machine
from ddlnb.launch import leftovers
from ddlnb.launch.launchers import slurm_lacking

app = App()
TRY_SECONDS = 20.0  # for a launcher that is tried


@dataclass(frozen=True)
class Finding:
    """One part of this machine. If a ``needed`` one is missing, `ddlnb doctor` fails."""

    part: str
    found: bool
    detail: str
    fix: str = ""
    needed: bool = False


def examine() -> list[Finding]:
    """Return findings on engines, launchers, GPUs, compilers and leftovers of this machine."""
    torch, distributed = _module("torch"), _module("torch.distributed")
    gloo = (
        distributed is not None and distributed.is_available() and distributed.is_gloo_available()
    )
    gpus = torch.cuda.device_count() if torch else 0
    nccl = gpus > 0 and distributed.is_nccl_available()
    kinds = Counter(leftover.kind for leftover in leftovers.find())
    left = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    # As root Open MPI wants to be asked twice.
    asked = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    mpi = _silence("mpiexec", "-n", "1", "true", **asked)
    if not mpi and importlib.util.find_spec("mpi4py") is None:
        mpi = f"{shutil.which('mpiexec')}, but no mpi4py"
    return [
        Finding(
            "python",
            sys.version_info >= (3, 11),
            sys.version.split()[0],
            "install Python 3.11 or later",
            True,
        ),
        Finding("processor", True, machine() + ("" if cores() > 1 else "; workers will share it")),
        Finding("torch", torch is not None, torch.__version__ if torch else "", "make env", True),
        Finding(
            "engine torch/ddp, backend gloo",
            gloo,
            "all-reduce on CPUs",
            "install a torch build with distributed and gloo",
            True,
        ),
        Finding(
            "engine torch/ddp, backend nccl",
            nccl,
            f"{gpus} GPU" if nccl else "no NVIDIA GPU seen by torch" if torch else "no torch",
            "on a machine with NVIDIA GPUs install a CUDA build of torch" if torch else "make env",
        ),
        _package("parameter servers", "zmq", "ZeroMQ over TCP", "pip install pyzmq"),
        *(
            _tried(f"engine {name}", ENGINES[name].missing(), ENGINES[name].about, BUILD_ENGINES)
            for name in ("horovod", "byteps")
        ),
        _package(
            "launcher local", "ipyparallel", "ranks on this machine", "pip install ipyparallel"
        ),
        _tried(
            "launcher emulated",
            lacking(),
            "nodes in network namespaces, as far as can be seen without making one",
            "see docs/emulate.md",
        ),
        _tried(
            "launcher mpi",
            mpi,
            f"{shutil.which('mpiexec')} starts processes",
            "apt-get install openmpi-bin libopenmpi-dev, then .venv/bin/pip install mpi4py",
        ),
        _tried(
            "launcher slurm",
            slurm_lacking(),
            "sinfo shows a partition that is up",
            "run on a Slurm cluster's login node; to try it: make launchers, as root, then "
            "scripts/launchers/slurm_one_node.sh start",
        ),
        _tried(
            "launcher ssh",
            _silence("ssh", "-V"),
            f"{shutil.which('ssh')}; hosts were not tried",
            "apt-get install openssh-client",
        ),
        *(
            Finding(part, path is not None, path or f"no {name}", fix)
            for part, name, fix in PROGRAMS
            for path in (shutil.which(name),)
        ),
        Finding(
            "batch scheduling",
            hasattr(os, "SCHED_BATCH"),
            "quicker small all-reduces on shared cores",
            "none: without it (outside Linux) small all-reduces are slower when ranks share cores",
        ),
        Finding(
            "no leftovers",
            not kinds,
            f"of crashed sessions: {left}" if left else "crashed sessions left nothing",
            "ddlnb doctor --clean",
        ),
    ]


BUILD_ENGINES = "install g++ and make, then: make engines"
PROGRAMS = (
    ("C++ compiler", "g++", "apt-get install g++ make"),
    ("make", "make", "apt-get install make"),
)


def _tried(part: str, lack: str, detail: str, fix: str) -> Finding:
    """Return the finding on a part that was tried, and lacked this."""
    return Finding(part, not lack, lack or detail, fix)


def _package(part: str, name: str, detail: str, fix: str) -> Finding:
    return Finding(part, importlib.util.find_spec(name) is not None, detail, fix, True)


def _module(name: str) -> Any:
    """Return a module, None where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _silence(*command: str, **variables: str) -> str:
    """Run a command; return why it is of no use here, "" if it succeeded."""
    if shutil.which(command[0]) is None:
        return f"no {command[0]}"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=TRY_SECONDS,
            env={**os.environ, **variables},
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} was not done after {TRY_SECONDS:g} s"
    last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    return f"{' '.join(command)} failed: {last}" if done.returncode else ""


@app.command()
def doctor(
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Remove what crashed sessions left; living ones stay."),
    ] = False,
    csv: Csv = False,
) -> None:
    """Say what this machine can run, and how to fix what it cannot. Fails if a need is unmet.

    Examples: `ddlnb doctor` and `ddlnb doctor --clean`.
    """
    for removed in leftovers.remove(leftovers.find()) if clean else ():
        typer.echo(f"removed {removed}", err=True)
    findings = examine()
    rows = [
        {
            "part": finding.part,
            "": "yes" if finding.found else ("MISSING" if finding.needed else "no"),
            "detail": finding.detail,
            "fix": "" if finding.found else finding.fix,
        }
        for finding in findings
    ]
    print_table(rows, csv, "This machine")
    if any(finding.needed and not finding.found for finding in findings):
        raise typer.Exit(1)
