"""Execute one notebook with parameters, in a process of its own that ends with its owner.

The process lets papermill execute the cells in a kernel of this interpreter, in private folders, so
that several notebooks can run side by side and nothing of the user's configuration reaches them. It
is tied to its owner by its standard input: when that is closed, the kernel and the process end.
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

from ddlnb.errors import DdlnbError, MissingPart, require
from ddlnb.files import BUILD, NOTEBOOKS, require_writable, write_atomically
from ddlnb.survey.notebooks import Notebook, check_parameters, get_notebook

REQUEST, ANSWER, ERRORS = "request.json", "answer.json", "stderr.txt"  # in the private folder
QUOTED_CHARACTERS = 60  # of the line of code that failed
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
        _run(notebook.name, private, variables or {}, timeout_seconds, cancelled)
        said = _answer(private)
        if said is None:
            _publish(part, out)
            return out
        if part.exists():
            _publish(part, failed)
    lacking = said.get("kind") == MissingPart.__name__
    error = f"notebook {notebook.name!r} failed {said['error']}"
    raise MissingPart(error) if lacking else DdlnbError(error)


def _run(
    name: str,
    private: Path,
    variables: Mapping[str, str],
    timeout_seconds: float,
    cancelled: threading.Event | None,
) -> None:
    """Return when the process of the notebook has ended; raise DdlnbError if it had to be."""
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    with (private / ERRORS).open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(private)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**inherited, "TQDM_DISABLE": "1", **_private_folders(private), **variables},
            start_new_session=True,  # an interrupt at the terminal reaches us, and we pass it on
        )
    assert process.stdin is not None
    deadline = time.monotonic() + timeout_seconds
    is_cancelled = cancelled or threading.Event()
    try:
        while time.monotonic() < deadline and not is_cancelled.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                return
    finally:
        process.stdin.close()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its kernel ends without its parent
            process.wait()
    if is_cancelled.is_set():
        raise DdlnbError(f"notebook {name!r} was interrupted")
    raise DdlnbError(
        f"notebook {name!r} was not done after {timeout_seconds:g} s; "
        f"allow more with timeout_seconds= or give it smaller parameters"
    )


def _answer(private: Path) -> dict[str, str] | None:
    """Return what went wrong, None if nothing did."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads((private / ANSWER).read_text())
    last = (private / ERRORS).read_text().strip().splitlines()[-1:]
    return {"error": ": ".join(["its process died", *last])}


def _publish(part: Path, path: Path) -> None:
    """Put the executed notebook there at once, without the names of our private folders."""
    content = json.loads(part.read_text(encoding="utf-8"))
    for key in ("input_path", "output_path"):
        content["metadata"].get("papermill", {}).pop(key, None)
    write_atomically(path, json.dumps(content, indent=1) + "\n")


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


def _execute_cells(private: Path) -> None:
    """Execute the requested notebook in this process, and answer None or what went wrong."""
    # A job started in the background inherits that interrupts are ignored, but ours must arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    import papermill
    from papermill.exceptions import PapermillExecutionError

    folder = private / "kernels" / "python3"
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": command, "display_name": "Python 3", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(kernel))
    request = json.loads((private / REQUEST).read_text())
    answer = None
    try:
        papermill.execute_notebook(**request, kernel_name="python3", progress_bar=False)
    except PapermillExecutionError as failure:
        answer = {"error": _explained(failure), "kind": failure.ename}
    except Exception as error:
        answer = {"error": f"to be executed: {type(error).__name__}: {error}", "kind": ""}
    (private / ANSWER).write_text(json.dumps(answer))


def _end_with_owner() -> None:
    """Interrupt this process when the owner closes our standard input or dies."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGINT)


def _explained(failure: Any) -> str:
    """Return the cell that failed, its last line, and what the error says."""
    source = (failure.source or "").strip().splitlines() or [""]
    quoted = source[-1][:QUOTED_CHARACTERS]
    lines = str(failure.evalue).strip().splitlines() or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"in cell {failure.exec_count} ({quoted!r}): {failure.ename}: {said}"


if __name__ == "__main__":
    _execute_cells(Path(sys.argv[1]))
