"""Numbers the survey prints, read from data/published and never edited by code."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError, UnknownName
from ddlnb.files import PUBLISHED
from ddlnb.results.schema import KEY, NAMED_NETWORK, THROUGHPUT, Column, Kind, Rule, Schema
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas

FIG4_CELLS = PUBLISHED / "fig4_upto8.csv"
QUOTE_COLUMNS = ("id", "section", "item", "value", "unit", "tag")
MOST_GPUS = 8  # cells with more are held out: they are what a forecast will be tested on
FIG4 = Schema(
    (
        *THROUGHPUT,
        Column("std", Kind.NOT_NEGATIVE),
        Column("source", Kind.NAME, allowed=("published",)),
    ),
    unique=tuple(KEY),
    exact=True,
    rules=(
        NAMED_NETWORK,
        Rule(
            lambda cells: cells["gpus"] > MOST_GPUS,
            f"cells with more than {MOST_GPUS} GPUs are held out to test forecasts; remove them",
        ),
    ),
)


@dataclass(frozen=True)
class Quote:
    """One value as the text of the survey gives it, in the unit the text uses."""

    id: str
    section: str
    item: str
    value: float
    unit: str
    tag: str


def quotes(path: Path = PUBLISHED / "survey_quotes.csv") -> dict[str, list[Quote]]:
    """Return the values that the survey's text quotes, by their id, such as ``"A11"``.

    A quote has the ``item`` that was measured, its ``value`` in the ``unit`` of the text, and its
    ``section``. Raises ResultsError for a file that is damaged.

    >>> import ddlnb
    >>> [(quote.value, quote.unit) for quote in ddlnb.quotes()["A11"]]
    [(597.0, 'GFLOP'), (163.0, 'ms')]
    """
    found: dict[str, list[Quote]] = {}
    with path.open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                quote = _quote(row)
            except ValueError as error:
                raise ResultsError(
                    f"{path.name} line {line} is not a quote: {error}; "
                    f"write {','.join(QUOTE_COLUMNS)} with a number as value"
                ) from error
            found.setdefault(quote.id, []).append(quote)
    return found


def _quote(row: dict[str, str]) -> Quote:
    """Return the quote in one line. Raises ValueError if it is none."""
    if tuple(row) != QUOTE_COLUMNS or None in row.values():
        raise ValueError(f"it has the columns {row}")
    return Quote(
        row["id"], row["section"], row["item"], float(row["value"]), row["unit"], row["tag"]
    )


def quoted(quote_id: str, item: str) -> float:
    """Return the one quoted value of that id and item. Raises UnknownName.

    >>> quoted("A06", "intensity of resnet50")
    470.0
    """
    known = quotes()
    if quote_id not in known:
        raise UnknownName("quote", quote_id, known)
    by_item = {quote.item: quote.value for quote in known[quote_id]}
    if item not in by_item:
        raise UnknownName(f"item of quote {quote_id}", item, by_item)
    return by_item[item]


def fig4_cells(path: Path = FIG4_CELLS) -> pandas.DataFrame:
    """Return the published cells of Fig. 4 with up to 8 GPUs, single-GPU rates included.

    The latter name no network. Raises ResultsError when the file is not such a table, or holds a
    cell with more GPUs.
    """
    return FIG4.read(path)


def about_fig4_cells() -> str:
    """Return a sentence on how many published cells of Fig. 4 there are, and of which sizes."""
    cells = fig4_cells()
    counts = cells["gpus"].value_counts().sort_index()
    each = ", ".join(
        f"{counted(count, 'cell')} with {counted(gpus, 'GPU')}"
        for gpus, count in counts.items()
        if gpus > 1
    )
    return (
        f"{len(cells)} published rows of Fig. 4 are in this edition: {each}, and "
        f"{counts.get(1, 0)} rates of one GPU."
    )
