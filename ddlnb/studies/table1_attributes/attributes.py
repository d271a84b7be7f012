"""The survey's Table 1: its words, ours, the numbers behind them, and whether the words agree.

Every word of ours follows from one number by the scale of its attribute. The survey gives no
scales: these are ours, printed beside the verdicts, and another one may give another word.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import ResultsError, UnknownName, require
from ddlnb.paths import PUBLISHED
from ddlnb.studies.findings import Findings, findings

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("row", "section", "aspect", "attribute", "word", "tag")
SOURCES = ("measured", "simulated", "computed")
AGREES, DISAGREES, UNKNOWN = "agrees", "disagrees", "cannot be derived here"
LEVELS = ("low", "medium", "high")


@dataclass(frozen=True)
class Scale:
    """Words for ranges of a number, ascending; a range begins at its bound.

    >>> Scale("bytes", LEVELS, (0.1, 0.75)).word(0.1)
    'medium'
    """

    number: str  # what it is
    words: tuple[str, ...]
    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        require(len(self.words) == len(self.bounds) + 1, "a scale needs one bound between words")
        require(sorted(self.bounds) == list(self.bounds), f"bounds {self.bounds} must ascend")

    def word(self, value: float) -> str:
        """Return the word for a number. Raises InputError for NaN."""
        require(not math.isnan(value), f"{self.number} is no number")
        return self.words[bisect_right(self.bounds, value)]

    def __str__(self) -> str:
        first = f"{self.words[0]} below {self.bounds[0]:g}"
        pairs = zip(self.words[1:], self.bounds, strict=True)
        return ", ".join([first, *(f"{word} from {bound:g}" for word, bound in pairs)])


SCALES: dict[tuple[str, str], Scale] = {
    ("synchronisation", "loss"): Scale(
        "distance of the parameters from those of one worker on the joined batch, "
        "as a share of the way from the start",
        ("lossless", "lossy"),
        (1e-4,),
    ),
    ("synchronisation", "synchronisation frequency"): Scale(
        "waits for others per gradient, as a share of BSP's", LEVELS, (0.01, 0.9)
    ),
    ("synchronisation", "communication frequency"): Scale(
        "exchanges per gradient", LEVELS, (0.25, 0.75)
    ),
    ("synchronisation", "traffic"): Scale(
        "bytes that a worker sends in one exchange, over those of the gradient",
        LEVELS,
        (0.1, 0.75),
    ),
    ("synchronisation", "convergence"): Scale(
        "iterations to the target loss, over those of BSP", ("easy", "normal", "hard"), (1.1, 2.0)
    ),
    ("compression", "traffic"): Scale(
        "bytes that a worker sends per iteration, over those of the dense ring; median over the "
        "compressors",
        LEVELS,
        (0.1, 0.75),
    ),
    ("scheduling", "loss"): Scale(
        "share of the gradient's elements that are not sent exactly once",
        ("lossless", "lossy"),
        (1e-12,),
    ),
    ("scheduling", "efficiency"): Scale(
        "share hidden of the communication of BSP that computation could hide; median over "
        "models, networks and architectures",
        LEVELS,
        (1 / 3, 2 / 3),
    ),
    ("architecture", "traffic"): Scale(
        "bytes on the busiest link per direction, over those of the gradient", LEVELS, (1.0, 2.01)
    ),
    ("architecture", "robustness"): Scale(
        "share of their work that the others do after one worker stops, with the synchronisation "
        "that suffers least",
        LEVELS,
        (0.5, 0.9),
    ),
    ("protocol", "latency"): Scale(
        "latency seconds of a message, over those of the quickest protocol", LEVELS, (1.5, 3.0)
    ),
    ("topology", "efficiency"): Scale(
        "rings through all servers that share no link in one direction", LEVELS, (2, 3)
    ),
    ("topology", "robustness"): Scale(
        "share of random losses of links that leave all servers connected", LEVELS, (0.6, 0.9)
    ),
}
SCALES["compression", "loss"] = SCALES["synchronisation", "loss"]
SCALES["compression", "convergence"] = SCALES["synchronisation", "convergence"]


@dataclass(frozen=True)
class Derived:
    """A number for one cell, where it comes from, and what else there is to say.

    ``source`` is one of SOURCES. A number that is NaN cannot be derived; ``note`` says why.
    """

    row: str
    attribute: str
    number: float
    source: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UnknownName("source", self.source, SOURCES)
        require(
            not math.isnan(self.number) or bool(self.note),
            f"{self.row}, {self.attribute}: say why there is no number",
        )


def survey_attributes(path: Path = PUBLISHED / "table1.csv") -> pd.DataFrame:
    """Return the cells of Table 1, with COLUMNS. Raises ResultsError for a damaged file."""
    import pandas as pd

    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    for number, row in enumerate(found, start=2):
        if tuple(row) != COLUMNS or None in row.values():
            raise ResultsError(f"{path.name} line {number} must have {','.join(COLUMNS)}")
        key = row["aspect"], row["attribute"]
        if key not in SCALES or row["word"] not in SCALES[key].words:
            raise ResultsError(f"{path.name} line {number}: no scale has the word {row['word']!r}")
    return pd.DataFrame(found, columns=list(COLUMNS))


def compared(derived: Sequence[Derived]) -> pd.DataFrame:
    """Return the cells of Table 1 that were derived, in its order, with both words and a verdict.

    Columns: row, attribute, survey (its word), here (ours), verdict, number, source, note. Raises
    InputError for a cell that the table does not have or that is derived twice.
    """
    import pandas as pd

    survey = survey_attributes()
    by_cell = {(one.row, one.attribute): one for one in derived}
    require(len(by_cell) == len(derived), "a cell was derived twice")
    cells = set(zip(survey["row"], survey["attribute"], strict=True))
    extra = sorted(set(by_cell) - cells)
    require(not extra, f"Table 1 has no cells {extra}")
    rows = []
    for cell in survey.itertuples():
        one = by_cell.get((cell.row, cell.attribute))
        if one is None:
            continue
        scale = SCALES[cell.aspect, cell.attribute]
        word = "-" if math.isnan(one.number) else scale.word(one.number)
        agrees = AGREES if word == cell.word else DISAGREES
        rows.append(
            {
                "row": cell.row,
                "attribute": cell.attribute,
                "survey": cell.word,
                "here": word,
                "verdict": UNKNOWN if word == "-" else agrees,
                "number": one.number,
                "source": one.source,
                "note": one.note,
            }
        )
    return pd.DataFrame(rows)


def scales_table() -> pd.DataFrame:
    """Return what every attribute's number is, and which words stand for which numbers."""
    import pandas as pd

    rows = [(*key, scale.number, str(scale)) for key, scale in SCALES.items()]
    table = pd.DataFrame(rows, columns=["aspect", "attribute", "number", "words"])
    return table.sort_values(["aspect", "attribute"]).set_index(["aspect", "attribute"])


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many cells of every attribute agree, disagree, or cannot be derived."""
    import pandas as pd

    counts = pd.crosstab(table["attribute"], table["verdict"])
    every = [AGREES, DISAGREES, UNKNOWN]
    return counts.reindex(index=list(dict.fromkeys(table["attribute"])), columns=every).fillna(0)


def words_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return `compared` to read, by row and attribute."""
    shown = table.assign(number=table["number"].map("{:.3g}".format))
    return shown.set_index(["row", "attribute"])


def word_findings(table: pd.DataFrame) -> Findings:
    """Return how many words agree, and which do not."""
    counts = table["verdict"].value_counts()
    against = table[table["verdict"] == DISAGREES]
    named = "; ".join(
        f"{one.row}, {one.attribute} ({one.survey} in the survey, {one.here} here)"
        for one in against.itertuples()
    )
    return findings(
        f"{counts.get(AGREES, 0)} of {len(table)} words agree, {len(against)} disagree, and "
        f"{counts.get(UNKNOWN, 0)} cannot be derived here.",
        f"They disagree on: {named}." if named else "",
    )
