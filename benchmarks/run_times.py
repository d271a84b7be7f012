"""Keep how long notebooks and the documents' commands take here, in data/times.

    ddlnb reproduce --fresh --yes && python -m benchmarks.run_times --notebooks quick
    python -m benchmarks.run_times --commands    # or --commands 'ddlnb measure *'
    python -m benchmarks.run_times --sentences   # notebooks say the kept times

Run it while nothing else runs; the load before each command is kept beside its seconds. The help of
commands, the bar of `ddlnb reproduce` and the first cells of notebooks take their times from there.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddlnb.files import BUILD, NOTEBOOKS, ROOT, provenance, write_atomically
from ddlnb.survey.notebooks import (
    TIMES,
    all_notebooks,
    is_more,
    kept_commands,
    kept_notebooks,
    sentence,
)
from ddlnb.survey.runner import last_outcomes, notebook_runs

PAGES = ("README.md", "docs/forecast.md", "docs/measure.md", "docs/emulate.md", "docs/lossy.md")
LEFT_OUT = ("calibrate CLUSTER",)  # needs rows that the reader measured
MOST_SECONDS = 900.0
TOLD = re.compile(
    r"(About|Less than|Under|Some) (a minute|one minute|minutes|[\d.]+ (seconds|minutes))"
    r"( on \w+ cores?)?( in `make reproduce`)?(, longer with the parameters below)?"
)


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


def time_commands(pattern: str) -> None:
    """Run the documented commands that match, in one folder and in their order.

    Times are kept as soon as a command has ended; those of other commands stay.
    """
    rows = {row["command"]: row for row in kept_commands()}
    with tempfile.TemporaryDirectory() as folder:
        for command in (one for one in documented() if fnmatch.fnmatch(one, pattern)):
            load, begin, before = os.getloadavg()[0], time.monotonic(), _cpu_seconds()
            subprocess.run(
                [sys.executable, "-m", "ddlnb.cli.app", *shlex.split(command)[1:]],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=MOST_SECONDS,
            )
            seconds = time.monotonic() - begin
            made = provenance()
            rows[command] = {
                "command": command,
                "seconds": f"{seconds:.1f}",
                "cpu_seconds": f"{_cpu_seconds() - before:.1f}",
                "load": f"{load:.1f}",
                **{key: made[key] for key in ("machine", "commit", "time")},
            }
            _write(TIMES / "commands.csv", [rows[one] for one in documented() if one in rows])
            print(f"{seconds:6.1f} s, load {load:.1f}: {command}", flush=True)


def keep_notebooks(profile: str, build: Path) -> None:
    """Keep the times of a finished `ddlnb reproduce`; those that it did not execute stay."""
    done = [outcome for outcome in last_outcomes(profile, build=build) if not outcome.error]
    names = {outcome.notebook.name for outcome in done}
    rows = [
        row for row in kept_notebooks() if row["profile"] != profile or row["name"] not in names
    ]
    for outcome in done:
        if outcome.made:
            made = {key: outcome.made[key] for key in ("machine", "commit", "time")}
            name, seconds = outcome.notebook.name, f"{outcome.seconds:.1f}"
            rows.append({"profile": profile, "name": name, "seconds": seconds, **made})
    _write(TIMES / "notebooks.csv", rows)


def told_times(profile: str = "quick") -> dict[str, str]:
    """Return the sentence on its time for every notebook that was timed, by name.

    Where a profile runs a notebook several times, the longest counts.
    """
    kept = {row["name"]: row for row in kept_notebooks() if row["profile"] == profile}
    longest: dict[str, tuple[float, str, bool]] = {}
    for run in notebook_runs(profile):
        stem = run.notebook.path.stem
        if row := kept.get(run.notebook.name):
            found = (float(row["seconds"]), row["machine"], is_more(_own(stem), run.parameters))
            longest[stem] = max(found, longest.get(stem, found))
    return {stem: sentence(*found) for stem, found in longest.items()}


def write_sentences() -> None:
    """Put the kept times into the first cells of the notebooks."""
    told = told_times()
    for name, notebook in all_notebooks().items():
        content = json.loads(notebook.path.read_text(encoding="utf-8"))
        first = content["cells"][0]
        text, found = TOLD.subn(told[name], "".join(first["source"]), count=1)
        if not found:
            raise SystemExit(f"{name} says nothing of its time")
        first["source"] = text.splitlines(keepends=True)
        out = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        write_atomically(notebook.path, out)


def _own(stem: str) -> dict[str, object]:
    """Return the parameters that a notebook has by itself."""
    content = json.loads((NOTEBOOKS / f"{stem}.ipynb").read_text(encoding="utf-8"))
    found: dict[str, object] = {}
    for cell in content["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            exec("".join(cell["source"]), found)  # plain assignments
    return found


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(f"{len(rows)} rows in {path}")


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notebooks", metavar="PROFILE", help="keep times of its last run")
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--commands", nargs="?", const="*", metavar="PATTERN")
    parser.add_argument("--sentences", action="store_true")
    asked = parser.parse_args()
    if asked.notebooks:
        keep_notebooks(asked.notebooks, asked.build)
    if asked.commands:
        time_commands(asked.commands)
    if asked.sentences:
        write_sentences()


if __name__ == "__main__":
    main()
