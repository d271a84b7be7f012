"""Numbers the survey prints, read from data/published and never edited by code.

They are the values that its text quotes, the cells of its Fig. 4, and the
speed-ups of section 4.2.1, which stand beside those of tidy rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ddlnb.errors import look_up
from ddlnb.files import PUBLISHED
from ddlnb.results.rows import NETWORKS
from ddlnb.results.schema import KEY, NAMED_NETWORK, THROUGHPUT, Column, Kind, Schema
from ddlnb.survey.checks import check_table, without_suspicious
from ddlnb.survey.items import Rows, tabled
from ddlnb.units import counted

FIG4_CELLS = PUBLISHED / "fig4.csv"
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
    rules=(NAMED_NETWORK,),
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
    >>> [(quote.value, quote.unit) for quote in ddlnb.survey.quotes()["A11"]]
    [(597.0, 'GFLOP'), (163.0, 'ms')]
    """
    return {
        str(quote_id): [Quote(*values) for values in rows.itertuples(index=False)]
        for quote_id, rows in QUOTES.read(path).groupby("id", sort=False)
    }


def quoted(quote_id: str, item: str) -> float:
    """Return the one quoted value of that id and item. Raises UnknownName.

    >>> quoted("A06", "intensity of resnet50")
    470.0
    """
    listed = look_up("quote", quote_id, quotes())
    by_item = {quote.item: quote.value for quote in listed}
    return look_up(f"item of quote {quote_id}", item, by_item)


def fig4_cells(path: Path = FIG4_CELLS) -> pd.DataFrame:
    """Return the published cells of Fig. 4, single-GPU rates included, which name no network.

    Raises ResultsError when the file is not such a table.
    """
    return FIG4.read(path)


def judged_cells() -> pd.DataFrame:
    """Return the published cells of Fig. 4 and whether each is ``suspicious`` (`check_table`)."""
    cells = fig4_cells()
    trusted = without_suspicious(cells, check_table(cells))
    return cells.assign(suspicious=~cells.index.isin(trusted.index))


def about_fig4_cells() -> str:
    """Return how many published cells of Fig. 4 there are, of which sizes, how many suspicious."""
    cells = judged_cells()
    counts = cells["gpus"].value_counts().sort_index()
    alone = counts.pop(1) if 1 in counts else 0
    each = ", ".join(
        f"{counted(n, 'cell')} with {counted(gpus, 'GPU')}" for gpus, n in counts.items()
    )
    return (
        f"{len(cells)} published rows of Fig. 4 are in this edition: {each}, and {alone} rates of "
        f"one GPU. {cells['suspicious'].sum()} of them are suspicious (`ddlnb survey check`)."
    )


COLUMNS = (
    *("model", "GPUs", "network", "published", "simulated", "difference (%)", "best method"),
    "the fit",
)


@dataclass(frozen=True)
class QuotedSpeedup:
    """A quoted speed-up and the cells that it is about; without a network it is any's."""

    id: str
    item: str
    model: str
    gpus: int
    network: str | None = None
    local_batch: int | None = None

    @property
    def value(self) -> float:
        """Return the speed-up as it is printed."""
        return quoted(self.id, self.item)

    @property
    def fitted(self) -> bool:
        """Return whether the clusters in data were fitted to its cells, which are in Fig. 4."""
        return self.network in (None, *NETWORKS)


QUOTED_SPEEDUPS = (
    QuotedSpeedup("A40", "speedup of resnet50 on 4 GPUs", "resnet50", 4),
    QuotedSpeedup("A40", "speedup of resnet50 on 32 GPUs with 100GbIB", "resnet50", 32, "100GbIB"),
    QuotedSpeedup("A41", "speedup of bert-base on 4 GPUs", "bert-base", 4),
    QuotedSpeedup(
        "A41", "speedup of bert-base on 32 GPUs with 100GbIB", "bert-base", 32, "100GbIB"
    ),
    QuotedSpeedup("A42", "most speedup of bert-large on 4 GPUs", "bert-large", 4, local_batch=8),
    QuotedSpeedup(
        "A43",
        "speedup of bert-large at batch 128 on 4 V100-32GB with NVLink",
        "bert-large",
        4,
        "NVLink",
        128,
    ),
)


@tabled("id", *COLUMNS, index=["id"], digits={"published": 2, "simulated": 2, "difference (%)": 1})
def beside_quotes(rows: pd.DataFrame) -> Rows:
    """Return the quoted speed-ups that the rows forecast, beside that of the best method.

    The last column says whether the calibration of the clusters has seen the cells of the quote.
    """
    for quote in QUOTED_SPEEDUPS:
        wanted = {
            name: getattr(quote, name) for name in ("model", "gpus", "network", "local_batch")
        }
        wanted = {name: value for name, value in wanted.items() if value is not None}
        cells = rows[(rows[list(wanted)] == pd.Series(wanted)).all(axis=1)]
        if cells.empty:
            continue
        best, value = cells.loc[cells["speedup"].idxmax()], quote.value
        yield (
            quote.id, quote.model, quote.gpus, quote.network or "any", value, best["speedup"],
            100 * (best["speedup"] / value - 1), best["method"],
            "saw its cells" if quote.fitted else "has not seen it",
        )  # fmt: skip
