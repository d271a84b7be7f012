"""Write the report of a reproduction: findings, a gallery of figures, a page for every notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.files import write_atomically
from ddlnb.results.statistics import Verdict
from ddlnb.survey.notebooks import Notebook, Outcome
from ddlnb.survey.page import (
    Picture,
    pictures_of,
    read_executed,
    render,
    write_page,
    write_pictures,
)

if TYPE_CHECKING:
    from ddlnb.survey.evidence import Entry


UNJUDGED = "not judged"
SAID = {
    Verdict.CONTRADICTED: "do not hold here",
    Verdict.UNDECIDED: "are undecided",
    Verdict.HOLDS: "hold",
    UNJUDGED: "could not be judged",
}
HEADINGS = {
    Verdict.CONTRADICTED: "What does not hold here",
    Verdict.UNDECIDED: "What is undecided",
    Verdict.HOLDS: "What holds",
}


def write_pages(
    outcomes: Iterable[Outcome], folder: Path, profile: str, found: Mapping[str, Entry]
) -> Path:
    """Write the report's first page and a page for every notebook; return the path of the first.

    ``found`` are the entries of the survey's index: what holds and what does not comes first.
    """
    outcomes = list(outcomes)
    gallery: dict[str, list[Picture]] = {}
    done: list[Notebook] = []
    for outcome in outcomes:
        name = outcome.notebook.name
        for old in (folder / "figures").glob(f"{name}-*.png"):
            old.unlink()
        if outcome.error or not (folder / f"{name}.ipynb").exists():
            (folder / f"{name}.html").unlink(missing_ok=True)
        else:
            done.append(outcome.notebook)
    for before, notebook, after in zip([None, *done], done, [*done[1:], None], strict=False):
        content = read_executed(folder / f"{notebook.name}.ipynb")
        pictures = pictures_of(content, notebook)
        write_pictures(pictures, folder / "figures")
        page = folder / f"{notebook.name}.html"
        write_page(content, pictures, page, notebook.title, before, after)
        if pictures:
            gallery.setdefault(notebook.heading, []).extend(pictures)
    first = render(
        "first.html",
        title=f"Executable survey of communication in distributed deep learning: {profile}",
        found=_by_verdict(found.values()),
        said=SAID,
        headings=HEADINGS,
        gallery=gallery,
        outcomes=outcomes,
        origins=_origins(outcomes),
    )
    return write_atomically(folder / "index.html", first)


def _by_verdict(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries by the worst verdict of each, the worst first; the others are unjudged."""
    found: dict[str, list[Entry]] = {word: [] for word in (*HEADINGS, UNJUDGED)}
    for entry in entries:
        worst = entry.verdict.split(", ")[0]
        found[worst if worst in HEADINGS else UNJUDGED].append(entry)
    return {word: those for word, those in found.items() if those}


def _origins(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    """Return date, commit, machine and versions: once if all agree, else with their notebooks."""
    rows = []
    for key in ("time", "commit", "machine", "versions"):
        names: dict[str, list[str]] = {}
        for outcome in outcomes:
            if value := outcome.made.get(key):
                value = value.partition("T")[0] if key == "time" else value
                names.setdefault(value, []).append(outcome.notebook.name)
        for value, where in names.items():
            said = value if len(names) == 1 else f"{value} ({', '.join(where)})"
            rows.append(("date" if key == "time" else key, said))
    return rows
