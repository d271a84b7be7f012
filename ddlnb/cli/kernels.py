"""Forked kernels: a notebook's kernel is a copy of a process that has imported everything.

Jupyter starts a kernel by a command; a ``Spare`` is forked before Jupyter is asked, and becomes the
kernel when the command is known (jupyter_client calls what starts kernels a provisioner).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

NAME = "ddlnb-forked"


class Spare:
    """A forked process that waits to become a kernel, with the methods of a Popen that it needs."""

    stdin = stdout = stderr = None

    def __init__(self, owner: socket.socket) -> None:
        """Fork, while this process has no thread; the owner's socket is not for the kernel."""
        self._control, theirs = socket.socketpair()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._control.close()
            owner.close()
            _become_kernel(theirs)
        theirs.close()

    def start(self, command: list[str], folder: str) -> None:
        """Become the kernel that the command, of ipykernel, describes."""
        self._control.sendall(json.dumps([command, folder]).encode())
        self._control.close()

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        """Return the exit status, when it has ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class ForkedKernel(LocalProvisioner):
    """Starts the kernel in the spare process, which serves once: it is never started again."""

    spare: Spare

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Return how to connect to the kernel that the spare has become."""
        self.process = self.spare  # type: ignore[assignment]
        self.pid = self.pgid = self.spare.pid  # a session of its own
        self.cwd = kwargs.get("cwd") or Path.cwd()
        self.spare.start(cmd, str(self.cwd))
        return self.connection_info


def offer(spare: Spare) -> dict[str, Any]:
    """Make the spare this process's next kernel; return what its kernelspec must say for it."""
    ForkedKernel.spare = spare
    where = f"{__name__}:{ForkedKernel.__qualname__}"
    entry = EntryPoint(NAME, where, KernelProvisionerFactory.GROUP_NAME)
    KernelProvisionerFactory.instance().provisioners[NAME] = entry
    return {"kernel_provisioner": {"provisioner_name": NAME}}


def _become_kernel(control: socket.socket) -> None:
    """Wait for the command, and run its kernel; end without a word if none comes."""
    status = 1
    try:
        os.setsid()
        with control:
            said = control.recv(1 << 16)
        if said:
            command, folder = json.loads(said)
            os.chdir(folder)
            parent = f"--IPKernelApp.parent_handle={os.getppid()}"  # without which it ends
            sys.argv = ["ipykernel_launcher", parent, *command[command.index("-f") :]]
            from ipykernel.kernelapp import launch_new_instance

            launch_new_instance()
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 0
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)
