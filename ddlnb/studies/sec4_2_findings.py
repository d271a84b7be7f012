"""The findings of section 4.2 judged on forecasts and on published cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ddlnb.calibration.testbed import BATCHES, CLUSTERS, GPUS
from ddlnb.results.claim import Table
from ddlnb.results.claims import CLAIMS, evaluate_claims
from ddlnb.results.published import FIG4_KEY, fig4_cells
from ddlnb.results.table import GPUS_PER_NODE, SINGLE, cell_rates
from ddlnb.studies.fig4_forecast import RATE


def with_single(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows and one for every model, batch and network that runs on one GPU alone."""
    panel = ["model", "local_batch", "network"]
    alone = rows.groupby(panel, sort=False, as_index=False).first()
    alone[RATE] = alone[RATE] / alone["speedup"]
    alone = alone.assign(method=SINGLE, gpus=1, speedup=1.0)
    empty = {column: np.nan for column in ("low", "high", "chance_best") if column in rows}
    columns = [*panel, "method", "gpus", RATE, "speedup", "source", "machine"]
    kept = alone[[column for column in columns if column in alone]].assign(**empty)
    return pd.concat([rows, kept], ignore_index=True)


def verdicts(
    rows: pd.DataFrame,
    larger_batch: pd.DataFrame | None = None,
    published: pd.DataFrame | None = None,
) -> dict[str, pd.DataFrame]:
    """The verdict on every claim by source: "simulated", and "published" where there are cells.

    ``larger_batch`` are further rows, which only the claim about batches (A57) is judged by.
    """
    found = evaluate_claims(with_single(rows))
    if larger_batch is not None:
        both = pd.concat([rows, larger_batch], ignore_index=True)
        wider = evaluate_claims(with_single(both))
        found = pd.concat([found[found["claim"] != "A57"], wider[wider["claim"] == "A57"]])
        found = found.sort_values("claim", ignore_index=True)
    cells = fig4_cells() if published is None else published
    by_source = {"simulated": found}
    return by_source | ({"published": evaluate_claims(cells)} if len(cells) else {})


def verdicts_table(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per claim: holds, fails or not judged, and the supporting cells, by source."""
    columns = {}
    for source, frame in found.items():
        by_claim = frame.set_index("claim")
        columns[source, "verdict"] = by_claim["holds"].map(_in_words)
        share = (by_claim["share"] * by_claim["cells"]).round()
        columns[source, "supporting"] = share.fillna(0).astype(int)
        columns[source, "cells"] = by_claim["cells"]
    return pd.DataFrame(columns)


def _in_words(holds: bool | None) -> str:
    return "not judged" if holds is None else "holds" if holds else "fails"


def failing_cells(rows: pd.DataFrame, larger_batch: pd.DataFrame | None = None) -> pd.DataFrame:
    """Every cell against a claim that fails, worst first: what it is, and the value against it.

    The arguments are those of `verdicts`. A cell stands there once for each comparison it fails.
    """
    found = verdicts(rows, larger_batch)["simulated"]
    wider = rows if larger_batch is None else pd.concat([rows, larger_batch], ignore_index=True)
    lines = []
    for claim in found.loc[[holds is False for holds in found["holds"]], "claim"]:
        judged = wider if claim == "A57" else rows
        table = Table(cell_rates(with_single(judged)), GPUS_PER_NODE)
        for part in CLAIMS[claim].parts:
            for cell, value in part.failing(part.values(table)).items():
                lines.append({"claim": claim, **cell._asdict(), "value": value, "unit": part.unit})
    return pd.DataFrame(lines, columns=["claim", *FIG4_KEY, "value", "unit"])


def where(failing: pd.DataFrame) -> pd.DataFrame:
    """In how many of the failing cells each model, network and number of GPUs stands, by claim."""
    known: dict[str, Sequence] = {"model": list(BATCHES), "network": list(CLUSTERS), "gpus": GPUS}
    counts = {
        label: pd.crosstab(failing["claim"], failing[label]).reindex(columns=values, fill_value=0)
        for label, values in known.items()
    }
    return pd.concat(counts, axis=1) if len(failing) else pd.DataFrame()


def best_speedups(rows: pd.DataFrame, gpus: int = max(GPUS)) -> pd.DataFrame:
    """The speed-up of the best method: networks by models."""
    found = rows[rows["gpus"] == gpus].groupby(["network", "model"])["speedup"].max().unstack()
    return found.loc[list(dict.fromkeys(rows["network"])), list(dict.fromkeys(rows["model"]))]


def against(found: Mapping[str, pd.DataFrame], source: str = "simulated") -> pd.DataFrame:
    """The worst cells against every claim that fails; why a claim cannot be judged."""
    lines = []
    for _, row in found[source].iterrows():
        if row["holds"] is None:
            lines.append({"claim": row["claim"], "cell": "not judged", "is": row["reason"]})
        elif not row["holds"]:
            for failure in row["failures"].split("; "):
                cell, _, value = failure.partition(" is ")
                lines.append({"claim": row["claim"], "cell": cell, "is": value})
    return pd.DataFrame(lines, columns=["claim", "cell", "is"]).set_index("claim")


def count_of(found: pd.DataFrame) -> dict[str, int]:
    """How many claims hold, fail, and are not judged."""
    said = [_in_words(holds) for holds in found["holds"]]
    return {word: said.count(word) for word in ("holds", "fails", "not judged")}
