"""Notebook scale_heterogeneous: a cluster of two kinds of GPUs, forecast and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import pandas as pd

from ddlnb.figures.layouts import WAY_COLOURS, draw_ways
from ddlnb.figures.style import DARK, note, styled
from ddlnb.files import DATA
from ddlnb.parallelism.heterogeneous import (
    Kind,
    gpu_kinds,
    in_words as in_words,
    way_table,
    ways_to_share,
)
from ddlnb.parallelism.model import ModelShape, llama
from ddlnb.registry import several
from ddlnb.results.schema import read_frame
from ddlnb.survey.items import Findings, findings

SLOWED_RANKS = DATA / "measured" / "2026-11-22_two-cores_unlike" / "unlike_ranks.csv"
MODEL = llama("Llama 3.2 1B", 16, 2048, 32, 8, 8192, 128256, 2048, tied=True)


def ways_of(counts: Mapping[str, int], samples: int) -> pd.DataFrame:
    """Return what each way to use these GPUs yields for a Llama of 1 B parameters."""
    model = MODEL.shape
    return way_table(ways_to_share(model, gpu_kinds(counts), samples), samples, model)


def by_ratio(
    ratios: Sequence[float], count: int, samples: int, model: ModelShape = MODEL.shape
) -> pd.DataFrame:
    """Return the ways for as many fast as slow GPUs, the fast ones so many times as fast.

    The slow ones are V100; ports are alike. ``ratio`` is a column; ``gain`` the throughput over
    that of the fast kind alone.
    """
    slow = gpu_kinds({"V100": count})[0]
    tables = []
    for ratio in several(ratios):
        kinds = (Kind("fast", count, ratio * slow.speed, slow.port), slow)
        table = way_table(ways_to_share(model, kinds, samples), samples, model)
        only = table.loc[table["way"] == "only fast", "samples_per_second"].item()
        tables.append(table.assign(ratio=ratio, gain=table["samples_per_second"] / only))
    return pd.concat(tables, ignore_index=True)


def executed() -> pd.DataFrame:
    """Return forecast and measured iterations on four real ranks, two of them slowed on purpose.

    Medians by way of the kept runs, of ``python -m benchmarks.unlike_ranks``.
    """
    rows = read_frame(SLOWED_RANKS)
    return rows.groupby(["way", "shares"], sort=False).median(numeric_only=True).reset_index()


def forecast_findings(table: pd.DataFrame, ratios: pd.DataFrame) -> Findings:
    """Return what sharing by speed gains, and from which ratio on equal shares lose to one kind."""
    rate = table.set_index("way")["samples_per_second"]
    gain = rate["shares by speed"] / rate["equal shares"]
    best = str(rate.idxmax())
    equal = ratios[ratios["way"] == "equal shares"]
    loses = equal.loc[equal["gain"] < 1, "ratio"]
    said = (
        f"With equal shares all wait for the slow kind: from {loses.min():g} times the speed on, "
        f"the fast GPUs alone are quicker."
        if len(loses)
        else "At none of these ratios are the fast GPUs alone quicker than equal shares."
    )
    return findings(
        f"Shares by speed train {gain:.2f} times as fast as equal shares; best is {best}, with "
        f"{table.set_index('way').loc[best, 'of_all']:.0%} of what all speeds add up to.",
        said,
    )


def executed_findings(rows: pd.DataFrame) -> Findings:
    """Return how far forecasts and gradients are off on real ranks."""
    off = (rows["forecast_seconds"] / rows["seconds"] - 1).abs()
    trivial = (rows["trivial_seconds"] / rows["seconds"] - 1).abs()
    return findings(
        f"Forecast before they ran, iterations are off by {off.median():.1%} in the median and "
        f"{off.max():.1%} at most; adding up speeds is off by {trivial.median():.1%} and "
        f"{trivial.max():.1%}.",
        f"Gradients differ from those of one worker on the joined batch by "
        f"{rows['gradient_error'].max():.0e} of the largest.",
    )


@styled
def unlike_shares(table: pd.DataFrame, ratios: pd.DataFrame) -> plt.Figure:
    """What ways to share a batch or layers among two kinds of GPUs yield, and when both kinds pay.

    ``table`` is that of `way_table`; ``ratios`` has rows of it by ``ratio``, with the ``gain``
    over the fast GPUs alone. Dashed: the sum of all speeds, and the fast GPUs alone.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    draw_ways(left, table)
    for way, colour in WAY_COLOURS.items():
        own = ratios[ratios["way"] == way]
        right.plot(own["ratio"], own["gain"], marker="o", markersize=4, color=colour, label=way)
    right.axhline(1, color=DARK, linestyle="--", linewidth=1)
    right.set(
        xlabel="speed of a fast GPU over that of a slow one",
        ylabel="throughput over fast GPUs alone",
        ylim=(0, None),
    )
    right.legend()
    return note(figure, "source: simulated; on the right all ports are those of the slow GPU")
