"""Find out what this machine can run, and how to fix what it cannot.

Launchers are tried: that a program is installed does not mean that it starts anything.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from ddlnb.cli.options import Csv, print_table
from ddlnb.engines.catalogue import ENGINES
from ddlnb.files import cores, machine
from ddlnb.launch import leftovers
from ddlnb.launch.emulation.network import lacking
from ddlnb.launch.launchers import slurm_lacking

app = typer.Typer()
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
    return [check() for check in _CHECKS]


def _python() -> Finding:
    version = sys.version.split()[0]
    return Finding(
        "python", sys.version_info >= (3, 11), version, "install Python 3.11 or later", True
    )


def _processor() -> Finding:
    return Finding(
        "processor", True, machine() + ("" if cores() > 1 else "; workers will share it")
    )


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", False, "", "make env", True)
    import torch

    return Finding("torch", True, torch.__version__, needed=True)


def _gloo() -> Finding:
    fix = "install a torch build with distributed and gloo"
    try:
        import torch.distributed as dist

        found = dist.is_available() and dist.is_gloo_available()
    except ImportError:
        found = False
    return Finding("engine torch/ddp, backend gloo", found, "all-reduce on CPUs", fix, True)


def _nccl() -> Finding:
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return Finding("engine torch/ddp, backend nccl", False, "no torch", "make env")
    gpus = torch.cuda.device_count()
    found = gpus > 0 and dist.is_nccl_available()
    detail = f"{gpus} GPU" if found else "no NVIDIA GPU seen by torch"
    fix = "on a machine with NVIDIA GPUs install a CUDA build of torch"
    return Finding("engine torch/ddp, backend nccl", found, detail, fix)


def _package(part: str, name: str, detail: str, fix: str) -> Callable[[], Finding]:
    def check() -> Finding:
        return Finding(part, importlib.util.find_spec(name) is not None, detail, fix, True)

    return check


def _mpi() -> Finding:
    # As root Open MPI wants to be asked twice.
    variables = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    silence = _silence("mpiexec", "-n", "1", "true", **variables)
    if not silence and importlib.util.find_spec("mpi4py") is None:
        silence = f"{shutil.which('mpiexec')}, but no mpi4py"
    detail = silence or f"{shutil.which('mpiexec')} starts processes"
    fix = "apt-get install openmpi-bin libopenmpi-dev, then .venv/bin/pip install mpi4py"
    return Finding("launcher mpi", not silence, detail, fix)


def _slurm() -> Finding:
    lack = slurm_lacking()
    fix = (
        "run on a Slurm cluster's login node; to try it: make launchers, as root, then "
        "scripts/launchers/slurm_one_node.sh start"
    )
    return Finding("launcher slurm", not lack, lack or "sinfo shows a partition that is up", fix)


def _ssh() -> Finding:
    silence = _silence("ssh", "-V")
    detail = silence or f"{shutil.which('ssh')}; hosts were not tried"
    return Finding("launcher ssh", not silence, detail, "apt-get install openssh-client")


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


def _engine(name: str) -> Callable[[], Finding]:
    def check() -> Finding:
        lack = ENGINES[name].missing()
        fix = "install g++ and make, then: make engines"
        return Finding(f"engine {name}", not lack, lack or ENGINES[name].about, fix)

    return check


def _emulated() -> Finding:
    lack = lacking()
    detail = lack or "nodes in network namespaces, as far as can be seen without making one"
    return Finding("launcher emulated", not lack, detail, "see docs/emulate.md")


def _program(part: str, name: str, fix: str) -> Callable[[], Finding]:
    def check() -> Finding:
        path = shutil.which(name)
        return Finding(part, path is not None, path or f"no {name}", fix)

    return check


def _batch_policy() -> Finding:
    found = hasattr(os, "SCHED_BATCH")
    fix = "none: without it (outside Linux) small all-reduces are slower when ranks share cores"
    return Finding("batch scheduling", found, "quicker small all-reduces on shared cores", fix)


def _leftovers() -> Finding:
    kinds = Counter(leftover.kind for leftover in leftovers.find())
    detail = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    detail = f"of crashed sessions: {detail}" if kinds else "crashed sessions left nothing"
    return Finding("no leftovers", not kinds, detail, "ddlnb doctor --clean")


_CHECKS: list[Callable[[], Finding]] = [
    _python,
    _processor,
    _torch,
    _gloo,
    _nccl,
    _package("parameter servers", "zmq", "ZeroMQ over TCP", "pip install pyzmq"),
    _engine("horovod"),
    _engine("byteps"),
    _package("launcher local", "ipyparallel", "ranks on this machine", "pip install ipyparallel"),
    _emulated,
    _mpi,
    _slurm,
    _ssh,
    _program("C++ compiler", "g++", "apt-get install g++ make"),
    _program("make", "make", "apt-get install make"),
    _batch_policy,
    _leftovers,
]


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
