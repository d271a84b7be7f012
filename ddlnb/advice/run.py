"""A whole training run: the days that so many tokens take, their cost, and the energy.

Days are tokens over tokens per second, over the goodput: what failures, restarts, checkpoints and
stragglers leave of the time (`ddlnb.goodput`), where another node stands in at once for one that
fails. The 90 % intervals of both are independent of each other, so the distances of their ends from
the median, in logarithms, add up in squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddlnb.advice.question import Prices
from ddlnb.calibration.statistics import Interval
from ddlnb.errors import InputError, require_positive
from ddlnb.parallelism.forecast.layouts import Ranking, ranked
from ddlnb.questions import Table
from ddlnb.units import digits, show_count

if TYPE_CHECKING:
    from ddlnb.parallelism.forecast.question import LayoutQuestion

SIZES = (0.25, 0.5, 2.0, 4.0)  # times the nodes that were asked about
OWN_SPLITS = 2  # the best one and its rival on the nodes that were asked about
DRAWS = 100  # of goodput
WATT_HOURS_PER_MWH = 1e6
YEARS = 3  # of which more is given in years
YEAR_DAYS = 365.25


@dataclass(frozen=True)
class Run:
    """Training on so many tokens: on the nodes of a question, and on fewer and more of them.

    ``prices`` are those of a GPU; ``within_days`` asks for the cheapest that ends in time. Raises
    InputError for tokens and days that are not positive.
    """

    question: LayoutQuestion
    prices: Prices
    tokens: float
    within_days: float | None = None

    def __post_init__(self) -> None:
        require_positive(tokens=self.tokens)
        if self.within_days is not None:
            require_positive(within_days=self.within_days)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row per number of GPUs, those of the question first, with its best and second split.

        Columns: gpus, layout, days with their 90 % interval (low, high), goodput, gpu_hours, cost
        (NaN without a price), and megawatt_hours, which GPUs draw at most by their data sheet (NaN
        where it does not say). Raises what `ddlnb.scale` raises.
        """
        asked = self.question
        listed = [(asked, row) for row in _splits(ranked(asked), OWN_SPLITS)]
        for other, ranking in _of_other_sizes(asked):
            listed += [(other, row) for row in _splits(ranking, 1)]
        return pd.DataFrame([_run(one, row, self.tokens, self.prices) for one, row in listed])

    @property
    def table(self) -> Table:
        """The rows as texts."""
        return Table(f"A run of {show_count(self.tokens)} tokens", _shown(self.rows))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the run takes, and the cheapest one that ends in time."""
        return tuple(_sentences(self.rows, self.tokens, self.within_days))


def _splits(ranking: Ranking, top: int) -> list[dict[str, Any]]:
    """Return rows of the best splits, each with how many replicas train."""
    replicas = ranking.outlook.cases.dp[ranking.best_of_splits()[:top]]
    found = zip(ranking.rows(top), replicas, strict=True)
    return [{**row, "replicas": int(count)} for row, count in found]


def _of_other_sizes(asked: LayoutQuestion) -> Iterator[tuple[LayoutQuestion, Ranking]]:
    """Yield the question on fewer and more nodes, at the same batch, where something fits."""
    for factor in SIZES:
        if (nodes := asked.nodes * factor).is_integer():
            with suppress(InputError):  # nothing fits, or the batch is too small
                other = replace(asked, nodes=int(nodes))
                yield other, ranked(other)


def _run(
    asked: LayoutQuestion, row: dict[str, Any], tokens: float, prices: Prices
) -> dict[str, Any]:
    from ddlnb.parallelism.goodput.failures import DAY, HOUR
    from ddlnb.parallelism.goodput.simulate import Job, goodput

    replica = asked.gpus // row["replicas"]
    job = Job(asked.gpus, asked.gpus_per_node, replica, spare_nodes=asked.nodes)
    left = goodput(job, draws=DRAWS).goodput
    rate = Interval(*(asked.gpus * row[key] for key in ("tokens_per_s_per_gpu", "low", "high")))
    days = tokens / (rate.estimate * left.estimate) / DAY
    longer = math.hypot(*(math.log(one.estimate / one.low) for one in (rate, left)))
    shorter = math.hypot(*(math.log(one.high / one.estimate) for one in (rate, left)))
    gpu_hours = asked.gpus * days * DAY / HOUR
    watts = asked.gpu.power or math.nan
    return {
        "gpus": asked.gpus,
        "layout": row["layout"],
        "days": days,
        "low": days * math.exp(-shorter),
        "high": days * math.exp(longer),
        "goodput": left.estimate,
        "gpu_hours": gpu_hours,
        "cost": gpu_hours * prices.gpu_hour,
        "megawatt_hours": gpu_hours * watts / WATT_HOURS_PER_MWH,
    }


def _shown(rows: pd.DataFrame) -> list[dict[str, str]]:
    """Return rows of a run as texts."""
    column, what = ("cost", "cost") if rows["cost"].notna().any() else ("gpu_hours", "GPU hours")
    return [
        {
            "GPUs": str(row["gpus"]),
            "days": digits(row["days"], 3),
            "90 % interval": f"{digits(row['low'], 3)} to {digits(row['high'], 3)}",
            what: show_count(row[column]),
            "goodput": f"{row['goodput']:.0%}",
            "MWh": "-" if math.isnan(row["megawatt_hours"]) else digits(row["megawatt_hours"], 3),
            "layout": row["layout"],
        }
        for row in rows.to_dict("records")
    ]


def _sentences(rows: pd.DataFrame, tokens: float, within_days: float | None) -> Iterator[str]:
    """Yield what the run takes, and the cheapest one whose interval ends in time."""
    first = rows.iloc[0]
    yield (
        f"{show_count(tokens)} tokens take {_days(first)} on {first['gpus']:,} GPUs, "
        f"{_price(first)}; failures, restarts, checkpoints and stragglers have "
        f"{1 - first['goodput']:.0%} of that time, if a spare node stands in for each that breaks."
    )
    if not math.isnan(first["megawatt_hours"]):
        yield (
            f"The GPUs draw at most {digits(first['megawatt_hours'], 3)} MWh by their data sheet; "
            f"hosts, switches and cooling come on top."
        )
    if within_days is None:
        return
    in_time = rows[rows["high"] <= within_days]
    within = f"within {within_days:g} day{'' if within_days == 1 else 's'}"
    if in_time.empty:
        least = rows.loc[rows["high"].idxmin()]
        yield (
            f"None of these intervals ends {within}; {least['gpus']:,} GPUs are "
            f"the quickest, with {_days(least)}."
        )
        return
    best = in_time.loc[in_time["gpu_hours"].idxmin()]
    yield (
        f"The cheapest whose interval ends {within} has {best['gpus']:,} GPUs "
        f"as {best['layout']}: {_days(best)}, {_price(best)}."
    )


def _days(row: pd.Series) -> str:
    unit, each = ("years", YEAR_DAYS) if row["days"] > YEARS * YEAR_DAYS else ("days", 1.0)
    days, low, high = (digits(row[key] / each, 3) for key in ("days", "low", "high"))
    return f"{days} {unit} ({low} to {high})"


def _price(row: pd.Series) -> str:
    if math.isnan(row["cost"]):
        return f"or {show_count(row['gpu_hours'])} GPU hours"
    return f"and cost {show_count(row['cost'])}"
