"""The index of the survey: every item with its evidence, and the page of the report about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlnb.cli.outcome import Outcome
from ddlnb.cli.page import render
from ddlnb.cli.survey_evidence import Evidence, evidence
from ddlnb.errors import InputError
from ddlnb.files import write_atomically
from ddlnb.paths import NOTEBOOKS
from ddlnb.results.items import HOW, Item, survey_items
from ddlnb.results.statistics import Verdict

NOT_REPRODUCED = "not reproduced"
# The verdict of an item is the first of these that any of its evidence gives.
SEVERITY = (Verdict.CONTRADICTED, Verdict.UNDECIDED, Verdict.HOLDS)


@dataclass(frozen=True)
class Entry:
    """An item with all evidence on it."""

    item: Item
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> str:
        """What the evidence says together; several words where the sources differ.

        Words of judgement come first. Without any it is what became of the notebooks, and without
        evidence the item is not reproduced.
        """
        given = [one.verdict for one in self.evidence]
        judged = [str(word) for word in SEVERITY if word in given]
        return ", ".join(judged or dict.fromkeys(given)) or NOT_REPRODUCED

    @property
    def how(self) -> str:
        """How it is reproduced, in the order of HOW."""
        words = {word for one in self.evidence for word in one.how.split(", ")}
        return ", ".join(word for word in HOW if word in words)


def entries(
    outcomes: Sequence[Outcome], folder: Path, notebooks: Path = NOTEBOOKS
) -> dict[str, Entry]:
    """Return every item of the survey with its evidence, by number, in order.

    The arguments are those of `evidence`. Raises InputError for evidence on an item that is none.
    """
    items = survey_items()
    found = evidence(outcomes, folder, notebooks)
    for one in found:
        if one.item not in items:
            raise InputError(
                f"{one.where} names item {one.item!r}, which is not in "
                f"data/published/survey_items.csv; add it there or correct the number"
            )
    return {
        key: Entry(item, tuple(one for one in found if one.item == key))
        for key, item in items.items()
    }


def write_index(found: dict[str, Entry], folder: Path) -> Path:
    """Write the page of the report that lists every item, and return its path."""
    counts: dict[str, int] = {}
    for entry in found.values():
        counts[entry.verdict] = counts.get(entry.verdict, 0) + 1
    sections: dict[str, list[Entry]] = {}
    for entry in sorted(found.values(), key=lambda entry: (entry.item.section, entry.item.id)):
        sections.setdefault(entry.item.section, []).append(entry)
    page = render("survey.html", title="The survey, item by item", sections=sections, counts=counts)
    return write_atomically(folder / "survey.html", page)
