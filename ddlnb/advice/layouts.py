"""Advice on large models: which way to split them, how sure that is, and what would make it pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddlnb.advice.options import Kind
from ddlnb.advice.question import Prices, Question
from ddlnb.advice.run import Run
from ddlnb.advice.sentences import pays, why
from ddlnb.advice.settings import layout_settings
from ddlnb.advice.sharded import Sharded, needs_shards
from ddlnb.advice.splits import (
    COUNTED,
    SHOWN,
    TOKENS,
    PricedQuestion,
    layout_options,
    layout_reasons,
    posed,
    split_options,
    verdict_of,
)
from ddlnb.errors import InputError, require, require_whole
from ddlnb.hardware.gpu import Gpu
from ddlnb.parallelism.forecast.forecast import FITTED_GPUS, alike, memory_spread
from ddlnb.parallelism.forecast.frameworks import (
    A100,
    B200,
    FRAMEWORKS,
    H100,
    V100,
)
from ddlnb.questions import Answer, Table, Verdict
from ddlnb.registry import several
from ddlnb.simulator.questions import DRAWS, Held
from ddlnb.simulator.recommendation import TIE
from ddlnb.units import GIB, count_from, digits, show_rate, show_rates

if TYPE_CHECKING:
    from ddlnb.parallelism.model import Transformer


NAMED = 3  # layouts that may be the fastest instead
LIKELY = 0.05  # of the draws in which another is the fastest: as much is worth a name
SURE = 0.9  # chance that a layout fits, from which on nobody has to be warned
FITTED_TO = {V100: "V100", A100: "A100", H100: "H100", B200: "B200"}


def layout_sentences(
    asked: PricedQuestion, rows: pd.DataFrame, reasons: pd.DataFrame | None = None
) -> list[str]:
    """Return the advice, sentence by sentence; what does not apply is left out."""
    said = [
        asked.optimizer != COUNTED and f"Memory of layouts is with Adam, not {asked.optimizer}.",
        _what(asked, rows),
        _rivals(asked, rows),
        _slow(asked, rows),
        _frameworks(asked),
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


def _rivals(asked: PricedQuestion, rows: pd.DataFrame) -> str:
    """Say how sure it is that no other split is faster, and which might be."""
    splits = rows[rows["kind"] == str(Kind.LAYOUT)]
    best = splits.iloc[0]
    if asked.gpus == 1 or len(asked.ranking.order) == 1:
        return "There is no other split that fits to compare it with."
    if len(splits) == 1 or math.isnan(best["chance_best"]):
        return ""
    others = splits.iloc[1:].sort_values("chance_best", ascending=False)
    named = [
        f"{row['option']} in {row['chance_best']:.0%}"
        for row in others[others["chance_best"] >= LIKELY].to_dict("records")[:NAMED]
    ]
    instead = f"; {', '.join(named)}" if named else ""
    leads = others["chance_best"].max() > best["chance_best"]
    means = " It stands first because its mean throughput is the highest." if leads else ""
    return (
        f"Of the {len(splits)} best splits it is the fastest in {best['chance_best']:.0%} of the "
        f"draws{instead}.{means}"
    )


def _slow(asked: PricedQuestion, rows: pd.DataFrame) -> str:
    """Say what a slow run would cost where there is a chance of one, and which split avoids it."""
    found, index = asked.ranking.outlook, int(asked.ranking.order[0])
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


def _frameworks(asked: PricedQuestion) -> str:
    """Say what is mixed; rank frameworks by their best, and say whose intervals do not overlap."""
    found = []
    for name in FRAMEWORKS:
        with suppress(InputError):  # it has no such layouts
            row = replace(asked, framework=name).ranking.rows(1)[0]
            found.append((row["tokens_per_s_per_gpu"], row["low"], row["high"], name))
    found.sort(reverse=True)
    listed = [f"{name} {show_rate(rate)} ({show_rates(*each)})" for rate, *each, name in found]
    own = next(one for one in found if asked.framework in ("", one[-1]))
    apart = [one[-1] for one in found if one[1] > own[2] or one[2] < own[1]]
    sure = f"; the interval of {own[-1]} overlaps none of {', '.join(apart)}" if apart else ""
    meant = ", ".join(asked.ranking.frameworks(int(asked.ranking.order[0])))
    steps = f"a mixture of {meant}; narrow it" if "," in meant else f"{meant} alone; choose another"
    mixture = f"Framework not named: the best layout is forecast as {steps} with --framework. "
    said = "" if asked.framework else mixture
    return f"{said}Tokens/s per GPU by framework: {', '.join(listed)}{sure}."


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
    found, meant = asked.ranking.outlook, asked.ranking.frameworks(index)
    homes = {name: FRAMEWORKS[name].gpus for name in meant}
    unseen = [name for name, gpus in homes.items() if not gpus]
    if unseen:
        yield (
            f"Nothing is fitted to runs of {', '.join(unseen)}: it has the mean of the frameworks "
            f"that were fitted, and the interval is wider."
        )
    peak = found.cases.core_peak[index]
    away = [
        f"{name} ({' and '.join(FITTED_TO[gpu] for gpu in gpus)})"
        for name, gpus in homes.items()
        if gpus and not any(alike(peak, gpu) for gpu in gpus)
    ]
    if away:
        yield (
            f"Fitted to runs on other GPUs: {', '.join(away)}; what {asked.gpu.name} sustains "
            f"there is taken from single GPUs of its generation or, where none was measured, from "
            f"all, so the interval is wider."
        )
    if asked.gpus > FITTED_GPUS:
        yield (
            f"Nothing on more than {FITTED_GPUS} GPUs is fitted: the interval grows with every "
            f"doubling."
        )
    fit = float(found.chance_of_fit[index])
    if fit < SURE:
        spread = float(np.broadcast_to(memory_spread(found.cases), len(found.cases))[index])
        yield f"Whether it fits is known within {spread:.0%}: it does with a chance of {fit:.0%}."
    if found.chance[index] >= LIKELY:
        yield "Which runs are slow ones nobody knows before."
    if asked.network is None and asked.nodes > 1:
        yield (
            f"The network was not given: the ports that nodes with {asked.gpu.name} usually have "
            f"({asked.gpu.source_of('port')})."
        )
    yield (
        "Not in the seconds of a step: how ranks are placed, exchanges of tensors beside the "
        "computation, other jobs on the network, and failures, which are in days alone."
    )
    if not asked.prices.are_given:
        yield "Prices were not given: costs are in GPU hours."


@dataclass(frozen=True, eq=False, repr=False)
class LayoutAdvice(Answer):
    """Which way to split a large model, and why; ``str`` is the answer in sentences.

    ``options`` has a row per option, the split to be taken first (columns: see `layout_options`);
    ``reasons`` one per counterfactual, each forecast again over all layouts.
    """

    question: PricedQuestion
    options: pd.DataFrame
    reasons: pd.DataFrame
    run: Run | None = None

    @property
    def rows(self) -> pd.DataFrame:
        """The options."""
        return self.options

    @property
    def verdict(self) -> Verdict:
        """Memory of a GPU, and the fastest layout."""
        return verdict_of(self.question)

    @cached_property
    def unknowns(self) -> tuple[str, ...]:
        """Sentences, each on one thing that nobody measured or gave."""
        return tuple(layout_unknowns(self.question))

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The options, and the best layout where one thing is changed."""
        asked, ranking = self.question, self.question.ranking
        title = (
            f"Forecast: {asked}, {asked.tokens:,} tokens per step, {len(ranking)} of "
            f"{len(ranking.outlook.cases)} layouts fit; options, the first one is to be taken"
        )
        options = Table(title, shown_layouts(self.options))
        changed = shown_layout_reasons(self.reasons, asked.gpus)
        reasons = Table("The best layout, with one thing changed", changed)
        return (options, self.run.table, reasons) if self.run else (options, reasons)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """What to do, how sure it is, and what would pay."""
        said = layout_sentences(self.question, self.options, self.reasons)
        return (*said, *(self.run.sentences if self.run else ()))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What nobody measured or gave."""
        return tuple(f"Not known: {one}" for one in self.unknowns)

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """The first split, as PyTorch and launch files have it."""
        best = self.question.ranking.layout(int(self.question.ranking.order[0]))
        return tuple(layout_settings(self.question, best, self.options))


@dataclass(frozen=True, eq=False, repr=False)
class Splits(Answer):
    """The fastest splits of a large model, at one number of GPUs or at several, smallest first.

    ``rows`` are those of `split_rows`; what is said is of the largest number.
    """

    questions: tuple[PricedQuestion, ...]
    top: int = SHOWN
    draws: int = DRAWS
    seed: int = 0

    @property
    def verdict(self) -> Verdict:
        """Memory of a GPU, and the fastest layout."""
        return verdict_of(self.questions[-1])

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Splits at every number of GPUs, the fastest first."""
        return split_rows(self.questions, self.top)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Throughput, intervals, memory, and why each split is slower than the one above it."""
        asked = self.questions[-1]
        ranking = asked.ranking
        shown = [
            {
                "GPUs": row["gpus"],
                "layout": row["method"],
                "tokens/s/GPU": digits(row["tokens_per_s_per_gpu"], 4),
                "90 % interval": show_rates(row["tokens_low"], row["tokens_high"]),
                "MFU": f"{row['mfu']:.1%}",
                "memory": f"{row['memory_bytes'] / GIB:.0f} GiB",
                "chance of slow": f"{row['chance_of_slow']:.0%}",
                "slower by": row["loses_by"],
                "tokens/s/GPU by framework": row["frameworks"],
            }
            for row in self.rows.to_dict("records")
        ]
        title = (
            f"Forecast: {asked}, {asked.tokens:,} tokens per step: {len(ranking)} of "
            f"{len(ranking.outlook.cases)} layouts fit"
        )
        return (Table(title, shown),)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Which split to take, and how sure that is."""
        asked = self.questions[-1]
        rows = split_options(asked, top=self.top, draws=self.draws, seed=self.seed)
        return tuple(layout_sentences(asked, rows))


