"""Numbers the survey prints, read from data/published and never edited by code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import UnknownName
from ddlnb.files import PUBLISHED
from ddlnb.results.schema import KEY, NAMED_NETWORK, THROUGHPUT, Column, Kind, Rule, Schema
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas

FIG4_CELLS = PUBLISHED / "fig4_upto8.csv"
MOST_GPUS = 8  # cells with more are held out: they are what a forecast will be tested on
QUOTES = Schema(
    (
        *(Column(name, Kind.NAME) for name in ("id", "section", "item")),
        Column("value", Kind.POSITIVE),
        *(Column(name, Kind.NAME) for name in ("unit", "tag")),
    ),
    exact=True,
    what="list of quotes",
)
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
    for values in QUOTES.read(path).itertuples(index=False):
        found.setdefault(values[0], []).append(Quote(*values))
    return found


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
