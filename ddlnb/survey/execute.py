"""Execute one notebook with parameters, in a process of its own that ends with its owner.

The kernel is of this interpreter, in private folders, so that several notebooks can run side by
side and nothing of the user's configuration reaches them.

The process of one notebook: it lets papermill execute the cells in a kernel, and answers.

Processes for notebooks: each on its own, or forked from one that has imported what they import.

Importing torch, pandas and the modules of notebooks takes some seconds of a core, as long as many
a notebook.
Within ``preloaded()``, one process does it for all, forks before anything of it runs, and ends
with its owner. Where a process with torch cannot be forked, each notebook gets a new one.

A process is tied to its owner by a socket: it sends its pid, ends when the owner's end is closed,
and the owner sees when it has ended.

Forked kernels: a notebook's kernel is a copy of a process that has imported everything.

Jupyter starts a kernel by a command; a ``Spare`` is forked before Jupyter is asked, and becomes the
kernel when the command is known (jupyter_client calls what starts kernels a provisioner).
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
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NoReturn

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

import ddlnb
from ddlnb.errors import DdlnbError, MissingPart, require
from ddlnb.files import BUILD, NOTEBOOKS, ROOT, require_writable, write_atomically
from ddlnb.survey.notebooks import Notebook, check_parameters, get_notebook

REQUEST, ANSWER, ERRORS = "request.json", "answer.json", "stderr.txt"  # in the private folder
QUOTED_CHARACTERS = 60  # of the line of code that failed


def execute_cells(private: Path, owner: socket.socket, *, forks: bool) -> None:
    """Execute the requested notebook in this process, and answer None or what went wrong.

    The owner is told our pid at once; when it closes its socket, the kernel and this process end.
    """
    # A job started in the background inherits that interrupts are ignored, but ours must arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (private / ERRORS).open("w") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    os.environ.update(_private_folders(private))
    owner.sendall(f"{os.getpid()}\n".encode())
    kernel: dict[str, Any] = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
    }
    if forks:
        kernel["metadata"] = offer(Spare(owner))  # before this process has a thread
    folder = private / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(kernel))
    threading.Thread(target=_end_with_owner, args=(owner,), daemon=True).start()
    import papermill
    from papermill.exceptions import PapermillExecutionError

    request = json.loads((private / REQUEST).read_text())
    answer = None
    try:
        papermill.execute_notebook(**request, kernel_name="python3", progress_bar=False)
    except PapermillExecutionError as failure:
        answer = {"error": _explained(failure), "kind": failure.ename}
    except Exception as error:
        answer = {"error": f"to be executed: {type(error).__name__}: {error}", "kind": ""}
    (private / ANSWER).write_text(json.dumps(answer))


def _private_folders(private: Path) -> dict[str, str]:
    """Return what Jupyter reads when it looks for its files, and never where it is imported."""
    return {
        "IPYTHONDIR": str(private / "ipython"),
        "JUPYTER_PATH": str(private),
        "JUPYTER_DATA_DIR": str(private),
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTER_NO_CONFIG": "1",
    }


def _end_with_owner(owner: socket.socket) -> None:
    """Interrupt this process when the owner closes its socket or dies."""
    owner.recv(1)
    os.kill(os.getpid(), signal.SIGINT)


def _explained(failure: Any) -> str:
    """Return the cell that failed, its last line, and what the error says."""
    source = (failure.source or "").strip().splitlines() or [""]
    quoted = source[-1][:QUOTED_CHARACTERS]
    lines = str(failure.evalue).strip().splitlines() or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"in cell {failure.exec_count} ({quoted!r}): {failure.ename}: {said}"


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


ENDING_SECONDS = 15.0  # for a notebook to shut its kernel down before it is killed
LOOK_SECONDS = 0.2  # between two looks whether it was cancelled


def run_notebook(
    name: str,
    out: str | Path | None = None,
    timeout_seconds: float = 600,
    *,
    folder: Path = NOTEBOOKS,
    **parameters: object,
) -> Path:
    """Execute a notebook; return the executed one, by default ``build/notebooks/<name>.ipynb``.

    The notebook runs in the folder of ``out``, which appears only when every cell has succeeded;
    one that fails is left beside it, ending in ``.failed.ipynb``. Raises UnknownName for an
    unknown notebook or parameter, DdlnbError naming notebook, cell and error when a cell fails.
    """
    notebook = get_notebook(name, folder)
    check_parameters(notebook, parameters)
    out = Path(out or BUILD / "notebooks" / f"{name}.ipynb").absolute()
    require(out.suffix == ".ipynb", f"out {str(out)!r} must have a name in .ipynb")
    return execute(notebook, out, parameters, timeout_seconds)


def execute(
    notebook: Notebook,
    out: Path,
    parameters: Mapping[str, object],
    timeout_seconds: float,
    cancelled: threading.Event | None = None,
    variables: Mapping[str, str] | None = None,
) -> Path:
    """Execute a notebook whose parameters have been checked, and return ``out``.

    ``variables`` are added to the environment of its process.
    """
    require_writable(out.parent)
    failed = out.with_suffix(".failed.ipynb")
    failed.unlink(missing_ok=True)
    # A kernel outlives a process that had to be killed by a second, and may still write there.
    with tempfile.TemporaryDirectory(prefix="ddlnb-", ignore_cleanup_errors=True) as folder:
        private = Path(folder)
        part = private / out.name
        request = {
            "input_path": str(notebook.path),
            "output_path": str(part),
            "parameters": dict(parameters),
            "cwd": str(out.parent),
        }
        (private / REQUEST).write_text(json.dumps(request))
        process = NotebookProcess(private, variables or {})
        _wait(notebook.name, process, timeout_seconds, cancelled or threading.Event())
        said = _answer(private)
        if said is None:
            _publish(part, out)
            return out
        if part.exists():
            _publish(part, failed)
    lacking = said.get("kind") == MissingPart.__name__
    error = f"notebook {notebook.name!r} failed {said['error']}"
    raise MissingPart(error) if lacking else DdlnbError(error)


def _answer(private: Path) -> dict[str, str] | None:
    """Return what went wrong, None if nothing did."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads((private / ANSWER).read_text())
    last = (
        (private / ERRORS).read_text().strip().splitlines()[-1:]
        if (private / ERRORS).exists()
        else []
    )
    return {"error": ": ".join(["its process died", *last])}


def _publish(part: Path, path: Path) -> None:
    """Put the executed notebook there at once, without the names of our private folders."""
    content = json.loads(part.read_text(encoding="utf-8"))
    for key in ("input_path", "output_path"):
        content["metadata"].get("papermill", {}).pop(key, None)
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def _wait(
    name: str, process: NotebookProcess, timeout_seconds: float, cancelled: threading.Event
) -> None:
    """Return when the process has ended; raise DdlnbError if it had to be ended."""
    deadline = time.monotonic() + timeout_seconds
    ended = False
    try:
        while not ended and time.monotonic() < deadline and not cancelled.is_set():
            ended = process.ended(LOOK_SECONDS)
    finally:
        process.end(ENDING_SECONDS)
    if not ended and cancelled.is_set():
        raise DdlnbError(f"notebook {name!r} was interrupted")
    if not ended:
        raise DdlnbError(
            f"notebook {name!r} was not done after {timeout_seconds:g} s; "
            f"allow more with timeout_seconds= or give it smaller parameters"
        )


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
