"""What can be done with a large model: its splits, larger batches, fewer nodes, as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddlnb.advice.judge import chances_best, costs
from ddlnb.advice.layouts.question import PricedQuestion
from ddlnb.advice.options import LARGER_BATCHES, UNCHANGED, Kind
from ddlnb.errors import InputError
from ddlnb.parallelism.forecast.draws import drawn_seconds
from ddlnb.units import GIB

if TYPE_CHECKING:
    import pandas as pd

TOKENS = "throughput_tokens_per_s"
SHOWN = 10  # splits, which are also those compared by draws
FEWER_NODES = (2, 4)


def layout_options(
    asked: PricedQuestion, *, top: int = SHOWN, draws: int = 0, seed: int = 0
) -> pd.DataFrame:
    """Return a row per option: the best layout of every split, of larger batches, of fewer nodes.

    Columns: option, layout, kind, gpus, throughput_tokens_per_s (all GPUs together) with its 90 %
    interval (low, high), tokens_per_s_per_gpu, over_best (throughput over that of the first),
    per_gpu_over_best, seconds (of a step), mfu, chance_best (the share of draws in which this split
    is the fastest of those shown), chance_of_slow, loses_by (to the row above), memory_bytes and
    fits, gpu_hours and cost (of a million tokens), server_machines (none), learning. Raises what
    `ddlnb.scale` raises.
    """
    return _compared([*_splits(asked, top, draws, seed), *_others(asked)])


def split_options(
    asked: PricedQuestion, *, top: int = SHOWN, draws: int = 0, seed: int = 0
) -> pd.DataFrame:
    """Return those rows of `layout_options` that are splits: same GPUs, same batch."""
    return _compared(_splits(asked, top, draws, seed))


def _splits(asked: PricedQuestion, top: int, draws: int, seed: int) -> list[dict[str, Any]]:
    ranking = asked.ranking
    best = ranking.best_of_splits()[:top]
    drawn = drawn_seconds(ranking.outlook, best, draws, seed, asked.fitted)
    chance = chances_best(drawn, range(len(best)), len(best))
    return [
        {**_row(asked, row, Kind.LAYOUT), "chance_best": chance[place]}
        for place, row in enumerate(ranking.rows(top))
    ]


def _compared(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows, with their throughput over that of the first."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    frame["over_best"] = frame[TOKENS] / frame[TOKENS].iloc[0]
    per_gpu = frame["tokens_per_s_per_gpu"]
    frame["per_gpu_over_best"] = per_gpu / per_gpu.iloc[0]
    return frame


def _others(asked: PricedQuestion) -> Iterator[dict[str, Any]]:
    """Yield the best layout of larger batches, and of fewer nodes where one fits."""
    for factor in LARGER_BATCHES:
        larger = replace(asked, global_batch=factor * asked.global_batch)
        said = (
            f"a step averages {larger.tokens:,} tokens: learning rates change, and more of them "
            f"may be needed"
        )
        yield _row(larger, larger.ranking.rows(1)[0], Kind.BATCH, f"batch {factor}x", said)
    for divisor in FEWER_NODES:
        if asked.nodes % divisor:
            continue
        fewer = replace(asked, nodes=asked.nodes // divisor)
        try:
            row = fewer.ranking.rows(1)[0]
        except InputError:  # nothing fits on so few
            continue
        yield _row(fewer, row, Kind.FEWER, f"{fewer.gpus} GPUs")


def _row(
    asked: PricedQuestion,
    found: dict[str, Any],
    kind: Kind,
    name: str = "",
    learning: str = UNCHANGED,
) -> dict[str, Any]:
    rate = asked.gpus * found["tokens_per_s_per_gpu"]
    return {
        "option": f"{name}, {found['layout']}" if name else found["layout"],
        "layout": found["layout"],
        "kind": str(kind),
        "gpus": asked.gpus,
        TOKENS: rate,
        "low": asked.gpus * found["low"],
        "high": asked.gpus * found["high"],
        "tokens_per_s_per_gpu": found["tokens_per_s_per_gpu"],
        "seconds": found["seconds"],
        "mfu": found["mfu"],
        "chance_best": math.nan,
        "chance_of_slow": found["chance_of_slow"],
        "loses_by": found["loses_by"],
        "memory_bytes": found["memory_gib"] * GIB,
        "fits": True,
        **costs(asked.prices, asked.gpus, 0, rate),
        "server_machines": 0,
        "learning": learning,
    }
