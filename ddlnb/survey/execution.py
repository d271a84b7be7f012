"""Execute notebooks in processes of their own that import papermill once.

A worker lets papermill execute the cells of one notebook after the other, each in a kernel of its
own, with private folders, so that several workers can run side by side and nothing of
the user's configuration reaches them. A worker is tied to its owner by its standard input: when
that is closed, its kernel and the worker end.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddlnb.errors import DdlnbError, MissingPart, require
from ddlnb.files import BUILD, NOTEBOOKS, require_writable, temporary_folder, write_atomically
from ddlnb.launch import reaper
from ddlnb.survey.notebooks import Notebook, check_parameters, get_notebook

ROWS_FILE = "rows_file"  # the parameter of notebooks that keep rows: a path below the report's
REQUEST, ANSWER, ERRORS = "request.json", "answer.json", "stderr.txt"  # in the private folder
QUOTED_CHARACTERS = 60  # of the line of code that failed
ENDING_SECONDS = 15.0  # for a worker to shut its kernel down before it is killed
LAST_SECONDS = 2.0  # for a kernel without a worker to end
LOOK_SECONDS = 0.1  # between two looks whether a notebook has ended


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
    with contextlib.closing(Worker()) as worker:
        return worker.execute(notebook, out, parameters, timeout_seconds)


class Worker:
    """A process that executes notebooks, one at a time, until it is closed.

    It runs a module that ends in `_serve`.
    """

    def __init__(self, module: str = __name__) -> None:
        # A kernel outlives a worker that had to be killed by a second, and may still write there.
        self._folder = contextlib.ExitStack()
        self._private = private = self._folder.enter_context(temporary_folder())
        inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
        # By its folder and a token the next command finds it if we are killed and it stands still.
        of_jupyter = {
            reaper.TOKEN_VARIABLE: private.name,
            "IPYTHONDIR": str(private),
            "JUPYTER_PATH": str(private),
            "JUPYTER_DATA_DIR": str(private),
            "JUPYTER_CONFIG_DIR": str(private / "config"),
            "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
            "JUPYTER_NO_CONFIG": "1",
        }
        with (private / ERRORS).open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(private)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**inherited, "TQDM_DISABLE": "1", **of_jupyter},
                start_new_session=True,  # an interrupt at the terminal reaches us; we pass it on
            )

    @property
    def is_alive(self) -> bool:
        """Whether the worker can execute another notebook."""
        return self._process.poll() is None

    def execute(
        self,
        notebook: Notebook,
        out: Path,
        parameters: Mapping[str, object],
        timeout_seconds: float,
        cancelled: threading.Event | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Path:
        """Execute a notebook whose parameters have been checked, and return ``out``.

        ``variables`` are added to its environment. Raises DdlnbError when a cell fails, or when it
        takes too long or is cancelled, which both end the worker.
        """
        require_writable(out.parent)
        if rows := parameters.get(ROWS_FILE):
            require_writable((out.parent / str(rows)).parent)
        failed = out.with_suffix(".failed.ipynb")
        failed.unlink(missing_ok=True)
        part = self._private / out.name
        part.unlink(missing_ok=True)
        call = {
            "input_path": str(notebook.path),
            "output_path": str(part),
            "parameters": dict(parameters),
            "cwd": str(out.parent),
        }
        request = json.dumps({"call": call, "variables": dict(variables or {})})
        (self._private / REQUEST).write_text(request)
        said = self._answer(notebook.name, timeout_seconds, cancelled or threading.Event())
        if said is None:
            _publish(part, out)
            return out
        if part.exists():
            _publish(part, failed)
        lacking = said.get("kind") == MissingPart.__name__
        error = f"notebook {notebook.name!r} failed {said['error']}"
        raise MissingPart(error) if lacking else DdlnbError(error)

    def _answer(
        self, name: str, timeout_seconds: float, cancelled: threading.Event
    ) -> dict[str, str] | None:
        """Ask for what was requested, and return what went wrong, None if nothing did."""
        answer = self._private / ANSWER
        answer.unlink(missing_ok=True)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, as is found below
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        deadline = time.monotonic() + timeout_seconds
        try:
            while time.monotonic() < deadline and not cancelled.is_set():
                is_alive = self.is_alive
                if answer.exists():
                    return json.loads(answer.read_text())
                if not is_alive:
                    last = (self._private / ERRORS).read_text().strip().splitlines()[-1:]
                    return {"error": ": ".join(["its process died", *last])}
                cancelled.wait(LOOK_SECONDS)
        except BaseException:
            self.close()
            raise
        self._end()
        if cancelled.is_set():
            raise DdlnbError(f"notebook {name!r} was interrupted")
        raise DdlnbError(
            f"notebook {name!r} was not done after {timeout_seconds:g} s; "
            f"allow more with timeout_seconds= or give it smaller parameters"
        )

    def close(self) -> None:
        """End the worker and its kernel, and remove its private folder."""
        self._end()
        self._folder.close()
        deadline = time.monotonic() + LAST_SECONDS
        while self._private.exists() and time.monotonic() < deadline:  # a kernel wrote meanwhile
            time.sleep(LOOK_SECONDS)
            shutil.rmtree(self._private, ignore_errors=True)

    def _end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its kernel ends without its parent
            self._process.wait()


def _publish(part: Path, path: Path) -> None:
    """Put the executed notebook there at once, without the names of our private folders."""
    content = json.loads(part.read_text(encoding="utf-8"))
    for key in ("input_path", "output_path"):
        content["metadata"].get("papermill", {}).pop(key, None)
    write_atomically(path, json.dumps(content, indent=1) + "\n")


# In the worker.


def _serve(private: Path) -> None:
    """Execute what is requested, line by line of standard input, and answer, until it ends."""
    from ddlnb.survey.kernels import forking

    # A job started in the background inherits that interrupts are ignored, but ours must arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    tempfile.tempdir = str(private)  # where jupyter_client says at which ports a kernel listens
    folder = private / "kernels" / "python3"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": command, "display_name": "Python 3", "language": "python"}
    inherited = dict(os.environ)
    with contextlib.suppress(KeyboardInterrupt), forking() as metadata:
        (folder / "kernel.json").write_text(json.dumps({**kernel, "metadata": metadata}))
        while lines.get():
            request = json.loads((private / REQUEST).read_text())
            os.environ.clear()
            os.environ.update(inherited | request["variables"])
            write_atomically(private / ANSWER, json.dumps(_executed(request["call"])))


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Pass lines on; interrupt this process when the owner closes our standard input or dies."""
    for line in sys.stdin:
        lines.put(line)
    os.kill(os.getpid(), signal.SIGINT)


def _executed(call: Mapping[str, Any]) -> dict[str, str] | None:
    """Let papermill execute a notebook; return what went wrong."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    from ddlnb.survey.kernels import Forked, imports_of

    try:
        Forked.imports = imports_of(Path(call["input_path"]))
        papermill.execute_notebook(**call, kernel_name="python3", progress_bar=False)
    except PapermillExecutionError as failure:
        return {"error": _explained(failure), "kind": failure.ename}
    except Exception as error:
        return {"error": f"to be executed: {type(error).__name__}: {error}", "kind": ""}
    return None


def _explained(failure: Any) -> str:
    """Return the cell that failed, its last line, and what the error says."""
    source = (failure.source or "").strip().splitlines() or [""]
    quoted = source[-1][:QUOTED_CHARACTERS]
    lines = str(failure.evalue).strip().splitlines() or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"in cell {failure.exec_count} ({quoted!r}): {failure.ename}: {said}"


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
