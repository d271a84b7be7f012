"""Provenance: what a result was measured on, and with which software."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ddlnb.paths import ROOT

_RECORDED = ("ddlnb", "torch", "numpy", "ipyparallel", "pyzmq")


@cache
def machine() -> str:
    """Return the processor and the number of cores, such as ``'Xeon Gold 6230, 2 cores'``."""
    return f"{processor()}, {cores()} cores"


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def versions() -> str:
    """Return the versions of Python and of the packages that can change a result."""
    found = [f"python {platform.python_version()}"]
    for package in _RECORDED:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return "; ".join(found)


@cache
def commit() -> str:
    """Return the checkout's short commit, with ``+`` if files differ from it; empty outside git."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def provenance() -> dict[str, str]:
    """Return the columns machine, versions, commit and time (UTC) of a results row."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"machine": machine(), "versions": versions(), "commit": commit(), "time": now}
