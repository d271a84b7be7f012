"""The notebooks of the checkout: what each one shows, and how to execute one with parameters.

A notebook says in its metadata, under ``ddlnb``, which section and figure of the survey it belongs
to, its claim, the library function that does its work, and whether it takes times. Execution is in
a process of its own, with a kernel of this interpreter and private folders, so that several can run
side by side and nothing of the user's configuration reaches them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlnb.errors import DdlnbError, InputError, MissingPart, UnknownName, require
from ddlnb.paths import BUILD, NOTEBOOKS

if TYPE_CHECKING:
    import pandas as pd

ENDING_SECONDS = 15.0  # for a notebook to shut its kernel down before it is killed
LOOK_SECONDS = 0.2
QUOTED_CHARACTERS = 60


@dataclass(frozen=True)
class Notebook:
    """One notebook, as its first cell and its metadata describe it."""

    name: str
    path: Path
    title: str
    section: str
    figure: str
    claim: str
    function: str
    timed: bool

    def under(self, name: str) -> Notebook:
        """The same notebook under another name, which its files and its title then bear."""
        if name == self.name:
            return self
        require(
            re.fullmatch(r"\w+", str(name)) is not None,
            f"name {name!r} of notebook {self.name!r} becomes a file name; "
            f"write it with letters, digits and '_'",
        )
        return replace(self, name=str(name), title=f"{self.title} ({name})")


def all_notebooks(folder: Path = NOTEBOOKS) -> dict[str, Notebook]:
    """The notebooks of a folder by name, the index first, then in the order of the survey."""
    found = [_described(path) for path in sorted(folder.glob("*.ipynb"))]
    found.sort(key=lambda notebook: (notebook.name != "index", notebook.section, notebook.name))
    return {notebook.name: notebook for notebook in found}


def _described(path: Path) -> Notebook:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        about = content["metadata"].get("ddlnb", {})
        cells = content["cells"]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path.name} is not a notebook: {error!r}") from error
    first = "".join(cells[0]["source"]) if cells else ""
    title = first.splitlines()[0].lstrip("# ").strip() if first else path.stem
    text = {key: str(about.get(key, "")) for key in ("section", "figure", "claim", "function")}
    return Notebook(path.stem, path, title, timed=bool(about.get("timed", False)), **text)


def catalogue(folder: Path = NOTEBOOKS) -> pd.DataFrame:
    """The table of contents: section and figure of the survey, notebook, function, claim."""
    import pandas as pd

    rows = [
        {
            "section": notebook.section,
            "figure": notebook.figure,
            "notebook": notebook.name,
            "function": notebook.function,
            "claim": notebook.claim,
        }
        for notebook in all_notebooks(folder).values()
        if notebook.name != "index"
    ]
    return pd.DataFrame(rows).set_index("notebook")


def get_notebook(name: str, folder: Path = NOTEBOOKS) -> Notebook:
    """The notebook of that name. Raises UnknownName."""
    known = all_notebooks(folder)
    if name not in known:
        raise UnknownName("notebook", name, known)
    return known[name]


def check_parameters(notebook: Notebook, parameters: Mapping[str, object]) -> None:
    """Raise UnknownName for a parameter that the notebook does not have; papermill would run on."""
    import papermill

    try:
        known = papermill.inspect_notebook(str(notebook.path))
    except ValueError as error:  # such as no kernel in the notebook's metadata
        raise InputError(f"notebook {notebook.name!r} cannot be inspected: {error}") from error
    for name in parameters:
        if name not in known:
            raise UnknownName(f"parameter of notebook {notebook.name!r}", name, known)


def run_notebook(
    name: str,
    out: str | Path | None = None,
    timeout_seconds: float = 600,
    *,
    folder: Path = NOTEBOOKS,
    **parameters: object,
) -> Path:
    """The path of the executed notebook, by default ``build/notebooks/<name>.ipynb``.

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
    """The path ``out`` of the executed notebook, whose parameters have been checked before."""
    out.parent.mkdir(parents=True, exist_ok=True)
    failed = out.with_suffix(".failed.ipynb")
    failed.unlink(missing_ok=True)
    # A kernel outlives a process that had to be killed by a second, and may still write there.
    with tempfile.TemporaryDirectory(prefix="ddlnb-", ignore_cleanup_errors=True) as private:
        part = Path(private, out.name)
        answer = Path(private, "answer.json")
        request = {
            "notebook": str(notebook.path),
            "part": str(part),
            "answer": str(answer),
            "folder": str(out.parent),
            "parameters": dict(parameters),
        }
        Path(private, "request.json").write_text(json.dumps(request))
        _in_own_process(notebook.name, Path(private), timeout_seconds, cancelled)
        error = json.loads(answer.read_text())["error"] if answer.exists() else "its process died"
        if error is None:
            _move(part, out)
            return out
        if part.exists():
            _move(part, failed)
        message = f"notebook {notebook.name!r} failed {error}"
        raise (
            MissingPart(message) if f": {MissingPart.__name__}: " in error else DdlnbError(message)
        )


