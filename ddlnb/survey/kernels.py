"""Kernels forked from one process that has imported what notebooks need.

Importing torch, pandas and matplotlib takes a kernel of its own seconds of a core: more than most
notebooks compute. The process imports them for all, runs nothing of them, forks for every line of
JSON that it reads, and answers with the process id. It ends with its standard input, and kernels
end when it has.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo

FIGURES = "module://matplotlib_inline.backend_inline"  # as ipykernel says if nobody has before it
COLUMNS = 20  # that pandas shows in a kernel; imported elsewhere, it takes that for a terminal
NAME = "forked"
# Not with -P, which its kernels would obey: a notebook imports what lies in its folder.
START = """
import sys
sys.path[:] = filter(None, sys.path)
from ddlnb.survey.kernels import main
main(sys.argv[1:])
"""


class ForkedKernel(psutil.Process):
    """A kernel's process, with what a provisioner asks of one."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """Return None while it runs."""
        return None if self.is_running() else 0

    def send_signal(self, sig: int) -> None:
        """Send it a signal if it still runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            super().send_signal(sig)


class ForkedKernels(LocalProvisioner):
    """Has kernels forked where Jupyter would start their commands."""

    source: ClassVar[subprocess.Popen[str]]

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Return how to connect to a new kernel. OSError if what forks them has ended."""
        folder = str(kwargs.get("cwd") or Path.cwd())
        request = {"words": cmd[cmd.index("-f") :], "env": kwargs["env"], "cwd": folder}
        assert self.source.stdin is not None
        assert self.source.stdout is not None
        self.source.stdin.write(json.dumps(request) + "\n")
        self.source.stdin.flush()
        if not (answer := self.source.stdout.readline()):
            raise OSError("the process that forks kernels has ended")
        self.process = ForkedKernel(int(answer))
        self.pid = self.pgid = self.process.pid  # which leads a session of its own
        return self.connection_info


def fork_kernels(modules: Sequence[str]) -> None:
    """Have all kernels of this process forked from one that imports these modules, from now on."""
    ForkedKernels.source = subprocess.Popen(
        [sys.executable, "-c", START, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MPLBACKEND": FIGURES},
    )
    factory = KernelProvisionerFactory.instance()
    place = f"{__name__}:{ForkedKernels.__name__}"
    factory.provisioners[NAME] = EntryPoint(NAME, place, factory.GROUP_NAME)
    factory.default_provisioner_name = NAME


def main(modules: Sequence[str]) -> None:
    """Fork a kernel for every line of standard input; return in a kernel when it has ended."""
    import numpy as np
    from ipykernel.kernelapp import IPKernelApp

    for name in modules:
        with contextlib.suppress(Exception):  # the notebook that needs it says why it cannot be
            importlib.import_module(name)
    if pandas := sys.modules.get("pandas"):
        pandas.set_option("display.max_columns", COLUMNS)
    gc.freeze()  # so that no collection touches, and copies, the pages that all share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is gone at once
    parent = os.getpid()
    for line in sys.stdin:
        if pid := os.fork():
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()
            continue
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, sys.stdin.fileno())
        os.dup2(nowhere, sys.stdout.fileno())
        request = json.loads(line)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        np.random.seed()  # or all would draw the same: its state was copied
        sys.argv = ["kernel", *request["words"], f"--IPKernelApp.parent_handle={parent}"]
        return IPKernelApp.launch_instance()
