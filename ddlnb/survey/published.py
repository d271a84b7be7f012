"""The speed-ups that section 4.2.1 of the survey quotes, beside those of tidy rows."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ddlnb.results.published import quoted
from ddlnb.results.tables import GPUS_PER_NODE

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
        """Return whether the clusters in data were fitted to its cells, those of one node."""
        return self.gpus <= GPUS_PER_NODE and self.network is None


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


def beside_quotes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the quoted speed-ups that the rows forecast, beside that of the best method.

    The last column says whether the calibration of the clusters has seen the quote. Quotes of more
    than 8 GPUs are held out: nothing is ever fitted to them.
    """
    found = []
    for quote in QUOTED_SPEEDUPS:
        cells = rows[(rows["model"] == quote.model) & (rows["gpus"] == quote.gpus)]
        for column in ("network", "local_batch"):
            if (wanted := getattr(quote, column)) is not None:
                cells = cells[cells[column] == wanted]
        if cells.empty:
            continue
        best = cells.loc[cells["speedup"].idxmax()]
        difference = 100 * (best["speedup"] / quote.value - 1)
        network = quote.network or "any"
        fit = "saw its cells" if quote.fitted else "has not seen it"
        values = (quote.model, quote.gpus, network, quote.value, best["speedup"], difference)
        found.append((quote.id, *values, best["method"], fit))
    table = pd.DataFrame(found, columns=["id", *COLUMNS]).set_index("id")
    return table.round({"published": 2, "simulated": 2, "difference (%)": 1})
