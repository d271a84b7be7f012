"""What a month of a job yields, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddlnb.advice.prices import Prices
from ddlnb.choices import several
from ddlnb.parallelism.forecast.layouts import Ranking, scale
from ddlnb.parallelism.goodput.compare import spares_and_elastic
from ddlnb.parallelism.goodput.month import DRAWS, MONTH, Job
from ddlnb.parallelism.goodput.records import DAY, HOUR
from ddlnb.units import counted

BILLION, TRILLION = 1e9, 1e12


def job_of(ranking: Ranking) -> Job:
    """Return the job that trains with the best layout; elastic training leaves out its replicas."""
    best = ranking.layout(int(ranking.order[0]))
    per_node = int(ranking.outlook.cases.gpus_per_node[0])
    return Job(best.ranks, gpus_per_node=per_node, replica_gpus=best.tp * best.pp)


def spare_table(ranking: Ranking, spares: Sequence[int], draws: int = DRAWS) -> pd.DataFrame:
    """Return a month's goodput of the best layout, by spare nodes, waiting for nodes or elastic.

    ``per_node`` is the goodput over all nodes that are paid for, the spare ones as well.
    """
    return spares_and_elastic(job_of(ranking), several(spares), draws=draws)


def spare_labels(table: pd.DataFrame) -> list[str]:
    """Return a short label for every row of a table of spares."""
    return [
        _nodes(row["spare_nodes"]) + (", elastic" if row["elastic"] else "")
        for row in table.to_dict("records")
    ]


def _nodes(spare: int) -> str:
    return counted(spare, "spare node")


def yield_row(
    ranking: Ranking, spares: Sequence[int], prices: Prices, draws: int = DRAWS
) -> dict[str, Any]:
    """Return what a month of the best layout yields, with the choice of spares that pays most.

    Tokens of a month, in billions, are throughput times goodput; ``billion_low`` and
    ``billion_high`` add the distances of their two 90 % intervals in quadrature, as logarithms: one
    is no cause of the other. Costs count every node that is paid for, also spare ones, at the price
    of a GPU and hour.
    """
    best = ranking.rows(1)[0]
    table = spare_table(ranking, spares, draws)
    month = table.loc[table["per_node"].idxmax()]
    gpus = int(month["gpus"])
    paid = gpus + int(month["spare_nodes"]) * int(month["gpus_per_node"])
    tokens = best["tokens_per_s_per_gpu"] * gpus * month["goodput"] * MONTH
    cost = prices.per_hour(paid, 0) * MONTH / HOUR

    def end(which: str) -> float:
        throughput = math.log(best[which] / best["tokens_per_s_per_gpu"])
        good = math.log(month[which] / month["goodput"])
        way = -1 if which == "low" else 1
        return float(tokens * math.exp(way * math.hypot(throughput, good)))

    return {
        "gpus": gpus,
        "layout": best["layout"],
        "tokens_per_s_per_gpu": best["tokens_per_s_per_gpu"],
        "spare_nodes": int(month["spare_nodes"]),
        "elastic": bool(month["elastic"]),
        "goodput": float(month["goodput"]),
        "failures": float(month["failures"]),
        "billion_tokens": tokens / BILLION,
        "billion_low": end("low") / BILLION,
        "billion_high": end("high") / BILLION,
        "days_per_trillion": TRILLION / tokens * MONTH / DAY,
        "cost_per_billion": cost / tokens * BILLION,
        "cost_low": cost / end("high") * BILLION,
        "cost_high": cost / end("low") * BILLION,
    }


def yield_table(
    model: str,
    gpu: str,
    nodes: Sequence[int],
    spares: Sequence[int],
    gpu_hour: float,
    draws: int = DRAWS,
) -> pd.DataFrame:
    """Return what a month yields and costs with so many nodes, each with its best layout.

    ``gpu_hour`` is the price of a GPU and hour in any currency. Raises InputError for a number of
    nodes on which nothing fits, and for a price that is none.
    """
    prices = Prices(gpu_hour=gpu_hour)
    rows = [yield_row(scale(model, gpu, count), spares, prices, draws) for count in several(nodes)]
    return pd.DataFrame(rows)


def yield_sentences(table: pd.DataFrame, gpus: int) -> list[str]:
    """Return what a month of so many GPUs yields and costs, and what more or fewer GPUs change."""
    one = table[table["gpus"] == gpus].iloc[0]
    cheapest = table.loc[table["cost_per_billion"].idxmin()]
    stand_in = "elastic training" if one["elastic"] else "waiting for broken nodes"
    said = [
        f"{one['goodput']:.0%} of a month on {gpus} GPUs is work that is kept, with "
        f"{one['failures']:.0f} failures, {_nodes(one['spare_nodes'])} and {stand_in}.",
        f"That makes {one['billion_tokens']:.0f} billion tokens in a month "
        f"({one['billion_low']:.0f} to {one['billion_high']:.0f}), "
        f"{one['billion_tokens'] * 7 / 30:.0f} in a week; a trillion take "
        f"{one['days_per_trillion']:.0f} days.",
        f"A billion tokens cost {one['cost_per_billion']:.0f} ({one['cost_low']:.0f} to "
        f"{one['cost_high']:.0f}) in the currency of the price.",
    ]
    if cheapest["gpus"] != gpus:
        saved = 1 - cheapest["cost_per_billion"] / one["cost_per_billion"]
        said.append(
            f"They are cheapest on {cheapest['gpus']} GPUs, {saved:.0%} less, where a trillion "
            f"take {cheapest['days_per_trillion']:.0f} days."
        )
    return said
