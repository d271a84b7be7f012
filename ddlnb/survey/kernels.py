"""Kernels that are copies of one process, which has imported what notebooks import.

To import torch, pandas and their company takes a kernel six seconds of a core, and a fork of a
process that has done it takes none. A worker starts one such origin (`forking`), and jupyter_client
asks it for kernels through `Forked`. The origin imports what the notebook imports, once, and runs
no cell, so that no notebook sees another one's names. A kernel ends when the origin does, and the
origin when its worker does. Where a process cannot be waited for by a file (`is_possible`), kernels
are started as usual.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import IO, Any

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from ddlnb.errors import DdlnbError
from ddlnb.reading import read_json

NAME = "forked"  # of the provisioner, in the specification of a kernel
NOTEBOOK_COLUMNS = 20  # of a table, by pandas where a kernel imports it
LATE = ("numba", "seaborn", "torch")  # what our modules import when they need it
BACKEND = "module://matplotlib_inline.backend_inline"  # what a kernel sets before it imports any


@contextlib.contextmanager
def forking() -> Iterator[dict[str, Any]]:
    """Start an origin, and yield what the specification of its kernels says in ``metadata``."""
    if not is_possible():
        yield {}
        return
    words = [sys.executable, "-P", "-m", __name__]
    environment = {"MPLBACKEND": BACKEND} | os.environ
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as origin:
        Forked.origin = origin
        entry = EntryPoint(
            NAME, f"{__name__}:{Forked.__name__}", KernelProvisionerFactory.GROUP_NAME
        )
        KernelProvisionerFactory.instance().provisioners[NAME] = entry
        yield {"kernel_provisioner": {"provisioner_name": NAME}}


def is_possible() -> bool:
    """Return whether the system lets one wait for the child of another process."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not Linux, an old one, or a sandbox
        return False
    return True


def imports_of(notebook: Path) -> list[str]:
    """Return the modules that a notebook's cells import, and what ours import late.

    >>> from ddlnb.files import NOTEBOOKS
    >>> imports_of(NOTEBOOKS / "sec2_intensity.ipynb")[:2]
    ['IPython.display', 'ddlnb.figures']
    """
    cells = [cell for cell in read_json(notebook)["cells"] if cell["cell_type"] == "code"]
    found: set[str] = set()
    for cell in cells:
        with contextlib.suppress(SyntaxError):  # a magic
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
                elif isinstance(node, ast.Import):
                    found |= {name.name for name in node.names}
    return sorted(found.union(LATE) if any(name.startswith("ddlnb") for name in found) else found)


class Forked(LocalProvisioner):
    """Launches kernels as forks of the origin."""

    origin: subprocess.Popen[str]
    imports: Sequence[str] = ()  # of the notebook that comes next

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Fork a kernel with these arguments, environment and folder; return where it listens."""
        self.cwd = kwargs.get("cwd") or Path.cwd()
        asked = {"words": cmd, "environment": kwargs["env"], "folder": str(self.cwd)}
        asked["imports"] = self.imports
        assert self.origin.stdin is not None
        assert self.origin.stdout is not None
        self.origin.stdin.write(json.dumps(asked) + "\n")
        self.origin.stdin.flush()
        if not (pid := self.origin.stdout.readline()):
            raise DdlnbError("the process that its kernel would be a copy of has ended")
        self.pid = self.pgid = int(pid)  # it leads a session of its own
        self.process = Copy(self.pid)  # type: ignore[assignment]
        return self.connection_info


class Copy:
    """A process that somebody else forked, with what jupyter_client asks of a `Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._file: IO[bytes] | None = os.fdopen(os.pidfd_open(pid), "rb", buffering=0)
        except ProcessLookupError:  # it has ended already
            self._file = None

    def poll(self) -> int | None:
        """Return None while it runs, else 0: only its parent could know more."""
        if self._file is None or select.select([self._file], [], [], 0)[0]:
            return self.wait()
        return None

    def wait(self) -> int:
        """Return 0 once it has ended."""
        if self._file is not None:
            select.select([self._file], [], [])
            self._file.close()
            self._file = None
        return 0

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


# In the origin.


def _serve() -> None:
    """Fork a kernel for every line of standard input, and answer with its process number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when its kernels end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    for line in sys.stdin:
        asked = json.loads(line)
        for module in asked["imports"]:
            with contextlib.suppress(Exception):  # the notebook that imports it says so
                importlib.import_module(module)
        if pid := os.fork():
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()
        else:
            _become_kernel(asked["words"], asked["environment"], asked["folder"])


def _become_kernel(words: Sequence[str], environment: dict[str, str], folder: str) -> None:
    """Be what these words, ``python -m ipykernel_launcher ...``, start, until it ends."""
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    os.chdir(folder)
    sys.path.insert(0, "")  # modules beside the notebook, as in any kernel; the origin has none
    os.environ.clear()
    os.environ.update(environment)
    if pandas := sys.modules.get("pandas"):  # which took the origin for a terminal
        pandas.set_option("display.max_columns", NOTEBOOK_COLUMNS, "display.max_colwidth", None)
    sys.argv = list(words[words.index("-m") + 1 :])
    launch_new_instance([*sys.argv[1:], f"--IPKernelApp.parent_handle={os.getppid()}"])
    threading._shutdown()  # type: ignore[attr-defined]  # joins threads, as an interpreter's end
    atexit._run_exitfuncs()  # of which IPython's closes what cells have left open
    os._exit(0)  # to take all that was imported apart would last a second or two


if __name__ == "__main__":
    _serve()
