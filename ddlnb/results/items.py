"""The checkable items of the survey, in our words, and what is known to be missing of each.

An item is a statement that can be computed, simulated, emulated or measured. Its number is that of
this edition's notes on the survey; notebooks and tests name the items that they reproduce.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from ddlnb.errors import ResultsError
from ddlnb.paths import PUBLISHED
from ddlnb.results.claims import CLAIMS
from ddlnb.results.statistics import Verdict

COLUMNS = ("id", "section", "text", "missing")
HOW = ("computed", "simulated", "emulated", "measured", "published")
NUMBER = re.compile(r"A\d\d")


@dataclass(frozen=True)
class Item:
    """One statement: its section in the survey, its text, and what this edition lacks of it."""

    id: str
    section: str
    text: str
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
            if row["id"] in items:
                raise ResultsError(f"{where} names {row['id']} again; remove one of the two")
            items[row["id"]] = Item(**row)
    return dict(sorted(items.items()))
