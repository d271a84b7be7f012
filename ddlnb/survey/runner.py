"""Reproduce every figure and table: execute the notebooks of a profile and build their site."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pandas as pd

from ddlnb.errors import (
    DdlnbError,
    MissingPart,
    UnknownName,
    look_up,
    require,
    require_known,
    require_whole,
)
from ddlnb.files import (
    BUILD,
    DATA,
    JOBS_VARIABLE,
    NOTEBOOKS,
    ROOT,
    cores,
    provenance,
    require_writable,
    write_atomically,
)
from ddlnb.progress import bar, in_notebook, refused
from ddlnb.reading import read_json, read_text, yaml_of
from ddlnb.registry import several
from ddlnb.survey.evidence import Entry, entries
from ddlnb.survey.execution import ROWS_FILE, Worker
from ddlnb.survey.notebooks import (
    TIMES,
    Notebook,
    Outcome,
    all_notebooks,
    check_parameters,
    notebook_seconds,
    parameters_of,
)
from ddlnb.survey.site import write_site
from ddlnb.units import counted


class Progress:
    """A bar on stderr, or in a notebook, that counts the seconds which runs are expected to take.

    ``seconds`` are expected by name. Runs begin and end in any order and from any thread. Where
    stderr is no terminal, such as a log of CI, every run that ends is a line instead.
    """

    def __init__(self, seconds: Mapping[str, float], kept: int, show: bool):
        self._seconds, self._lock = seconds, threading.Lock()
        self._running: list[str] = []
        self._ended = 0
        self._show = show and not refused()
        self._lines = self._show and not (sys.stderr.isatty() or in_notebook())
        form = "{desc} |{bar}| {percentage:3.0f} %, {elapsed} so far, {remaining} to go"
        self._bar = bar(
            total=sum(seconds.values()),
            desc=f"{counted(len(seconds), 'notebook')}, {kept} kept",
            progress=show and bool(seconds) and not self._lines,
            bar_format=form,
        )

    @contextmanager
    def running(self, name: str) -> Iterator[list[str]]:
        """Name a run while it goes on, and count it when it has ended.

        What the list that it yields then holds is why it has failed, and is said.
        """
        with self._lock:
            self._running.append(name)
            self._describe()
        failed: list[str] = []
        try:
            yield failed
        finally:
            with self._lock:
                self._running.remove(name)
                self._ended += 1
                left = self._bar.total - self._bar.n  # rounding must not lead beyond the end
                self._bar.update(min(self._seconds[name], left))
                self._describe()
                said = [f"{self._ended} of {len(self._seconds)} ended: {name}"] * self._lines
                if self._show and (said or failed):
                    self._bar.write("\n".join([*said, *failed]), file=sys.stderr)

    def _describe(self) -> None:
        self._bar.set_description_str(described(self._ended, len(self._seconds), self._running))

    def __enter__(self) -> Progress:
        """Return the bar."""
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def described(ended: int, runs: int, running: Sequence[str]) -> str:
    """Return how many runs have ended and which ones go on.

    >>> described(3, 36, ["sec3_1_1_large_batch", "table1_attributes"])
    '3 of 36 done, running sec3_1_1_large_batch and table1_attributes'
    """
    now = f", running {' and '.join(running)}" if running else ""
    return f"{ended} of {runs} done{now}"


@dataclass(frozen=True)
class NotebookRun:
    """One entry of a profile: a notebook, under its own name or another one, and how to run it."""

    notebook: Notebook
    parameters: dict[str, object] = field(default_factory=dict)
    expected_seconds: float = 30.0  # where no time was kept
    timeout_seconds: float = 1800.0
    timed: bool = False

    @property
    def digest(self) -> str:
        """The fingerprint of the cells, parameters, package and data that decide the result."""
        content = read_json(self.notebook.path)
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]
        text = json.dumps([cells, self.parameters, _files_digest()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def reproduce(
    profile: str = "quick",
    jobs: int = 2,
    only: str | Sequence[str] = "*",
    fresh: bool = False,
    progress: bool = True,
    *,
    parameters: Mapping[str, object] | None = None,
    folder: Path = NOTEBOOKS,
    build: Path = BUILD,
    before: Callable[[float], object] | None = None,
) -> Path:
    """Execute the notebooks of a profile; return the first page of ``build/<profile>/site``.

    A profile is a file of ``notebooks/parameters``. An entry is the name of a notebook, or any name
    with the notebook that it executes (``notebook: fig4_forecast``) and a ``title`` on the site.
    Notebooks that take times run alone, ``jobs`` others at a time. A notebook that was executed
    before is kept while its cells, its parameters, the package and its data are the same, unless
    ``fresh``. ``only`` is a pattern of names, of entries or of notebooks, or several of them.
    ``parameters`` replace those of the profile in all chosen notebooks that have them; a mapping,
    such as ``options``, is added to the profile's. ``before`` is called with the seconds that all
    will take, by kept times, before the first one.

    Raises UnknownName for an unknown profile, notebook or parameter before anything runs. A failing
    notebook does not stop the others; one DdlnbError at the end, when the site is built, names
    them all. One that this machine lacks something for (MissingPart) is "not here" on the site,
    with the reason, and no failure.

    >>> import ddlnb
    >>> site = ddlnb.reproduce("smoke", only="fig2_*")  # doctest: +SKIP
    >>> site.name  # doctest: +SKIP
    'index.html'
    """
    require_whole(jobs=jobs)
    runs = notebook_runs(profile, folder)
    meant = {one: [run for run in runs if _matches(run, one)] for one in several(only)}
    chosen = [run for run in runs if any(run in those for those in meant.values())]
    for one in (pattern for pattern, those in meant.items() if not those):
        raise UnknownName("notebook", one, [run.notebook.name for run in runs])
    runs, chosen = _with_parameters(runs, chosen, parameters or {})
    for run in chosen:
        check_parameters(run.notebook, run.parameters)
    target = build / profile
    require_writable(target)
    waiting = [run for run in chosen if fresh or not _is_done(run, target)]
    expected = expected_seconds(waiting, profile)
    if before is not None:
        before(total_seconds(waiting, expected, jobs))
    with Progress(expected, len(chosen) - len(waiting), progress) as bar:
        longest_first = sorted(waiting, key=lambda run: -expected[run.notebook.name])
        _run_all(longest_first, target, jobs, fresh, bar)
    outcomes = [
        _outcome(run, target, kept=run not in waiting) for run in runs if _state(run, target)
    ]
    found = entries(outcomes, target, folder)
    site = write_site(outcomes, target, profile, found, folder)
    names = {run.notebook.name for run in chosen}
    failed = [o.error for o in outcomes if o.status == "failed" and o.notebook.name in names]
    if failed:
        raise DdlnbError(
            f"{len(failed)} of {len(chosen)} notebooks failed; the site is "
            + "\n  ".join([str(site), *failed])
        )
    return site


def book(profile: str = "quick", *, folder: Path = NOTEBOOKS, build: Path = BUILD) -> Path:
    """Build the site of a profile's last run, without executing anything; return its first page.

    Raises UnknownName for an unknown profile, InputError without a run.
    """
    outcomes = last_outcomes(profile, folder=folder, build=build)
    require(
        bool(outcomes),
        f"profile {profile!r} has not been run in {build}; "
        f"start with `ddlnb survey reproduce --profile {profile}`",
    )
    found = entries(outcomes, build / profile, folder)
    return write_site(outcomes, build / profile, profile, found, folder)


def last_outcomes(profile: str, *, folder: Path = NOTEBOOKS, build: Path = BUILD) -> list[Outcome]:
    """Return what became of the notebooks in the last run of a profile; empty without a run.

    Raises UnknownName for an unknown profile.
    """
    target = build / profile
    runs = [run for run in notebook_runs(profile, folder) if _state(run, target)]
    return [_outcome(run, target, kept=True) for run in runs]


def _matches(run: NotebookRun, pattern: str) -> bool:
    names = (run.notebook.name, run.notebook.path.stem)
    return any(fnmatch.fnmatch(name, pattern) for name in names)


def notebook_runs(profile: str, folder: Path = NOTEBOOKS) -> list[NotebookRun]:
    """Return the notebooks of a profile with their parameters, in the order of the survey."""
    files = {path.stem: path for path in sorted((folder / "parameters").glob("*.yaml"))}
    path = look_up("profile", profile, files)
    content = yaml_of(read_text(path), path)
    require(
        isinstance(content, dict) and all(isinstance(v, dict | None) for v in content.values()),
        f"{path.name} must map names of notebooks to their settings",
    )
    known = [field.name for field in fields(NotebookRun)]
    notebooks = all_notebooks(folder)
    runs = []
    for name, entry in content.items():
        settings = dict(entry or {})
        notebook = look_up("notebook", settings.pop("notebook", name), notebooks)
        notebook = notebook.under(name, settings.pop("title", ""))
        settings.setdefault("timed", notebook.timed)
        for setting in settings:
            require_known(f"setting of {name!r} in {files[profile].name}", setting, known)
        settings["parameters"] = settings.get("parameters") or {}
        runs.append(NotebookRun(notebook, **settings))
    order = list(notebooks)
    return sorted(runs, key=lambda run: order.index(run.notebook.path.stem))


def _with_parameters(
    runs: list[NotebookRun], chosen: list[NotebookRun], given: Mapping[str, object]
) -> tuple[list[NotebookRun], list[NotebookRun]]:
    """Return both lists with the given parameters in the chosen notebooks that have them.

    Raises UnknownName for a parameter that none of them has.
    """
    known = {run.notebook.name: parameters_of(run.notebook) for run in chosen} if given else {}
    for name in given:
        if not any(name in names for names in known.values()):
            every = sorted({one for names in known.values() for one in names})
            raise UnknownName("parameter of these notebooks", name, every)

    def changed(run: NotebookRun) -> NotebookRun:
        own = {k: v for k, v in given.items() if k in known.get(run.notebook.name, ())}
        merged = _merged(run.parameters, own)
        is_titled = any(merged[name] != of for name, of in run.parameters.items())
        notebook = run.notebook.titled_by(merged) if is_titled else run.notebook
        return replace(run, notebook=notebook, parameters=merged)

    names = {run.notebook.name for run in chosen}
    runs = [changed(run) for run in runs]
    return runs, [run for run in runs if run.notebook.name in names]


def _merged(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the old parameters with the new ones; mappings are joined.

    >>> _merged({"options": {"warmup": 10}, "servers": 1}, {"options": {"launcher": "mpi"}})
    {'options': {'warmup': 10, 'launcher': 'mpi'}, 'servers': 1}
    """
    result = dict(old)
    for name, value in new.items():
        before = old.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = {**before, **value} if both else value  # type: ignore[dict-item]
    return result