def split_rows(questions: Sequence[PricedQuestion], top: int) -> pd.DataFrame:
    """Return the best splits of every question as rows like those of `ddlnb.forecast`.

    ``method`` is the layout. Of samples per second, which are sequences, ``speedup`` is over one
    GPU of the first question, whose best layout stands for linear scaling, and ``efficiency`` the
    share of it. Tokens per second are those of a GPU. Raises what `ddlnb.scale` raises.
    """
    rows: list[dict[str, Any]] = []
    for asked in questions:
        each = asked.gpus / asked.sequence
        for found in asked.ranking.rows(top):
            rate = found["tokens_per_s_per_gpu"]
            linear = rows[0]["tokens_per_s_per_gpu"] if rows else rate
            rows.append(
                {
                    "model": asked.model.name,
                    "gpus": asked.gpus,
                    "method": found["layout"],
                    "throughput_samples_per_s": rate * each,
                    "low": found["low"] * each,
                    "high": found["high"] * each,
                    "tokens_per_s_per_gpu": rate,
                    "tokens_low": found["low"],
                    "tokens_high": found["high"],
                    "iteration_seconds": found["seconds"],
                    "speedup": asked.gpus * rate / linear,
                    "efficiency": rate / linear,
                    "memory_bytes": found["memory_gib"] * GIB,
                    "mfu": found["mfu"],
                    "chance_of_slow": found["chance_of_slow"],
                    "loses_by": found["loses_by"],
                    "frameworks": found["frameworks"],
                }
            )
    return pd.DataFrame(rows)


