"""Advice on a large model in sentences: what to do, how sure it is, what would pay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddlnb.advice.layouts.options import TOKENS
from ddlnb.advice.layouts.question import PricedQuestion
from ddlnb.advice.options import Kind
from ddlnb.advice.recommend import TIE, pays, why
from ddlnb.parallelism.forecast.forecast import (
    A100,
    FITTED_GPUS,
    FITTED_ON,
    H100,
    MEMORY_SPREAD,
    alike,
)
from ddlnb.units import GIB, show_rate, show_rates

if TYPE_CHECKING:
    import pandas as pd

NAMED = 3  # layouts that may be the fastest instead
LIKELY = 0.05  # of the draws in which another is the fastest: as much is worth a name
SURE = 0.9  # chance that a layout fits, from which on nobody has to be warned
FITTED_TO = {H100: "H100", A100: "A100"}


def layout_sentences(
    asked: PricedQuestion, rows: pd.DataFrame, reasons: pd.DataFrame | None = None
) -> list[str]:
    """Return the advice, sentence by sentence; what does not apply is left out."""
    said = [
        asked.because and f"{asked.because}.",
        _what(asked, rows),
        _rivals(rows),
        _slow(asked, rows),
    ]
    if reasons is not None:
        said += [*_fewer(rows), _batch(rows), _cost(asked, rows), why(reasons), pays(reasons)]
    return [one for one in said if one]


def _what(asked: PricedQuestion, rows: pd.DataFrame) -> str:
    best = rows.iloc[0]
    each = [best[name] / asked.gpus for name in ("low", "high")]
    return (
        f"Train {asked} as {best['option']}: {show_rate(best['tokens_per_s_per_gpu'])} tokens/s "
        f"per GPU ({show_rates(*each)}), {best[TOKENS]:,.0f} in all, MFU {best['mfu']:.0%}, "
        f"{best['memory_bytes'] / GIB:.0f} of {asked.gpu.memory / GIB:.0f} GiB."
    )


def _rivals(rows: pd.DataFrame) -> str:
    """Say how sure it is that no other split is faster, and which might be."""
    splits = rows[rows["kind"] == str(Kind.LAYOUT)]
    best = splits.iloc[0]
    if len(splits) == 1:
        return "There is no other split that fits to compare it with."
    if math.isnan(best["chance_best"]):
        return ""
    others = splits.iloc[1:].sort_values("chance_best", ascending=False)
    named = [
        f"{row['option']} in {row['chance_best']:.0%}"
        for row in others[others["chance_best"] >= LIKELY].to_dict("records")[:NAMED]
    ]
    instead = f"; {', '.join(named)}" if named else ""
    return (
        f"Of the {len(splits)} best splits it is the fastest in {best['chance_best']:.0%} of the "
        f"draws{instead}."
    )


def _slow(asked: PricedQuestion, rows: pd.DataFrame) -> str:
    """Say what a slow run would cost where there is a chance of one, and which split avoids it."""
    found = asked.ranking.outlook
    index = int(asked.ranking.order[0])
    chance, slow = float(found.chance[index]), float(found.step.slow[index])
    if chance < LIKELY:
        return ""
    quick = float(found.step.seconds[index])
    safe = rows[(rows["kind"] == str(Kind.LAYOUT)) & (rows["chance_of_slow"] < LIKELY)]
    said = (
        f"With a chance of {chance:.0%} the run is a slow one, whose transfers between stages lose "
        f"{slow:.3g} s of a step: {quick / (quick + slow):.0%} of the throughput"
    )
    if safe.empty:
        return f"{said}."
    row = safe.iloc[0]
    risk = "risks none of it" if row["chance_of_slow"] == 0 else "hardly risks it"
    return f"{said}; {row['option']} {risk}, at {row['over_best']:.0%}."


def _fewer(rows: pd.DataFrame) -> Iterator[str]:
    """Say what fewer nodes keep."""
    for row in rows[rows["kind"] == str(Kind.FEWER)].to_dict("records"):
        yield (
            f"{row['gpus']:,} GPUs keep {row['per_gpu_over_best']:.0%} of the throughput per GPU "
            f"and take {1 / row['over_best']:.2f} times as long ({row['layout']})."
        )


def _batch(rows: pd.DataFrame) -> str:
    """Say which larger batch is faster per token, if one is."""
    found = rows[(rows["kind"] == str(Kind.BATCH)) & (rows["over_best"] > 1 + TIE)]
    parts = [
        f"{row['option']} is {row['over_best']:.2f}x per token ({row['learning']})"
        for row in found.to_dict("records")
    ]
    if not parts:
        return "Larger batches would gain nothing."
    return f"What changes learning pays only if it needs fewer tokens: {'; '.join(parts)}."


def _cost(asked: PricedQuestion, rows: pd.DataFrame) -> str:
    best = rows.iloc[0]
    column = "cost" if asked.prices.are_given else "gpu_hours"
    what = "cost {}" if asked.prices.are_given else "take {} GPU hours"
    low, high = (best[column] * best[TOKENS] / best[end] for end in ("high", "low"))
    each = f"{best[column]:.3g} ({low:.3g} to {high:.3g})"
    return f"A million tokens {what.format(each)}."


def layout_unknowns(asked: PricedQuestion) -> Iterator[str]:
    """Yield sentences, each on one thing that nobody measured or gave."""
    index = int(asked.ranking.order[0])
    found = asked.ranking.outlook
    if asked.framework not in FITTED_ON:
        yield (
            f"Nothing is fitted to runs of {asked.framework}: it has the mean of the frameworks "
            f"that were fitted, and the interval is wider."
        )
    elif not alike(found.cases.core_peak[[index]], home := FITTED_ON[asked.framework][0]).all():
        yield (
            f"Forecasts of {asked.framework} are fitted to {FITTED_TO[home]}; what "
            f"{asked.gpu.name} sustains is taken from data sheets and a judgement, so the "
            f"interval is wider."
        )
    if asked.gpus > FITTED_GPUS:
        yield (
            f"Nothing on more than {FITTED_GPUS} GPUs is fitted: the interval grows with every "
            f"doubling."
        )
    fit = float(found.chance_of_fit[index])
    if fit < SURE:
        yield (
            f"Whether it fits is known within {MEMORY_SPREAD:.0%}: it does with a chance of "
            f"{fit:.0%}."
        )
    if found.chance[index] >= LIKELY:
        yield "Which runs are slow ones nobody knows before."
    if asked.network is None and asked.nodes > 1:
        yield (
            f"The network was not given: the ports that nodes with {asked.gpu.name} usually have "
            f"({asked.gpu.source_of('port')})."
        )
    yield (
        "Not in the forecast: how ranks are placed, exchanges of tensors beside the computation, "
        "other jobs on the network, failures (`ddlnb goodput`)."
    )
    if not asked.prices.are_given:
        yield "Prices were not given: costs are in GPU hours."
