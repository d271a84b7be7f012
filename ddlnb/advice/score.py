"""Options as rows: how fast each is, how sure that is, what it takes and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlnb.advice.options import TASK, Kind, LossyOption, Option
from ddlnb.advice.question import HOUR, MILLION, Prices, Question
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.draws import (
    LEAST_DRAWS,
    Circumstances,
    DrawnSeconds,
    model_errors,
    require_feasible,
    seconds_in_draws,
    with_expected,
)
from ddlnb.simulator.forecast import single_seconds
from ddlnb.simulator.questions import DRAWS
from ddlnb.simulator.simulate import Cell, steady_seconds

THROUGHPUT = "throughput_samples_per_s"
FEWER = 5  # times as many draws of what may be the fastest as of what cannot be
REACH = 3.0  # standard deviations


def fastest_of_each(groups: Sequence[Sequence[Option]]) -> list[Option]:
    """Return the fastest option of every group that has any, all of them simulated at once."""
    listed = [option for group in groups for option in group]
    seconds = iter(steady_seconds([option.cell for option in listed]))
    found = []
    for group in groups:
        taken = [next(seconds).iteration_seconds for _ in group]
        if group:
            found.append(group[int(np.argmin(taken))])
    return found


def option_rows(
    question: Question, options: Sequence[Option], played: DrawnSeconds
) -> pd.DataFrame:
    """Return a row per option, in samples per second, bytes and the currency of the prices.

    ``low`` and ``high`` are the 90 % interval of the throughput in so many ``draws``.
    ``chance_best`` is the share of draws in which the option is the fastest of those that are
    `compared`, ``over_first`` how many times as fast it is as the first, which is DDP as it is,
    with the 90 % interval in draws of both. ``settings`` are the partition and the credit.
    ``speedup`` is over one GPU at the batch asked about; ``gpu_hours`` and ``cost`` are those of a
    million samples.
    """
    rows = []
    single = _single(question)
    chance = chances_best(played.drawn, compared(question, options), len(options))
    rates = np.array([one.cell.samples for one in options]) / played.seconds
    for number, option in enumerate(options):
        cell, rate = option.cell, float(rates[number])
        rows.append(
            {
                "option": option.name,
                "kind": str(option.kind),
                "settings": cell.sized.sizes,
                "gpus": cell.cluster.workers,
                "server_machines": option.server_machines,
                THROUGHPUT: rate,
                "low": cell.samples / played.quantile(number, 0.95),
                "high": cell.samples / played.quantile(number, 0.05),
                "draws": played.draws(number),
                "speedup": rate / single,
                "chance_best": chance[number],
                **over_first(
                    played.drawn, number, rate / rates[0], cell.samples / options[0].cell.samples
                ),
                **costs(question.prices, cell.cluster.workers, option.server_machines, rate),
                **_memory(question, option.held_batch),
                "iterations": 1.0 if option.keeps_learning else math.nan,
                "learning": option.learning,
            }
        )
    return pd.DataFrame(rows)


def lossy_rows(question: Question, found: Sequence[LossyOption]) -> pd.DataFrame:
    """Return rows as those of `option_rows` of methods that need another number of iterations."""
    samples = question.cluster.workers * question.workload.local_batch
    single = _single(question)
    rows = []
    for one in found:
        rate = samples / one.cost.iteration_seconds
        rows.append(
            {
                "option": one.name,
                "kind": str(Kind.COMPRESSION if one.compresses else Kind.SYNCHRONISATION),
                "settings": "",
                "gpus": question.cluster.workers,
                "server_machines": one.cost.server_machines,
                THROUGHPUT: rate,
                "low": samples / one.seconds.high,
                "high": samples / one.seconds.low,
                "draws": one.draws,
                "speedup": rate / single,
                "chance_best": math.nan,
                **costs(question.prices, question.cluster.workers, one.cost.server_machines, rate),
                **_memory(question, question.workload.local_batch, one.residual),
                "iterations": one.iterations.estimate,
                "learning": _learning(one),
            }
        )
    return pd.DataFrame(rows)


def _single(question: Question) -> float:
    """Return the throughput of one GPU alone, at the batch that was asked about."""
    cell = Cell(question.workload, question.cluster.with_workers(1), METHODS["BSP-A2A"])
    return question.workload.local_batch / single_seconds(cell)


def _learning(one: LossyOption) -> str:
    where = f"on {TASK} with {one.workers} workers"
    ratio = one.iterations
    if math.isnan(ratio.estimate):
        return f"nobody measured how many iterations it needs {where}"
    if math.isinf(ratio.estimate):
        return f"{where} not all runs reached the target"
    return (
        f"{where} it needed {ratio.estimate:.2f} times the iterations "
        f"({ratio.low:.2f} to {ratio.high:.2f})"
    )


def compared(question: Question, options: Sequence[Option]) -> list[int]:
    """Return the numbers of the options of which one is the best to take.

    They use all GPUs, take no further machines and change nothing about learning.
    """
    return [
        number
        for number, one in enumerate(options)
        if one.keeps_learning
        and one.cell.cluster.workers == question.cluster.workers
        and not one.server_machines
    ]


def chances_best(drawn: NDArray[Any], compared: Sequence[int], options: int) -> list[float]:
    """Return the share of draws in which each takes the least seconds, NaN for those not compared.

    ``drawn`` has a row per draw and a column per option, with NaN in draws in which an option
    cannot be the best. All are NaN without draws, or where they do not differ.
    """
    chance = [math.nan] * options
    if not compared or not len(drawn):
        return chance
    if np.max(np.nanmax(drawn, axis=0) - np.nanmin(drawn, axis=0)) == 0:
        return chance
    best = np.nanargmin(drawn[:, compared], axis=1)
    for place, number in enumerate(compared):
        chance[number] = float(np.mean(best == place))
    return chance


def over_first(
    drawn: NDArray[Any], number: int, times: float, samples: float = 1.0
) -> dict[str, float]:
    """Return how many times as fast an option is as the first one, with the 90 % interval.

    Of draws in which both were played: their circumstances are the same. NaN without any. In what
    is drawn the option has ``samples`` times those of the first.
    """
    ratio = samples * drawn[:, 0] / drawn[:, number]
    known = ratio[~np.isnan(ratio)]
    low, high = np.quantile(known, (0.05, 0.95)) if len(known) else (math.nan, math.nan)
    return {"over_first": times, "over_first_low": float(low), "over_first_high": float(high)}


def costs(prices: Prices, gpus: int, machines: int, rate: float) -> dict[str, float]:
    """Return GPU hours and cost of a million of what is counted at this rate per second."""
    return {
        "gpu_hours": gpus / HOUR / rate * MILLION,
        "cost": prices.per_million_samples(gpus, machines, rate),
    }


def _memory(question: Question, batch: int, more: float = 0.0) -> dict[str, object]:
    needed, fits = question.memory_bytes(batch, more), question.fits(batch, more)
    return {"memory_bytes": needed, "fits": fits}


def play_contenders(
    cells: Sequence[Cell], compared: Sequence[int], *, draws: int = DRAWS, seed: int = 0
) -> DrawnSeconds:
    """Return what `play_cells` does, but play in few draws what cannot be the fastest.

    ``compared`` are the numbers of the cells of which one is looked for that is the fastest. All
    cells are played in the first draws, a fifth of them (LEAST_DRAWS at least); those of
    ``compared`` that may still be the fastest (`contenders`) in all. What a cell takes in a draw
    is what it takes in `play_cells`.
    """
    require_feasible(cells, draws)
    few = min(draws, max(LEAST_DRAWS, draws // FEWER))
    drawn, errors = Circumstances(cells, draws, seed), model_errors(cells, draws, seed)
    taken = np.full((draws, len(cells)), np.nan)
    taken[:few] = seconds_in_draws(drawn.each_draw(0, few), (few, len(cells))) * errors[:few]
    if going_on := contenders(taken[:few], compared):
        rest = drawn.each_draw(few, draws, going_on)
        seconds = seconds_in_draws(rest, (draws - few, len(going_on)))
        taken[few:, going_on] = seconds * errors[few:, going_on]
    return with_expected(cells, taken)


def contenders(drawn: NDArray[Any], compared: Sequence[int]) -> list[int]:
    """Return which of the compared columns may hold the least seconds of a further draw.

    ``drawn`` has a row for every draw that was made. A column stays that was the least once, or is
    on average behind the least of the others by no more than `REACH` times the standard deviation
    of that distance, in logarithms: what is further behind is the least in 0.1 % of the draws if
    distances are normal. None stays where there are no draws.

    >>> contenders(np.array([[1.0, 1.1, 9.0], [1.2, 1.1, 9.5], [1.0, 1.2, 9.2]]), [0, 1, 2])
    [0, 1]
    """
    if not len(drawn) or len(compared) < 2:
        return list(compared) if len(drawn) else []
    seconds = np.log(drawn[:, compared])
    found = []
    for place, number in enumerate(compared):
        behind = seconds[:, place] - np.delete(seconds, place, axis=1).min(axis=1)
        if behind.min() <= 0 or behind.mean() <= REACH * behind.std(ddof=1):
            found.append(number)
    return found
