"""Keep how long notebooks and the documents' commands take here, in data/times.

    ddlnb reproduce --fresh --yes && python -m benchmarks.run_times --notebooks quick
    python -m benchmarks.run_times --commands    # or --commands 'ddlnb measure *'

Run it while nothing else runs; the load before each command is kept beside its seconds. The help of
commands and the bar of `ddlnb reproduce` take their times from there.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddlnb.files import BUILD, ROOT, provenance
from ddlnb.survey.notebooks import (
    TIMES,
    kept_commands,
    kept_notebooks,
)
from ddlnb.survey.runner import last_outcomes

PAGES = ("README.md", "docs/forecast.md", "docs/measure.md", "docs/emulate.md", "docs/lossy.md")
LEFT_OUT = ("calibrate CLUSTER",)  # needs rows that the reader measured
MOST_SECONDS = 900.0


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
    asked = parser.parse_args()
    if asked.notebooks:
        keep_notebooks(asked.notebooks, asked.build)
    if asked.commands:
        time_commands(asked.commands)


if __name__ == "__main__":
    main()
