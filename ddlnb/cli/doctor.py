"""Find out what this machine can run, and how to fix what it cannot."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ddlnb.engines.catalogue import ENGINES
from ddlnb.launch import leftovers
from ddlnb.launch.emulation.network import lacking
from ddlnb.provenance import cores, machine


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
    program = shutil.which("mpiexec")
    has_binding = importlib.util.find_spec("mpi4py") is not None
    detail = program or "no mpiexec"
    if program and not has_binding:
        detail += ", but no mpi4py"
    fix = "apt-get install openmpi-bin libopenmpi-dev, then .venv/bin/pip install mpi4py"
    return Finding("launcher mpi", bool(program) and has_binding, detail, fix)


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
    _program(
        "launcher slurm",
        "sbatch",
        "run on a Slurm cluster's login node; to try it: scripts/launchers/slurm_one_node.sh start",
    ),
    _program("launcher ssh", "ssh", "apt-get install openssh-client"),
    _program("C++ compiler", "g++", "apt-get install g++ make"),
    _program("make", "make", "apt-get install make"),
    _batch_policy,
    _leftovers,
]