def answered(
    asked: Held,
    unused: Mapping[str, object],
    gpus: int | Sequence[int] | None = None,
    **options: int,
) -> Splits | Sharded | Verdict:
    """Return how to split a model at every number of GPUs, or the verdict on its replicas.

    What is traced and no GPU holds is sharded, at the largest number.

    ``unused`` is that of `posed`; ``gpus`` are by default those in use, ``options`` those of
    `Splits`. Numbers of GPUs that hold no layout are left out, but for the largest.
    """
    counts = [] if gpus is None else several(gpus)
    on = [asked.on.with_workers(count) for count in counts or [asked.on.workers]]
    known = [posed(asked, one, unused=unused) for one in sorted(on, key=lambda one: one.workers)]
    if isinstance(known[-1], Question):
        return Sharded(known[-1]) if needs_shards(known[-1]) else verdict_of(known[-1])
    splits = [one for one in known if isinstance(one, PricedQuestion)]
    return Splits((*filter(_holds, splits[:-1]), splits[-1]), **options)


def _holds(asked: PricedQuestion) -> bool:
    with suppress(InputError):
        return len(asked.ranking) > 0
    return False


def advise_layouts(
    model: str | Transformer,
    gpu: str | Gpu = "H100",
    nodes: int = 8,
    *,
    prices: Prices | None = None,
    tokens: float | str | None = None,
    within_days: float | None = None,
    top: int = SHOWN,
    draws: int = DRAWS,
    seed: int = 0,
    **options: Any,
) -> LayoutAdvice:
    """Return which way to split a large model, how sure that is, and what would make it faster.

    Arguments are those of `ddlnb.scale`, with ``prices`` per hour of a GPU. The options of the
    advice are the ``top`` best splits, then larger batches and fewer nodes, with tokens/s, 90 %
    intervals, cost of a million tokens, and the chance that a split is the fastest: ``draws`` share
    the parameters that all layouts have in common. Its reasons are forecast again with one thing
    changed each. With ``tokens``, such as "2T", its ``run`` says how many days training on so many
    takes and what it costs, here and on fewer and more nodes (`ddlnb.advice.run.Run`), and the
    cheapest that ends ``within_days``. Raises what `ddlnb.scale` raises, and InputError for tokens
    and days that are not positive.

    >>> import ddlnb
    >>> found = ddlnb.advise_layouts("llama3-8b", "H100", nodes=8, sequence=4096, draws=0)
    >>> found.options["option"].iloc[0]
    'dp64 zero3 mb4 acc4'
    >>> found.reasons["what"].iloc[1]
    'twice the bandwidth between nodes'
    """
    asked = PricedQuestion(
        model,  # type: ignore[arg-type]
        gpu,  # type: ignore[arg-type]
        nodes,
        prices=prices or Prices(),
        **options,
    )
    require(
        tokens is not None or within_days is None,
        f"within_days {within_days!r} is of a run; say how many tokens it has (tokens, --tokens)",
    )
    run = None if tokens is None else Run(asked, asked.prices, count_from(tokens), within_days)
    return advise_on_layouts(asked, run, top=top, draws=draws, seed=seed)


