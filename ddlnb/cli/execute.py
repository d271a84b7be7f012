"""Execute one notebook with parameters, in a process of its own that ends with its owner.

The kernel is of this interpreter, in private folders, so that several notebooks can run side by
side and nothing of the user's configuration reaches them.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ddlnb.cli.execute_cells import ANSWER, ERRORS, REQUEST
from ddlnb.cli.notebooks import Notebook, check_parameters, get_notebook
from ddlnb.cli.warm import NotebookProcess
from ddlnb.errors import DdlnbError, MissingPart, require
from ddlnb.files import require_writable, write_atomically
from ddlnb.paths import BUILD, NOTEBOOKS

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
