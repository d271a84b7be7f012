"""The process of one notebook: it lets papermill execute the cells in a kernel, and answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

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
        from ddlnb.cli.kernels import Spare, offer

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
