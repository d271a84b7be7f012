"""Keep how long notebooks and the documents' commands take here, in data/times.

    ddlnb survey reproduce --fresh --yes && python -m benchmarks.run_times --notebooks quick
    python -m benchmarks.run_times --commands    # or --commands 'ddlnb measure *'

Run it while nothing else runs; the load before each command is kept beside its seconds. The help of
commands and the bar of `ddlnb survey reproduce` take their times from there, and notebooks are made
to say how long they took.
"""

import fnmatch
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from benchmarks.repeated import seconds_of
from ddlnb.files import BUILD, ROOT, provenance, write_atomically
from ddlnb.survey.notebooks import (
    TIMES,
    in_words,
    kept_commands,
    kept_notebooks,
    notebook_seconds,
)
from ddlnb.survey.runner import last_outcomes, notebook_runs

PAGES = ("README.md", "docs/forecast.md", "docs/measure.md", "docs/emulate.md", "docs/lossy.md")
LEFT_OUT = ("calibrate CLUSTER",)  # needs rows that the reader measured
MOST_SECONDS = 900.0
MADE = ("machine", "commit", "time")  # of the provenance
SAID = re.compile(r"About [\w ]+ on two cores in `make reproduce`")  # in notebooks


def documented(pages: tuple[str, ...] = PAGES) -> list[str]:
    """Return the commands in the documents' blocks of code, without what is behind ``#``."""
    lines = [
        line.strip().removeprefix("$ ")
        for page in pages
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
    ]
    commands = [line for line in lines if line.startswith(".venv/bin/ddlnb ")]
    words = [shlex.split(line, comments=True) for line in commands]
    shown = [shlex.join(["ddlnb", *rest]) for _, *rest in words]
    return [one for one in dict.fromkeys(shown) if not any(part in one for part in LEFT_OUT)]


def time_commands(patterns: Sequence[str]) -> None:
    """Run the documented commands that match, in one folder and in their order.

    Times are kept as soon as a command has ended; those of other commands stay.
    """
    rows = {row["command"]: row for row in kept_commands()}
    shown = documented()
    asked = [one for one in shown if any(fnmatch.fnmatch(one, pattern) for pattern in patterns)]
    with tempfile.TemporaryDirectory() as folder:
        for command in asked:
            run = partial(
                subprocess.run,
                [sys.executable, "-m", "ddlnb.cli.app", *shlex.split(command)[1:]],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=MOST_SECONDS,
            )
            load, before = os.getloadavg()[0], _cpu_seconds()
            seconds = seconds_of(run)
            used, made = _cpu_seconds() - before, provenance()
            rows[command] = {
                "command": command,
                "seconds": f"{seconds:.1f}",
                "cpu_seconds": f"{used:.1f}",
                "load": f"{load:.1f}",
                **{key: made[key] for key in MADE},
            }
            _write("commands.csv", [rows[one] for one in shown if one in rows])
            print(f"{seconds:6.1f} s, load {load:.1f}: {command}", flush=True)


def keep_notebooks(profile: str, build: Path) -> None:
    """Keep the times of a finished `ddlnb survey reproduce`; those that it did not execute stay."""
    done = [outcome for outcome in last_outcomes(profile, build=build) if not outcome.error]
    rows = {(row["profile"], row["name"]): row for row in kept_notebooks()}
    for outcome in done:
        name = outcome.notebook.name
        rows.pop((profile, name), None)
        if outcome.made:
            made = {key: outcome.made[key] for key in MADE}
            row = {"profile": profile, "name": name, "seconds": f"{outcome.seconds:.1f}", **made}
            rows[profile, name] = row
    _write("notebooks.csv", list(rows.values()))
    for path, told in sentences().items():
        write_atomically(path, SAID.sub(told, path.read_text(encoding="utf-8")))


def sentences() -> dict[Path, str]:
    """Return what notebooks are to say of their time: the longest that was kept of an entry."""
    kept = notebook_seconds("quick")
    longest: dict[Path, float] = {}
    for run in notebook_runs("quick"):
        path = run.notebook.path
        longest[path] = max(kept[run.notebook.name], longest.get(path, 0.0))
    return {
        path: f"About {in_words(seconds)} on two cores in `make reproduce`"
        for path, seconds in longest.items()
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write(name: str, rows: list[dict[str, str]]) -> None:
    path = write_atomically(TIMES / name, pd.DataFrame(rows).to_csv(index=False))
    print(f"{len(rows)} rows in {path}")


def main(
    *,
    notebooks: str | None = None,
    build: Path = BUILD,
    commands: Sequence[str] | None = None,
) -> None:
    """Keep the times of --notebooks, of the last run of a profile, and of --commands.

    These may be patterns; without any, all that the documents show are run.
    """
    if notebooks:
        keep_notebooks(notebooks, build)
    if commands is not None:
        time_commands(commands or ["*"])


if __name__ == "__main__":
    command(main)
