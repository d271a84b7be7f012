"""Fig. 4, a panel: the forecast of every cell, beside what is published of it (section 4.2).

Forecasts are scored on published cells, beside trivial ones.

Trivial forecasts see the published cells with up to 8 GPUs as they stand, and forecast the others
from them. Errors are relative to what is published: forecast over published, less 1. Tables judge
cells with 4, with 8 and with more GPUs apart, with and without suspicious ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from ddlnb.calibration.validation import TRIVIAL_FORECASTS
from ddlnb.errors import InputError, require, require_known
from ddlnb.files import DATA
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.rows import GPUS_PER_NODE, Cell, cell_rates, cells_of
from ddlnb.results.schema import KEY, NAMED_NETWORK, RATE, THROUGHPUT, Column, Kind, Rule, Schema
from ddlnb.survey.checks import SAME, check_table, faster_networks, has_servers, without_suspicious
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.published import (
    FIG4,
    about_fig4_cells,
    beside_quotes as beside_quotes,
    fig4_cells,
    judged_cells as judged_cells,
)
from ddlnb.survey.testbed import BATCHES, CLUSTERS, forecast_fig4 as forecast_fig4, observations_of
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
    alike = part[(part[RATE] / first[RATE] - 1).abs() < 1e-6]  # forecasts that nothing tells apart
    chance, gpus = alike["chance_best"].sum(min_count=1), counted(first["gpus"], "GPU")
    surely = "" if pd.isna(chance) else f", the best in {chance:.0%} of the draws"
    likely = part.loc[part["chance_best"].idxmax()] if surely else first
    if likely["method"] not in set(alike["method"]) and likely["chance_best"] > chance:
        surely += f" ({likely['method']} in {likely['chance_best']:.0%})"
    names = " and ".join(alike["method"])
    return f"{gpus}: {names}, {first['speedup']:.1f} times one GPU{surely}."


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


BLIND = tuple(sorted((DATA / "forecasts").glob("fig4_*.csv")))  # made before cells were opened
MOST_GPUS = 8  # of cells that the kept forecasts had seen
FORECAST = Schema(
    (*THROUGHPUT, *(Column(name, Kind.POSITIVE) for name in ("low", "high"))),
    unique=tuple(KEY),
    rules=(
        NAMED_NETWORK,
        Rule(
            lambda rows: ~rows[RATE].between(rows["low"], rows["high"]),
            "the throughput must be between low and high",
        ),
    ),
    what="forecast",
)
ORDER = {"model": tuple(BATCHES), "network": tuple(CLUSTERS), "method": tuple(SURVEYED)}
MORE = f"more than {MOST_GPUS}"  # the size of cells on which a forecast is tested
TIE = 1e-9  # forecasts that differ by less are one, rounded differently
QUESTION = ["forecast", *(name for name in KEY if name != "method"), "size"]


def read_forecast(path: str | Path) -> pd.DataFrame:
    """Return a forecast of cells with its 90 % intervals, low to high. Raises ResultsError."""
    return FORECAST.read(Path(path))


def trivial_forecasts(published: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the throughput of every published cell by trivial forecasts; none where unknown.

    They see cells with up to 8 GPUs and fewer than the forecast one has, suspicious ones included,
    so that all larger cells are forecast from that with 8 GPUs.
    """
    observations = observations_of(published)
    small = published["gpus"] <= MOST_GPUS
    seen = [one for one, is_small in zip(observations, small, strict=True) if is_small]
    found = {}
    for name, forecast in TRIVIAL_FORECASTS.items():
        times = [one.value / forecast(one, seen) for one in observations]
        unknown = {"low": math.nan, "high": math.nan}
        found[name] = published[KEY].assign(**{RATE: published[RATE] * times}, **unknown)
    return found


