"""Numbers the survey prints, read from data/published and never edited by code."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError, UnknownName
from ddlnb.paths import PUBLISHED

if TYPE_CHECKING:
    import pandas

QUOTE_COLUMNS = ("id", "section", "item", "value", "unit", "tag")
MOST_GPUS = 8  # cells with more are held out: they are what a forecast will be tested on
FIG4_COLUMNS = (
    "model",
    "local_batch",
    "network",
    "method",
    "gpus",
    "throughput_samples_per_s",
    "std",
    "source",
)
FIG4_KEY = ["model", "local_batch", "network", "method", "gpus"]
FIG4_COUNTS = ["local_batch", "gpus"]


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
    """The quoted values by their id, such as ``"A11"``. Raises ResultsError.

    >>> [quote.value for quote in quotes()["A11"]]
    [597.0, 163.0]
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
    """The quote in one line. Raises ValueError if it is none."""
    if tuple(row) != QUOTE_COLUMNS or None in row.values():
        raise ValueError(f"it has the columns {row}")
    return Quote(
        row["id"], row["section"], row["item"], float(row["value"]), row["unit"], row["tag"]
    )


def quoted(quote_id: str, item: str) -> float:
    """The one quoted value of that id and item. Raises UnknownName.

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


def fig4_cells(path: Path = PUBLISHED / "fig4_upto8.csv") -> pandas.DataFrame:
    """The cells of Fig. 4 with up to 8 GPUs, tidy; an empty frame when the file is absent.

    Raises ResultsError when the file is not such a table, or holds a cell with more GPUs.
    """
    import pandas

    if not path.exists():
        return pandas.DataFrame(columns=list(FIG4_COLUMNS))
    try:
        cells = pandas.read_csv(path)
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise ResultsError(f"{path.name} cannot be read as a table: {error}") from error
    if tuple(cells.columns) != FIG4_COLUMNS:
        raise ResultsError(
            f"{path.name} has columns {', '.join(cells.columns)}; "
            f"write exactly {', '.join(FIG4_COLUMNS)}"
        )
    for column in (*FIG4_COUNTS, "throughput_samples_per_s"):
        numbers = pandas.to_numeric(cells[column], errors="coerce")
        _refuse(path, cells, ~(numbers > 0), f"{column} must be a positive number")
    for column in FIG4_COUNTS:
        _refuse(path, cells, cells[column] % 1 != 0, f"{column} must be a whole number")
    deviation = pandas.to_numeric(cells["std"], errors="coerce")
    wrong = (deviation.isna() & cells["std"].notna()) | (deviation < 0)
    _refuse(path, cells, wrong, "std must be empty or a number that is not negative")
    _refuse(path, cells, cells["source"] != "published", "source must be 'published'")
    _refuse(path, cells, cells.duplicated(FIG4_KEY), "the same cell stands there twice")
    _refuse(
        path,
        cells,
        cells["gpus"] > MOST_GPUS,
        f"cells with more than {MOST_GPUS} GPUs are held out to test forecasts; remove them",
    )
    return cells


def about_fig4_cells() -> str:
    """Return a sentence on how many published cells of Fig. 4 this edition has."""
    if count := len(fig4_cells()):
        return f"{count} published cells of Fig. 4 are in this edition."
    return (
        "The published cells of Fig. 4 are not in this edition: data/published/fig4_upto8.csv "
        "could not be obtained. There are only the speed-ups that the survey's text quotes."
    )


def _refuse(path: Path, cells: pandas.DataFrame, wrong: pandas.Series, rule: str) -> None:
    """Raise ResultsError with the first wrong line, if there is one."""
    if wrong.any():
        index = int(wrong.to_numpy().argmax())
        row = ",".join(str(value) for value in cells.iloc[index])
        raise ResultsError(f"{path.name} line {index + 2} ({row}): {rule}")
