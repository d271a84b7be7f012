"""How long notebooks and commands take, as `python -m benchmarks.run_times` measured it.

The tables are in data/times: seconds of every notebook of a profile within `ddlnb reproduce`, and
of the commands that the documents show, each with its machine and commit.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from ddlnb.files import DATA

TIMES = DATA / "times"
NUMBERS = {1: "one core", 2: "two cores", 4: "four cores", 8: "eight cores"}


def kept_notebooks(folder: Path = TIMES) -> list[dict[str, str]]:
    """Return the rows of notebooks: profile, name, seconds, machine, commit, time."""
    return _rows(folder / "notebooks.csv")


def kept_commands(folder: Path = TIMES) -> list[dict[str, str]]:
    """Return the rows of commands: command, seconds, cpu_seconds, load, machine, commit, time."""
    return _rows(folder / "commands.csv")


def notebook_seconds(profile: str, folder: Path = TIMES) -> dict[str, float]:
    """Return the seconds of each notebook of a profile; empty for one that was never timed."""
    rows = kept_notebooks(folder)
    return {row["name"]: float(row["seconds"]) for row in rows if row["profile"] == profile}


def command_help(name: str, folder: Path = TIMES) -> str | None:
    """Return what the help of a command says of the time that it takes; None if none was kept."""
    rows = [row for row in kept_commands(folder) if row["command"].split()[1] == name]
    if not rows:
        return None
    return f"Time on {rows[0]['machine']}: {'; '.join(map(_told, rows))}."


def _told(row: Mapping[str, str]) -> str:
    """Return the time of a command; beside other work its seconds are not its own."""
    seconds, computed = (in_words(float(row[key])) for key in ("seconds", "cpu_seconds"))
    if float(row["load"]) <= _cores(row["machine"]):
        return f"`{row['command']}` took {seconds}"
    return (
        f"`{row['command']}` computed for {computed} (and took {seconds} beside other work, at a "
        f"load of {row['load']})"
    )


def _cores(machine: str) -> int:
    return int(machine.split()[-2])


def reproduce_help(profile: str = "quick", folder: Path = TIMES) -> str | None:
    """Return what the help of `ddlnb reproduce` says of its time; None if none was kept."""
    rows = [row for row in kept_notebooks(folder) if row["profile"] == profile]
    if not rows:
        return None
    seconds = sum(float(row["seconds"]) for row in rows)
    return (
        f"Time: the {len(rows)} notebooks of profile {profile} took {in_words(seconds)} one after "
        f"the other ({rows[0]['machine']})."
    )


def in_words(seconds: float) -> str:
    """Return a time as people say it.

    >>> [in_words(seconds) for seconds in (3.2, 14.7, 47.6, 105.6, 210, 3000)]
    ['5 seconds', '15 seconds', '50 seconds', '110 seconds', '4 minutes', '50 minutes']
    """
    if seconds >= 150:
        return f"{seconds / 60:.0f} minutes"
    step = 10 if seconds >= 60 else 5
    return f"{max(step, step * round(seconds / step))} seconds"


def sentence(seconds: float, machine: str, is_longer_below: bool) -> str:
    """Return what a notebook says of its time; ``is_longer_below`` if its own parameters are more.

    >>> sentence(105.6, "AMD EPYC, 2 cores", True)
    'About 110 seconds on two cores in `make reproduce`, longer with the parameters below'
    """
    cores = _cores(machine)
    where = f"on {NUMBERS.get(cores, f'{cores} cores')} in `make reproduce`"
    longer = ", longer with the parameters below" if is_longer_below else ""
    return f"About {in_words(seconds)} {where}{longer}"


def is_more(own: Mapping[str, object], given: Mapping[str, object]) -> bool:
    """Return whether a notebook's own parameters ask for more work than those of a profile.

    >>> is_more({"seeds": 3, "folder": "a"}, {"seeds": 2, "folder": "b"}), is_more({"n": 1}, {})
    (True, False)
    """
    return any(_size(own.get(name)) > _size(value) for name, value in given.items())


def _size(value: object) -> float:
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return len(value)
    return float(value) if isinstance(value, int | float) else 0.0


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