def _run_all(
    runs: list[NotebookRun], target: Path, jobs: int, fresh: bool, progress: Progress
) -> None:
    """Execute the notebooks in this order; each one that measures times runs alone, at the end."""
    cancelled = threading.Event()
    beside = {JOBS_VARIABLE: str(max(1, cores() // jobs))}  # which run share the cores already

    def execute(run: NotebookRun) -> None:
        variables = {} if run.timed else beside
        with progress.running(run.notebook.name) as failed, workers.borrowed() as worker:
            if why := _execute(run, target, fresh, cancelled, worker, variables):
                failed.append(why)

    groups = [[run for run in runs if not run.timed], *([run] for run in runs if run.timed)]
    with closing(Workers()) as workers, ThreadPoolExecutor(jobs) as pool:
        try:
            for group in groups:
                for future in as_completed([pool.submit(execute, run) for run in group]):
                    future.result()
        except BaseException:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise


class Workers:
    """Workers that wait for their next notebook; a new one is made where none waits."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    @contextmanager
    def borrowed(self) -> Iterator[Worker]:
        """Lend a worker, and keep it for the next notebook if it is still alive."""
        worker = self._idle.pop() if self._idle else Worker()
        try:
            yield worker
        finally:
            if worker.is_alive:
                self._idle.append(worker)
            else:
                worker.close()

    def close(self) -> None:
        """End all workers; none may be lent."""
        for worker in self._idle:
            worker.close()


def _execute(
    run: NotebookRun,
    target: Path,
    fresh: bool,
    cancelled: threading.Event,
    worker: Worker,
    variables: Mapping[str, str],
) -> str:
    """Execute one notebook and record its outcome; return why it failed, empty if it did not."""
    if fresh or _state(run, target).get("digest") != run.digest:
        _remove_rows(run, target)  # of other parameters or another version; else they resume
    note = {"digest": run.digest, "status": "started", "made": provenance()}
    note |= {"title": run.notebook.title, "parameters": run.parameters}
    _note(run, target, note)
    start = time.monotonic()
    out = target / f"{run.notebook.name}.ipynb"
    try:
        worker.execute(run.notebook, out, run.parameters, run.timeout_seconds, cancelled, variables)
    except DdlnbError as error:
        if not cancelled.is_set():
            status = "not here" if isinstance(error, MissingPart) else "failed"
            _note(run, target, {**note, "status": status, "error": str(error)})
            return str(error) if status == "failed" else ""
        return ""
    _note(run, target, {**note, "status": "done", "seconds": time.monotonic() - start})
    return ""


def _remove_rows(run: NotebookRun, target: Path) -> None:
    if name := run.parameters.get(ROWS_FILE):
        path = target / str(name)
        for old in (path, path.with_suffix(".runs.csv")):
            old.unlink(missing_ok=True)


def _state_path(run: NotebookRun, target: Path) -> Path:
    return target / "state" / f"{run.notebook.name}.json"


def _state(run: NotebookRun, target: Path) -> dict:
    """Return the record of the notebook's last run, or an empty one if there was none."""
    path = _state_path(run, target)
    return read_json(path, "remove it") if path.exists() else {}


def _note(run: NotebookRun, target: Path, state: dict) -> None:
    write_atomically(_state_path(run, target), json.dumps(state))


def _is_done(run: NotebookRun, target: Path) -> bool:
    state = _state(run, target)
    there = (target / f"{run.notebook.name}.ipynb").exists()
    return there and state.get("status") == "done" and state.get("digest") == run.digest


def _outcome(run: NotebookRun, target: Path, *, kept: bool) -> Outcome:
    state = _state(run, target)
    made, seconds = state.get("made", {}), state.get("seconds", float("nan"))
    notebook = run.notebook
    if state.get("parameters", run.parameters) != run.parameters:  # of an earlier call
        notebook = replace(notebook, title=state["title"])
    if state["status"] == "done":
        return Outcome(notebook, "kept" if kept else "done", seconds, made=made)
    status = "failed" if state["status"] == "started" else state["status"]
    error = state.get("error", "it was interrupted; run again to finish it")
    return Outcome(notebook, status, seconds, error, made)


def _files_digest() -> str:
    """Return a fingerprint of the package's source and of the data that notebooks read."""
    digest = hashlib.sha256()
    for folder, pattern in ((ROOT / "ddlnb", "**/*.py"), (DATA, "**/*")):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and TIMES not in path.parents:  # which decide no result
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def expected_seconds(runs: list[NotebookRun], profile: str) -> dict[str, float]:
    """Return the seconds that each run takes, by its name: as kept, or as its profile guesses."""
    kept = notebook_seconds(profile)
    return {run.notebook.name: kept.get(run.notebook.name, run.expected_seconds) for run in runs}


def total_seconds(runs: list[NotebookRun], expected: Mapping[str, float], jobs: int) -> float:
    """Return the seconds of all runs: what takes times runs alone, ``jobs`` others at a time."""
    alone = sum(expected[run.notebook.name] for run in runs if run.timed)
    others = sum(expected[run.notebook.name] for run in runs if not run.timed)
    return alone + others / jobs


def index(profile: str = "quick") -> pd.DataFrame:
    """Return the index of the survey: a row per checkable item, indexed by its number.

    The columns are texts: the ``section``, the ``item`` in our words, ``how`` it is reproduced,
    its ``verdict`` and the ``reason`` for it, ``where`` (notebooks and tests), what is ``missing``,
    and its ``source``: stated in the survey, read in a primary paper, derived, or known. Items A
    are of the survey itself, C and D of those of layers (arXiv 2403.07585) and large scale
    (2404.06114). Verdicts are those of the last `reproduce` of the profile and of tests that were
    run here; without a run they are "not run", or "by a test, not run here". Raises
    UnknownName for an unknown profile.

    >>> import ddlnb
    >>> found = ddlnb.survey.index()
    >>> found.loc["A16", ["section", "how"]].to_list()
    ['1-2', 'computed']
    """
    rows = [
        {
            "id": key,
            "section": entry.item.section,
            "how": entry.how,
            "verdict": entry.verdict,
            "item": entry.item.text,
            "reason": entry.reason,
            "where": "; ".join(dict.fromkeys(one.where for one in entry.evidence)),
            "missing": entry.item.missing,
            "source": entry.item.source,
        }
        for key, entry in last_run(profile).items()
    ]
    return pd.DataFrame(rows).set_index("id")


def last_run(profile: str) -> dict[str, Entry]:
    """Return the evidence of every item, by its number, as of the last run of a profile."""
    return entries(last_outcomes(profile), BUILD / profile)