def _move(part: Path, path: Path) -> None:
    """Put the notebook there at once, even from another file system, and without our folders."""
    content = json.loads(part.read_text(encoding="utf-8"))
    for key in ("input_path", "output_path"):
        content["metadata"].get("papermill", {}).pop(key, None)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def _in_own_process(
    name: str, private: Path, timeout_seconds: float, cancelled: threading.Event | None
) -> None:
    """Return when the process has ended. It ends itself when its standard input closes."""
    kernel = private / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    process = subprocess.Popen(
        [sys.executable, "-m", "ddlnb.cli.notebooks", str(private / "request.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(private),
        start_new_session=True,  # an interrupt at the terminal reaches us, and we pass it on
    )
    said: list[str] = []
    listener = threading.Thread(target=lambda: said.extend(process.stderr or []), daemon=True)
    listener.start()
    waited, done = 0.0, False
    try:
        while waited < timeout_seconds and not (cancelled and cancelled.is_set()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                done = True
                break
            waited += LOOK_SECONDS
    finally:
        _end(process)
    listener.join(1)
    if done and process.returncode:
        last = "".join(said).strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise DdlnbError(f"notebook {name!r} could not be executed: {last[0]}")
    if not done and not (cancelled and cancelled.is_set()):
        raise DdlnbError(
            f"notebook {name!r} was not done after {timeout_seconds:g} s; "
            f"allow more with timeout_seconds= or give it smaller parameters"
        )
    if not done:
        raise DdlnbError(f"notebook {name!r} was interrupted")


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
    """Ours, with private folders for Jupyter and IPython and without progress bars."""
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


# ---------------------------------------------------------------- in the process of its own


def main(request_file: str) -> None:
    """Execute the requested notebook, and answer None or what went wrong."""
    request = json.loads(Path(request_file).read_text())
    # A job started in the background inherits that interrupts are ignored, but ours must arrive.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    import papermill
    from papermill.exceptions import PapermillExecutionError

    error = None
    try:
        papermill.execute_notebook(
            request["notebook"],
            request["part"],
            parameters=request["parameters"],
            kernel_name="python3",
            cwd=request["folder"],
            progress_bar=False,
        )
    except PapermillExecutionError as failure:
        error = _in_words(failure)
    Path(request["answer"]).write_text(json.dumps({"error": error}))


def _end_with_owner() -> None:
    """Interrupt this process when the owner closes our standard input or dies."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


def _in_words(failure: Any) -> str:
    """The cell and the last line of its error, which is the one that says what happened."""
    source = (failure.source or "").strip()
    last_line = source.splitlines()[-1] if source else ""
    quoted = last_line[:QUOTED_CHARACTERS]
    lines = str(failure.evalue).strip().splitlines() or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"in cell {failure.exec_count} ({quoted!r}): {failure.ename}: {said}"


if __name__ == "__main__":
    main(sys.argv[1])
