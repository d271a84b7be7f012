"""Execute one notebook with parameters, in a process of its own that ends with its owner.

The kernel is of this interpreter, in private folders, so that several notebooks can run side by
side and nothing of the user's configuration reaches them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddlnb.cli.notebooks import Notebook, check_parameters, get_notebook
from ddlnb.errors import DdlnbError, MissingPart, require
from ddlnb.files import require_writable, write_atomically
from ddlnb.paths import BUILD, NOTEBOOKS

ENDING_SECONDS = 15.0  # for a notebook to shut its kernel down before it is killed
LOOK_SECONDS = 0.2  # between two looks whether the notebook has ended
QUOTED_CHARACTERS = 60  # of the line of code that failed


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
) -> Path:
    """Execute a notebook whose parameters have been checked, and return ``out``."""
    require_writable(out.parent)
    failed = out.with_suffix(".failed.ipynb")
    failed.unlink(missing_ok=True)
    # A kernel outlives a process that had to be killed by a second, and may still write there.
    with tempfile.TemporaryDirectory(prefix="ddlnb-", ignore_cleanup_errors=True) as folder:
        private = Path(folder)
        part, answer = private / out.name, private / "answer.json"
        request = {
            "input_path": str(notebook.path),
            "output_path": str(part),
            "parameters": dict(parameters),
            "cwd": str(out.parent),
        }
        (private / "request.json").write_text(json.dumps(request))
        _in_own_process(notebook.name, private, timeout_seconds, cancelled or threading.Event())
        said = json.loads(answer.read_text()) if answer.exists() else {"error": "its process died"}
        if said is None:
            _publish(part, out)
            return out
        if part.exists():
            _publish(part, failed)
    lacking = said.get("kind") == MissingPart.__name__
    error = f"notebook {notebook.name!r} failed {said['error']}"
    raise MissingPart(error) if lacking else DdlnbError(error)


def _publish(part: Path, path: Path) -> None:
    """Put the executed notebook there at once, without the names of our private folders."""
    content = json.loads(part.read_text(encoding="utf-8"))
    for key in ("input_path", "output_path"):
        content["metadata"].get("papermill", {}).pop(key, None)
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def _in_own_process(
    name: str, private: Path, timeout_seconds: float, cancelled: threading.Event
) -> None:
    """Return when the process has ended; raise DdlnbError if it had to be ended."""
    kernel = private / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    log = private / "stderr.txt"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "ddlnb.cli.execute", str(private)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=_environment(private),
            start_new_session=True,  # an interrupt at the terminal reaches us, and we pass it on
        )
    deadline = time.monotonic() + timeout_seconds
    try:
        while process.poll() is None and time.monotonic() < deadline and not cancelled.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
        ended = process.poll() is not None
    finally:
        _end(process)
    if ended and process.returncode:
        status = [f"exit status {process.returncode}"]
        last = (log.read_text().strip().splitlines() or status)[-1]
        raise DdlnbError(f"notebook {name!r} could not be executed: {last}")
    if not ended and cancelled.is_set():
        raise DdlnbError(f"notebook {name!r} was interrupted")
    if not ended:
        raise DdlnbError(
            f"notebook {name!r} was not done after {timeout_seconds:g} s; "
            f"allow more with timeout_seconds= or give it smaller parameters"
        )


def _end(process: subprocess.Popen) -> None:
    """Close its standard input, which makes it shut its kernel down, and wait until it is gone."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
    finally:
        process.kill()  # nothing if it has ended; its kernel ends when its parent is gone
        process.wait()


def _environment(private: Path) -> dict[str, str]:
    """Return our environment, with private folders for Jupyter and without progress bars."""
    own = {
        "IPYTHONDIR": str(private / "ipython"),
        "JUPYTER_PATH": str(private),
        "JUPYTER_DATA_DIR": str(private),
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTER_NO_CONFIG": "1",
        "TQDM_DISABLE": "1",
    }
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    return {**inherited, **own}


def main(private: Path) -> None:
    """Execute the requested notebook in this process, and answer None or what went wrong."""
    # A job started in the background inherits that interrupts are ignored, but ours must arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    import papermill
    from papermill.exceptions import PapermillExecutionError

    request = json.loads((private / "request.json").read_text())
    answer = None
    try:
        papermill.execute_notebook(**request, kernel_name="python3", progress_bar=False)
    except PapermillExecutionError as failure:
        answer = {"error": _explained(failure), "kind": failure.ename}
    (private / "answer.json").write_text(json.dumps(answer))


def _end_with_owner() -> None:
    """Interrupt this process when the owner closes our standard input or dies."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


def _explained(failure: Any) -> str:
    """Return the cell that failed, its last line, and what the error says."""
    source = (failure.source or "").strip().splitlines() or [""]
    quoted = source[-1][:QUOTED_CHARACTERS]
    lines = str(failure.evalue).strip().splitlines() or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"in cell {failure.exec_count} ({quoted!r}): {failure.ename}: {said}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
