"""The checkable items of the surveys, in our words, and what is known to be missing of each.

An item is a statement that can be computed, simulated, emulated or measured. Its number is that of
this edition's notes: A of the survey itself (arXiv 2005.13247), C of that of layers (2403.07585), D
of that of large scale (2404.06114). Notebooks and tests name the items that they reproduce.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from ddlnb.errors import ResultsError
from ddlnb.files import PUBLISHED
from ddlnb.results.statistics import Verdict
from ddlnb.survey.claims import CLAIMS

COLUMNS = ("id", "section", "text", "source", "missing")
HOW = ("computed", "simulated", "emulated", "measured", "published")
NUMBER = re.compile(r"[ACD]\d\d")
STATED = "stated"
# Where a statement and its numbers come from: the survey's own text, a primary paper or repository
# that was read, our derivation, or common knowledge of the literature that was not read again.
SOURCES = (STATED, "primary", "derived", "known")


@dataclass(frozen=True)
class Item:
    """One statement: its section in a survey, its text, and what this edition lacks of it.

    ``source`` begins with one of `SOURCES`: where the statement and its numbers come from.
    """

    id: str
    section: str
    text: str
    source: str = STATED
    missing: str = ""


@dataclass(frozen=True)
class ItemVerdict:
    """What one study says of one item; the verdict is None where it could not be judged.

    ``how`` is one of HOW: what the rows are that the item was judged on.
    """

    item: str
    verdict: Verdict | None
    how: str
    said: str = ""


def survey_items(path: Path = PUBLISHED / "survey_items.csv") -> dict[str, Item]:
    """Return all items by number, in order: those of the file, and the claims on Fig. 4.

    Raises ResultsError, with the line, for a file that is damaged or names an item twice.

    >>> survey_items()["A16"].section
    '1-2'
    """
    items = {
        claim.id: Item(claim.id, claim.section, f"{claim.text[0].upper()}{claim.text[1:]}.")
        for claim in CLAIMS.values()
    }
    with path.open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            where = f"{path.name} line {line}"
            if tuple(row) != COLUMNS or None in row.values():
                raise ResultsError(f"{where} must have the columns {','.join(COLUMNS)}")
            if not NUMBER.fullmatch(row["id"]) or not row["text"] or not row["section"]:
                raise ResultsError(f"{where} must have an id such as A07, a section and a text")
            if not row["source"].startswith(SOURCES):
                raise ResultsError(f"{where} must have a source that begins {', '.join(SOURCES)}")
            if row["id"] in items:
                raise ResultsError(f"{where} names {row['id']} again; remove one of the two")
            items[row["id"]] = Item(**row)
    return dict(sorted(items.items()))
