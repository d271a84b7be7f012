"""Fig. 4, a panel: the forecast of every cell, beside what is published of it (section 4.2)."""

from __future__ import annotations

import pandas as pd

from ddlnb.results.schema import KEY, RATE
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.published import about_fig4_cells, beside_quotes, fig4_cells
from ddlnb.survey.testbed import forecast_fig4
from ddlnb.units import counted


def forecast_panel(model: str, network: str, draws: int) -> pd.DataFrame:
    """Forecast the cells of one panel of Fig. 4 as run, with intervals from this many draws.

    Returns the rows of `ddlnb.forecast`. Raises UnknownName.
    """
    return forecast_fig4((model,), (network,), draws=draws)


def forecast_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return throughput with its 90 % interval, speed-up and the chance to be the best.

    The index is the number of GPUs and the method. Where published cells are in this edition, they
    and the relative errors of their forecasts stand beside.
    """
    table = pd.DataFrame(
        {
            "throughput (samples/s)": rows[RATE].round(1),
            "low": rows["low"].round(1),
            "high": rows["high"].round(1),
            "speed-up": rows["speedup"].round(2),
            "chance to be the best": rows["chance_best"].round(2),
        }
    ).set_index([rows["gpus"].rename("GPUs"), rows["method"]])
    errors = errors_by_cell(rows)
    if errors.empty:
        return table
    errors = errors.set_axis(errors.index.rename({"gpus": "GPUs"}))
    shown = errors.droplevel(["model", "local_batch", "network"])
    beside = pd.DataFrame(
        {
            "published (samples/s)": shown["published"].round(1),
            "error (%)": (100 * shown["relative_error"]).round(1),
        }
    ).reorder_levels(table.index.names)
    return table.join(beside)


def errors_by_cell(rows: pd.DataFrame, published: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the published cells that the rows forecast, with the relative error; often none."""
    cells = fig4_cells() if published is None else published
    ours = rows[[*KEY, RATE, "low", "high"]].rename(columns={RATE: "simulated"})
    theirs = cells[[*KEY, RATE]].rename(columns={RATE: "published"})
    theirs = theirs.astype({column: ours[column].dtype for column in KEY})
    both = ours.merge(theirs, on=KEY)
    both["relative_error"] = both["simulated"] / both["published"].astype(float) - 1
    both["in_interval"] = both["published"].between(both["low"], both["high"])
    columns = ["published", "simulated", "relative_error", "low", "high", "in_interval"]
    return both.set_index(KEY)[columns]


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
    absolute = errors["relative_error"].abs()
    inside = int(errors["in_interval"].sum())
    return (
        f"{len(errors)} published cells of this panel: mean absolute error {absolute.mean():.1%}, "
        f"largest {absolute.max():.1%}; {inside} lie within the 90 % interval."
    )


def quotes_beside(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-ups that section 4.2.1 quotes for this panel, beside the forecast."""
    return beside_quotes(rows)
