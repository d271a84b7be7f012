"""Fig. 4, a panel: the forecast of every cell, beside what is published of it (section 4.2)."""

from __future__ import annotations

import pandas as pd

from ddlnb.results.schema import KEY, RATE
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.published import (
    about_fig4_cells,
    beside_quotes as beside_quotes,
    judged_cells as judged_cells,
)
from ddlnb.survey.testbed import forecast_fig4 as forecast_fig4
from ddlnb.units import counted

SHOWN = {
    RATE: "throughput (samples/s)",
    "low": "low",
    "high": "high",
    "speedup": "speed-up",
    "chance_best": "chance to be the best",
    "published": "published (samples/s)",
}


def forecast_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return throughput with its 90 % interval, speed-up and the chance to be the best.

    The index is the number of GPUs and the method. Beside stand the published cells, the relative
    errors of their forecasts, and which of them are suspicious.
    """
    index = ["gpus", "method"]
    digits = {RATE: 1, "low": 1, "high": 1, "speedup": 2, "chance_best": 2}
    table = rows.set_index(index)[list(digits)].round(digits)
    errors = errors_by_cell(rows).reset_index(["model", "local_batch", "network"], drop=True)
    if len(errors):
        errors["error (%)"] = 100 * errors["relative_error"]
        errors["suspicious"] = errors["suspicious"].map({True: "yes", False: ""})
        shown = ["published", "error (%)", "suspicious"]
        beside = errors[shown].round(1).reorder_levels(index)
        table = table.join(beside)
    return table.rename(columns=SHOWN).rename_axis(["GPUs", "method"])


def errors_by_cell(rows: pd.DataFrame, published: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the published cells that the rows forecast, with the relative error.

    ``published`` are `judged_cells` by default; of others none is taken to be suspicious.
    """
    cells = judged_cells() if published is None else published.assign(suspicious=False)
    ours = rows[[*KEY, RATE, "low", "high"]].rename(columns={RATE: "simulated"})
    theirs = cells[[*KEY, RATE, "suspicious"]].rename(columns={RATE: "published"})
    theirs = theirs.astype({column: ours[column].dtype for column in KEY})
    both = ours.merge(theirs, on=KEY)
    both["relative_error"] = both["simulated"] / both["published"].astype(float) - 1
    both["in_interval"] = both["published"].between(both["low"], both["high"])
    columns = ["published", "simulated", "relative_error", "low", "high", "in_interval"]
    return both.set_index(KEY)[[*columns, "suspicious"]]


def panel_findings(rows: pd.DataFrame) -> Findings:
    """Return the best method by number of GPUs, and how far the forecast is from what is known."""
    return findings(
        *(_best(part) for _, part in rows.groupby("gpus")),
        about_fig4_cells(),
        about_errors(errors_by_cell(rows)),
    )


def _best(part: pd.DataFrame) -> str:
    first = part.loc[part[RATE].idxmax()]
    chance = first["chance_best"]
    surely = "" if pd.isna(chance) else f", the best in {chance:.0%} of the draws"
    gpus = counted(first["gpus"], "GPU")
    return f"{gpus}: {first['method']}, {first['speedup']:.1f} times one GPU{surely}."


def about_errors(errors: pd.DataFrame) -> str:
    """Return the size of the errors in one sentence, or that there is no cell to judge by."""
    if errors.empty:
        return "So the errors of these forecasts are unknown: there is no published cell of them."
    absolute, suspicious = errors["relative_error"].abs(), errors["suspicious"]
    inside = int(errors["in_interval"].sum())
    trusted = absolute[~suspicious]
    without = (
        f" Without {counted(suspicious.sum(), 'suspicious one')} the mean is {trusted.mean():.1%}, "
        f"the largest {trusted.max():.1%}."
        if suspicious.any()
        else ""
    )
    return (
        f"{len(errors)} published cells of this panel: mean absolute error {absolute.mean():.1%}, "
        f"largest {absolute.max():.1%}; {inside} lie within the 90 % interval.{without}"
    )