def score_rows(published: pd.DataFrame, forecasts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row per forecast and published cell of several GPUs; trivial forecasts come last.

    Columns: forecast, those of KEY, ``size`` (4, 8 or MORE GPUs), published and predicted
    throughput, relative_error, low and high, in_interval (unknown of a forecast that has none);
    suspicious and wrong_interface (`on_the_wrong_interface`) are said of the published cell. Raises
    InputError for tables that are not of published cells and of forecasts, or for a forecast that
    lacks a published cell.
    """
    published = FIG4.checked(published).reset_index(drop=True)
    judged = published[published["gpus"] > 1]
    require(len(judged) > 0, "no published cell has several GPUs; give a table of such cells")
    for name, known in ORDER.items():
        for value in judged[name].unique():
            require_known(f"{name} of Fig. 4", value, known)
    several = {name: _complete(name, rows, judged) for name, rows in forecasts.items()}
    several |= trivial_forecasts(published)
    errors = {name: errors_by_cell(rows, judged) for name, rows in several.items()}
    rows = pd.concat(errors, names=["forecast"]).reset_index()
    rows = rows.rename(columns={"simulated": "predicted"})
    sizes = rows["gpus"].astype(str).where(rows["gpus"] <= MOST_GPUS, MORE)
    rows.insert(1 + len(KEY), "size", sizes)
    rows["in_interval"] = rows["in_interval"].astype("boolean").mask(rows["low"].isna())
    trusted = {*cells_of(without_suspicious(published, check_table(published)))}
    wrong = on_the_wrong_interface(published)
    rows["suspicious"] = [cell not in trusted for cell in cells_of(rows)]
    rows["wrong_interface"] = [cell in wrong for cell in cells_of(rows)]
    for name, known in (ORDER | {"forecast": tuple(several)}).items():
        rows[name] = pd.Categorical(rows[name], known)
    return rows.sort_values(["forecast", *KEY], ignore_index=True)


def on_the_wrong_interface(published: pd.DataFrame) -> set[Cell]:
    """Return the cells of parameter servers over 100GbE that are as fast as over 10GbE.

    That is up to SAME, and beyond one node, within which no network is used.
    """
    rates = cell_rates(published)
    pairs = faster_networks(rates, ("10GbE", "100GbE"))
    return {
        fast
        for slow, fast in pairs
        if has_servers(fast)
        and fast.gpus > GPUS_PER_NODE
        and rates[fast] < (1 + SAME) * rates[slow]
    }


def _complete(name: str, rows: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return the checked forecast. Raises InputError if it lacks a published cell."""
    try:
        rows = FORECAST.checked(rows)
    except InputError as error:
        raise InputError(f"forecast {name}: {error}") from error
    forecast = {*cells_of(rows)}
    if lacking := [cell for cell in cells_of(published) if cell not in forecast]:
        raise InputError(
            f"forecast {name} lacks {len(lacking)} of {len(published)} published cells, the first "
            f"is {lacking[0]}; forecast every cell"
        )
    return rows


def score_table(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return errors in %, with and without suspicious cells, by these columns and forecast.

    ``cells`` are those that a forecast has a value for. ``mean`` and ``median`` are of absolute
    errors, ``bias`` is the mean of signed ones, ``inside`` the share of published values within
    the 90 % interval.
    """
    selected = {"with": rows, "without": rows[~rows["suspicious"]]}
    scored = {kind: _errors(part, *by) for kind, part in selected.items()}
    return pd.concat(scored, names=["suspicious"])


def _errors(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    error = 100 * rows["relative_error"]
    inside = 100 * rows["in_interval"].astype("Float64").astype(float)
    table = rows.assign(error=error, size_of_error=error.abs(), share=inside)
    return table.groupby([*by, "forecast"], observed=True).agg(
        cells=("error", "count"),
        mean=("size_of_error", "mean"),
        median=("size_of_error", "median"),
        bias=("error", "mean"),
        inside=("share", "mean"),
    )


def summary_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what `score_table` and `regret_table` say of all rows, by forecast.

    ``left_out`` are no cells, the suspicious ones, or those on the wrong interface alone.
    """
    selected = {
        "none": rows,
        "suspicious": rows[~rows["suspicious"]],
        "wrong interface": rows[~rows["wrong_interface"]],
    }
    tables = {}
    for left_out, part in selected.items():
        regret = 100 * regret_rows(part).groupby("forecast", observed=True)["regret"].mean()
        tables[left_out] = _errors(part).assign(regret=regret)
    return pd.concat(tables, names=["left_out"])


def mean_errors(
    rows: pd.DataFrame, by: Iterable[str] = ("gpus", "network", "method")
) -> pd.DataFrame:
    """Return mean absolute errors in % of trusted cells, by column and value, for each forecast."""
    trusted = {name: score_table(rows, name).loc["without", "mean"] for name in by}
    tables = {name: table.unstack("forecast") for name, table in trusted.items()}
    return pd.concat(tables, names=["by", "value"])


def blind_rows() -> pd.DataFrame:
    """Return `score_rows` of the forecasts made before cells with more than 8 GPUs were opened."""
    rows = score_rows(fig4_cells(), {path.name: read_forecast(path) for path in BLIND})
    return rows[rows["size"] == MORE]


def regret_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the ``regret`` of every forecast by model, local_batch, network and gpus.

    It is the share of the best published throughput that is lost by the method that the forecast
    ranks first; where it ranks several first, their mean. What is not a choice is left out: one
    method alone, or some that are not forecast.
    """
    groups = rows.groupby(QUESTION, observed=True)
    ranked = groups["predicted"].transform("count")
    is_choice = (ranked > 1) & (ranked == groups["published"].transform("count"))
    first = rows["predicted"] >= (1 - TIE) * groups["predicted"].transform("max")
    lost = rows.assign(regret=1 - rows["published"] / groups["published"].transform("max"))
    return lost[is_choice & first].groupby(QUESTION, observed=True)["regret"].mean().reset_index()
