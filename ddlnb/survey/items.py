"""The checkable items of the surveys, in our words, and the findings and tables that judge them.

An item is a statement that can be computed, simulated, emulated or measured. Its number is that of
this edition's notes: A of the survey itself (arXiv 2005.13247), C of that of layers (2403.07585), D
of that of large scale (2404.06114). Notebooks and tests name the items that they reproduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
import pandas as pd

from ddlnb.calibration.statistics import Verdict
from ddlnb.files import PUBLISHED
from ddlnb.results.schema import Column, Kind, Rule, Schema
from ddlnb.survey.claims import CLAIMS
from ddlnb.units import listed

HOW = ("computed", "simulated", "emulated", "measured", "published")
STATED = "stated"
# Where a statement and its numbers come from: the survey's own text, a primary paper or repository
# that was read, our derivation, or common knowledge of the literature that was not read again.
SOURCES = (STATED, "primary", "derived", "known")
ITEMS = Schema(
    (
        *(Column(name, Kind.NAME) for name in ("id", "section", "text")),
        *(Column(name, Kind.TEXT) for name in ("source", "missing")),
        Column("decided", Kind.TEXT, allowed=("", "arithmetic", "definition", "question")),
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
    ``decided`` says of a statement that no measurement could refute why that is so: it follows by
    arithmetic from what is printed, by definition, or it is a question that the survey asks.
    """

    id: str
    section: str
    text: str
    source: str = STATED
    missing: str = ""
    decided: str = ""


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
        claim.id: Item(
            claim.id,
            claim.section,
            f"{claim.text[0].upper()}{claim.text[1:]}.",
            decided=claim.decided,
        )
        for claim in CLAIMS.values()
    }
    for row in ITEMS.read(path).itertuples(index=False):
        items[row[0]] = Item(*row)
    return dict(sorted(items.items()))


ITEMS_TYPE = "application/vnd.ddlnb.items+json"  # of a cell's output: verdicts for the report


class Findings(str):
    """Markdown text whose numbers come from rows; a notebook cell shows it formatted.

    ``items`` are verdicts on items of the survey. They travel in the cell's output, unseen, to the
    report's index of the survey.
    """

    items: tuple[ItemVerdict, ...] = ()

    def _repr_markdown_(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return {ITEMS_TYPE: [asdict(verdict) for verdict in self.items]} if self.items else {}


SAME = 1e-6  # relative: a difference of rounding


def ties(seconds: pd.Series[float], of: float) -> str:
    """Return the names of all that take as long as this, but for rounding.

    >>> import pandas as pd
    >>> ties(pd.Series({"ring": 0.15, "tree": 0.15 + 1e-12, "star": 0.2}), of=0.15)
    'ring and tree'
    """
    alike = np.isclose(seconds, of, rtol=SAME, atol=0.0)
    names = [f"'{name}'" if "," in str(name) else str(name) for name in seconds.index[alike]]
    return listed(names)


def findings(*sentences: str, items: Iterable[ItemVerdict] = ()) -> Findings:
    """Return the sentences as a list with a bullet each; empty ones are left out.

    ``items`` are what the rows say of items of the survey.

    >>> print(findings("One holds.", "", "Two are undecided."))
    - One holds.
    - Two are undecided.
    """
    found = Findings("\n".join(f"- {sentence}" for sentence in sentences if sentence))
    found.items = tuple(items)
    return found


def item_verdict(item: str, verdicts: Iterable[Verdict], how: str, said: str = "") -> ItemVerdict:
    """Return one verdict on an item of several parts: it holds only if each of them does.

    >>> item_verdict("A21", [Verdict.HOLDS, Verdict.UNDECIDED], "measured").verdict
    <Verdict.UNDECIDED: 'undecided'>
    """
    found = set(verdicts)
    worst = next((one for one in (Verdict.CONTRADICTED, Verdict.UNDECIDED) if one in found), None)
    return ItemVerdict(item, worst or (Verdict.HOLDS if found else None), how, said)


P = ParamSpec("P")
Rows = Iterator[Mapping[str, Any] | tuple[Any, ...]]


def tabled(
    *columns: str,
    index: Sequence[str] = (),
    digits: int | Mapping[str, int] | None = None,
    **same: object,
) -> Callable[[Callable[P, Rows]], Callable[P, pd.DataFrame]]:
    """Let a function that yields rows return their table.

    A row is a mapping, or a tuple under ``columns``. All rows are the ``same`` in further columns;
    numbers are rounded to ``digits``, and the columns of ``index`` become the index.

    >>> @tabled("workers", "share", index=["workers"], digits=2)
    ... def shares(most: int) -> Rows:
    ...     for workers in range(1, most + 1):
    ...         yield workers, 1 / workers
    >>> shares(3)["share"].to_dict()
    {1: 1.0, 2: 0.5, 3: 0.33}
    """

    def declared(rows: Callable[P, Rows]) -> Callable[P, pd.DataFrame]:
        @wraps(rows)
        def made(*args: P.args, **given: P.kwargs) -> pd.DataFrame:
            table = pd.DataFrame(list(rows(*args, **given)), columns=columns or None)
            table = table.assign(**same) if digits is None else table.assign(**same).round(digits)
            return table.set_index(list(index)) if index and len(table) else table

        return made

    return declared


def with_half_widths(table: pd.DataFrame, *measures: str) -> pd.DataFrame:
    """Return the texts of measures whose half widths stand in columns beside them.

    >>> with_half_widths(pd.DataFrame({"loss": [0.5], "loss_half_width": [0.02]}), "loss")
                  loss
    0  0.5000 ± 0.0200
    """
    texts = {
        measure.replace("_", " "): [
            f"{mean:.4f} ± {half:.4f}"
            for mean, half in zip(table[measure], table[f"{measure}_half_width"], strict=True)
        ]
        for measure in measures
    }
    return pd.DataFrame(texts, table.index)
