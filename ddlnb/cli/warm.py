"""Processes for notebooks: each on its own, or forked from one that has imported what they import.

Importing torch, pandas and the studies takes some seconds of a core, as long as many a notebook.
Within ``preloaded()``, one process does it for all, forks before anything of it runs, and ends
with its owner. Where a process with torch cannot be forked, each notebook gets a new one.

A process is tied to its owner by a socket: it sends its pid, ends when the owner's end is closed,
and the owner sees when it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import ddlnb
from ddlnb.cli.execute_cells import execute_cells
from ddlnb.paths import ROOT

FORKS = sys.platform == "linux"  # macOS allows no fork after torch
COLUMNS = 20  # of a table, as pandas shows them in a notebook
LIBRARIES = (  # which the package's modules import late, or only through others
    *("papermill", "ipykernel.kernelapp", "ipywidgets", "tqdm.auto", "jinja2"),
    *("torch.distributed", "torch._dynamo", "transformers.models.auto.modeling_auto", "seaborn"),
    *("transformers.models.bert.modeling_bert", "transformers.models.resnet.modeling_resnet"),
    "matplotlib.backends.backend_agg",
)
LONGEST_REQUEST = 1 << 16
VARIABLES = "environment.json"  # in the private folder
INLINE = "module://matplotlib_inline.backend_inline"  # figures become outputs of cells


class _Preloaded:
    """The process that forks; it serves as long as the package is the same."""

    def __init__(self) -> None:
        self._changed = _package_changed()
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _begin(theirs, _environment(), "forks")
        self._socket.recv(1)  # when it has imported, or has ended

    @property
    def serves(self) -> bool:
        """Whether a process forked from it is what a new one would be."""
        return self._process.poll() is None and self._changed == _package_changed()

    def fork(self, tie: socket.socket, private: Path, variables: Mapping[str, str]) -> None:
        """Have it fork the process for a notebook, with these variables."""
        (private / VARIABLES).write_text(json.dumps(dict(variables)))
        socket.send_fds(self._socket, [str(private).encode()], [tie.fileno()])

    def close(self) -> None:
        """End it; the processes that it has forked are tied to their owners."""
        self._socket.close()
        self._process.wait()


_shared: _Preloaded | None = None


@contextlib.contextmanager
def preloaded() -> Iterator[None]:
    """Within this context, processes for notebooks are forked from one, if this system can.

    Variables that libraries read when they are imported, such as OMP_NUM_THREADS, are set before.
    """
    global _shared
    outer = _shared
    if FORKS and not (outer and outer.serves):
        _shared = _Preloaded()
    try:
        yield
    finally:
        if _shared is not None and _shared is not outer:
            _shared.close()
        _shared = outer


class NotebookProcess:
    """A process that executes the notebook of a private folder."""

    def __init__(self, private: Path, variables: Mapping[str, str]):
        """Start it with our environment and these variables."""
        variables = {**_environment(), **variables}
        self._said = b""  # its pid
        self._ended = False
        self._process: subprocess.Popen | None = None  # where it is our child
        self._tie, theirs = socket.socketpair()
        with theirs:
            if _shared and _shared.serves:
                _shared.fork(theirs, private, variables)
            else:
                self._process = _begin(theirs, variables, "once", str(private))

    def ended(self, seconds: float) -> bool:
        """Return whether it has ended, or does within these seconds."""
        if self._ended:
            return True
        self._tie.settimeout(seconds)
        try:
            more = self._tie.recv(64)
        except TimeoutError:
            return False
        except ConnectionResetError:
            more = b""
        self._said += more
        self._ended = not more
        return self._ended

    def end(self, seconds: float) -> None:
        """Ask it to shut its kernel down and to end; kill it if it has not after these seconds."""
        with contextlib.suppress(OSError):
            self._tie.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + seconds
        try:
            while not self._ended and (left := deadline - time.monotonic()) > 0:
                self.ended(left)
        finally:
            if not self._ended and self._said:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(self._said), signal.SIGKILL)  # its kernel ends without its parent
            self._tie.close()
            if self._process is not None:
                self._process.wait()


def _environment() -> dict[str, str]:
    """Return our environment, without progress bars."""
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    return {**inherited, "TQDM_DISABLE": "1"}


def _begin(tie: socket.socket, variables: Mapping[str, str], *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(tie.fileno()), *words],
        pass_fds=[tie.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=variables,
        start_new_session=True,  # an interrupt at the terminal reaches us, and we pass it on
    )


def _package_changed() -> float:
    """Return when a file of the package was last changed."""
    return max(path.stat().st_mtime for path in (ROOT / "ddlnb").rglob("*.py"))


def _import_everything() -> None:
    """Import what notebooks import; what cannot be imported here is for the notebooks to say."""
    modules = pkgutil.walk_packages(ddlnb.__path__, "ddlnb.", onerror=lambda _: None)
    own = (one.name for one in modules if not one.name.endswith("__main__"))
    for name in (*LIBRARIES, *own):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    _compile_schema()


def _compile_schema() -> None:
    """Have nbformat compile the schema by which it checks notebooks: once, where they are read."""
    import nbformat

    nbformat.reads(nbformat.writes(nbformat.v4.new_notebook()), as_version=4)


def _fork_for_all(owner: socket.socket) -> None:
    """Fork a process for each request, until the owner closes."""
    os.environ["MPLBACKEND"] = INLINE  # as ipykernel does before matplotlib is imported
    _import_everything()
    import numpy as np
    import pandas as pd

    pd.set_option("display.max_columns", COLUMNS)  # it took this process for a terminal
    gc.freeze()  # so that no collection touches, and copies, the pages that all share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is gone at once
    owner.send(b"!")
    while True:
        request, ties, *_ = socket.recv_fds(owner, LONGEST_REQUEST, 1)
        if not request:
            return
        tie = socket.socket(fileno=ties[0])
        if os.fork() == 0:
            owner.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            np.random.seed()  # or all would draw the same: its state was copied
            private = Path(request.decode())
            os.environ.clear()
            os.environ.update(json.loads((private / VARIABLES).read_text()), MPLBACKEND=INLINE)
            _execute_and_end(private, tie)
        tie.close()


def _execute_and_end(private: Path, tie: socket.socket) -> NoReturn:
    """Execute the notebook and end at once: to take down all that was imported takes long."""
    status = 1
    try:
        execute_cells(private, tie, forks=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(descriptor: str, task: str, *words: str) -> None:
    """Fork for all notebooks of the owner, or execute one."""
    tie = socket.socket(fileno=int(descriptor))
    if task == "forks":
        _fork_for_all(tie)
    else:
        execute_cells(Path(*words), tie, forks=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
