"""The checkable items of the surveys, in our words, and what is known to be missing of each.

An item is a statement that can be computed, simulated, emulated or measured. Its number is that of
this edition's notes: A of the survey itself (arXiv 2005.13247), C of that of layers (2403.07585), D
of that of large scale (2404.06114). Notebooks and tests name the items that they reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddlnb.files import PUBLISHED
from ddlnb.results.schema import Column, Kind, Rule, Schema
from ddlnb.results.statistics import Verdict
from ddlnb.survey.claims import CLAIMS

HOW = ("computed", "simulated", "emulated", "measured", "published")
STATED = "stated"
# Where a statement and its numbers come from: the survey's own text, a primary paper or repository
# that was read, our derivation, or common knowledge of the literature that was not read again.
SOURCES = (STATED, "primary", "derived", "known")
ITEMS = Schema(
    (
        *(Column(name, Kind.NAME) for name in ("id", "section", "text")),
        *(Column(name, Kind.TEXT) for name in ("source", "missing")),
    ),
    unique=("id",),
    exact=True,
    rules=(
        Rule(lambda rows: ~rows["id"].str.fullmatch(r"[ACD]\d\d"), "id must be one such as A07"),
        Rule(lambda rows: rows["id"].isin(CLAIMS), "id is that of a claim on Fig. 4; remove it"),
        Rule(
            lambda rows: ~rows["source"].str.startswith(SOURCES),
            f"source must begin with {', '.join(SOURCES)}",
        ),
    ),
    what="list of items",
)


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
    for row in ITEMS.read(path).itertuples(index=False):
        items[row[0]] = Item(*row)
    return dict(sorted(items.items()))