def advise_on_layouts(
    asked: PricedQuestion,
    run: Run | None = None,
    *,
    top: int = SHOWN,
    draws: int = DRAWS,
    seed: int = 0,
) -> LayoutAdvice:
    """Return advice on a question, and on a run of it."""
    require_whole(top=top)
    rows = layout_options(asked, top=top, draws=draws, seed=seed)
    reasons = layout_reasons(asked)
    return LayoutAdvice(asked, rows, reasons, run)


def shown_layouts(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the options of a large model as texts."""
    is_priced = rows["cost"].notna().any()
    column, what = ("cost", "cost/M tokens") if is_priced else ("gpu_hours", "GPU h/M tokens")
    return [
        {
            "option": row["option"],
            "GPUs": row["gpus"],
            "tokens/s/GPU": show_rate(row["tokens_per_s_per_gpu"]),
            "90 % interval": show_rates(row["low"] / row["gpus"], row["high"] / row["gpus"]),
            "over the first": f"{row['over_best']:.2f}",
            "best in": "-" if math.isnan(row["chance_best"]) else f"{row['chance_best']:.0%}",
            "slow": f"{row['chance_of_slow']:.0%}",
            "memory": f"{row['memory_bytes'] / GIB:.0f} GiB",
            what: f"{row[column]:.3g}",
            "changes": row["kind"] if row["learning"] else "-",
            "tokens/s/GPU by framework": row["frameworks"],
        }
        for row in rows.to_dict("records")
    ]


def shown_layout_reasons(reasons: pd.DataFrame, gpus: int) -> list[dict[str, Any]]:
    """Return the counterfactuals of a large model as texts, each with the layout that is best."""
    return [
        {
            "with": row["what"],
            "step": f"{row['iteration_seconds']:.3g} s",
            "tokens/s/GPU": show_rate(row["tokens_per_s"] / gpus),
            "90 % interval": show_rates(row["low"] / gpus, row["high"] / gpus),
            "times as fast": f"{row['times_as_fast']:.2f}",
            "layout": row["layout"],
        }
        for row in reasons.to_dict("records")
    ]
