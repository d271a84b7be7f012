"""Advice: ranked options, why they rank so, what would pay, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ddlnb.advice.explain import Gap, LastMessage, counterfactual_table, explain_gap, last_message
from ddlnb.advice.layouts import LayoutAdvice, advise_on_layouts
from ddlnb.advice.options import (
    LOSSY,
    Kind,
    Option,
    bucket_option,
    lossy_options,
    method_options,
    other_options,
    searched_option,
)
from ddlnb.advice.question import SEARCHED_PLANS, AdviceQuestion, Question
from ddlnb.advice.score import (
    THROUGHPUT,
    compared,
    fastest_of_each,
    lossy_rows,
    option_rows,
    play_contenders,
)
from ddlnb.advice.sentences import (
    fastest,
    is_poor,
    sentences,
    shown_options,
    shown_reasons,
    unknowns,
)
from ddlnb.advice.settings import method_settings, torch_code
from ddlnb.advice.sharded import Sharded, needs_shards
from ddlnb.advice.splits import PricedQuestion, posed, verdict_of
from ddlnb.errors import require, require_positive, require_whole
from ddlnb.parallelism.layout import Layout
from ddlnb.plans.methods import get_method, in_torch
from ddlnb.questions import Answer, Table, Verdict, asks
from ddlnb.search.search import SearchResult
from ddlnb.simulator.draws import LEAST_DRAWS
from ddlnb.simulator.questions import DRAWS
from ddlnb.simulator.simulate import Cell


@dataclass(frozen=True, eq=False, repr=False)
class Advice(Answer):
    """What to do, and why; ``str`` is the answer in sentences.

    ``options`` has a row per option, the best one first (columns: see
    `ddlnb.advice.score.option_rows`); ``reasons`` one per counterfactual of the best option;
    ``unknowns`` are sentences. ``search`` is the searched plan with its lower bound, None for one
    GPU; ``gap`` explains a measured throughput, None without one.
    """

    question: Question
    options: pd.DataFrame
    best: Option
    reasons: pd.DataFrame
    waits: LastMessage | None
    unknowns: tuple[str, ...]
    search: SearchResult | None = None
    gap: Gap | None = None

    @property
    def rows(self) -> pd.DataFrame:
        """The options."""
        return self.options

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The options, what one thing changed would make of the best one, and how to shard."""
        workload, on = self.question.workload, self.question.cluster
        title = f"Simulated: {workload!r} on {on.label} ({on.network})"
        return (
            Table(f"{title}; options{self._taken}", shown_options(self.options)),
            Table(f"{self.best.name}, with one thing changed", shown_reasons(self.reasons)),
            *(Sharded(self.question).tables if needs_shards(self.question) else ()),
        )

    @property
    def _taken(self) -> str:
        if self.verdict.fits is False:
            return " were there memory enough"
        poor = is_poor(fastest(self.options))
        return "" if poor else ", the first one is to be taken"

    @cached_property
    def verdict(self) -> Verdict:
        """Memory of a GPU, and what comes of plain data parallelism."""
        return verdict_of(self.question)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """What to do, how sure that is, why, and what would pay."""
        if self.verdict.fits is False:
            return ()
        found = sentences(
            self.question, self.options, self.reasons, self.waits, self.gap, self.search
        )
        return tuple(found)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What nobody measured or gave."""
        return tuple(f"Not known: {one}" for one in self.unknowns)

    @property
    def settings(self) -> tuple[str, ...]:
        """PyTorch's way with its size of buckets, what is faster, and what a shard is made by."""
        if self.verdict.fits is False:
            way = self.verdict.way
            return (f"Settings for {way}:\n{torch_code(Layout.parse(way))}",) if way else ()
        return tuple(method_settings(self.options, fastest(self.options)))


@asks(AdviceQuestion)
def advise(asked: AdviceQuestion) -> Advice | LayoutAdvice:
    """Return what to do with a model on machines, what comes of it, and why.

    ``prices`` are per hour of a GPU and of a server. ``measured`` is a throughput in samples/s that
    ``measured_method`` reached: the advice then says what would explain the difference to the
    forecast. ``str(advice)`` is the answer in sentences; ``advice.options`` ranks what can be done,
    with throughput in samples/s, its 90 % interval, memory in bytes and cost; ``advice.reasons``
    are simulated again with one thing changed each. Options that may be the fastest are played in
    all ``draws``, the others in a fifth of them, 20 at least: the column ``draws`` says how many an
    interval is of.

    A model of `ddlnb.parallelism.get_shape` is asked how to be split, with plain data parallelism
    among the layouts: then the advice is that of `advise_layouts`, with ``local_batch`` times the
    GPUs in a step. What only data parallelism has, such as ``throughput``, asks for that instead.
    Raises what `ddlnb.forecast` raises, and InputError for it where the model has to be split.

    >>> import ddlnb
    >>> found = ddlnb.advise("resnet50", "survey-10GbE", gpus=16, most_plans=0, draws=0)
    >>> found.options["option"].iloc[0]
    'DDP'
    >>> found.reasons["what"].iloc[1]
    'twice the bandwidth between nodes'
    """
    on = asked.on if asked.gpus is None else asked.on.with_workers(asked.gpus)
    prices = asked.prices
    servers = prices.server_hour if prices and prices.has_servers else None
    unused = {
        "throughput (--throughput)": asked.throughput,
        "measured (--measured)": asked.measured,
        "measured_method (--method)": asked.measured_method,
        "most_plans (--plans)": asked.most_plans,
        "software (--software)": asked.software or None,
        "the price server_hour (--server-price)": servers,
    }
    known = posed(asked, on, unused=unused, prices=prices)
    if isinstance(known, PricedQuestion):
        return advise_on_layouts(known, draws=asked.draws, seed=asked.seed)
    return advise_on(
        known,
        measured=asked.measured,
        measured_method=asked.measured_method,
        most_plans=SEARCHED_PLANS if asked.most_plans is None else asked.most_plans,
        draws=asked.draws,
        seed=asked.seed,
    )


def advise_on(
    question: Question,
    *,
    lossy: Sequence[str] = LOSSY,
    measured: float | None = None,
    measured_method: str | None = None,
    most_plans: int = SEARCHED_PLANS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Advice:
    """Return advice on a question.

    All methods that the cluster can run are options; so are other ways to use its machines, in the
    method that is the fastest then. ``lossy`` are methods that compute something else.
    ``measured`` is a throughput in samples/s by ``measured_method``, which is then explained.
    Raises InputError for what does not fit together.
    """
    require_whole(0, draws=draws, most_plans=most_plans)
    _require_measured(measured, measured_method)
    methods = method_options(question)
    require(bool(methods), f"no method runs on {question.cluster!r}")
    searched = searched_option(question, most_plans)
    sized = bucket_option(question) if question.cluster.workers > 1 else []
    options = [*methods, *sized, *fastest_of_each(list(other_options(question)))]
    if searched is not None:
        options.append(searched[0])
    cells = [one.cell for one in options]
    played = play_contenders(cells, compared(question, options), draws=draws, seed=seed)
    rows = option_rows(question, options, played)
    found, left_out = lossy_options(question, lossy, draws=LEAST_DRAWS if draws else 0, seed=seed)
    rows = _ranked(rows, lossy_rows(question, found), question)
    best = next(one for one in options if one.name == rows["option"].iloc[0])
    reasons = counterfactual_table(best.cell)
    waits = last_message(best.cell)
    gap = _gap(question, measured, measured_method, draws, seed)
    unknown = tuple(unknowns(question, found, left_out))
    search = None if searched is None else searched[1]
    return Advice(question, rows, best, reasons, waits, unknown, search, gap)


def _require_measured(measured: float | None, method: str | None) -> None:
    """Raise InputError unless a throughput and a method were measured together, or neither."""
    if measured is None:
        require(method is None, "a method was measured, but not its throughput; give both")
        return
    require_positive(measured=measured)
    require(
        method is not None,
        f"a throughput of {measured:g} samples/s was measured, but not said by which method; "
        f"give its name, such as DDP or MG-WFBP",
    )
    get_method(str(method))


def _gap(
    question: Question, measured: float | None, method: str | None, draws: int, seed: int
) -> Gap | None:
    if measured is None:
        return None
    cell = Cell(question.workload, question.cluster, get_method(str(method)))
    return explain_gap(cell, measured, draws=draws, seed=seed)


def _ranked(rows: pd.DataFrame, lossy: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Return all rows, in the order in which one would try them.

    First PyTorch's own, which every script can run; then others that change nothing about learning
    and use all GPUs without further machines, then those with further machines, then those that
    change learning, then those on fewer GPUs; within each, the fastest first.
    """
    frame = pd.concat([rows, lossy], ignore_index=True) if len(lossy) else rows
    plain = (frame["learning"] == "") & (frame["kind"] != str(Kind.FEWER))
    group = (~plain).astype(int) + (frame["kind"] == str(Kind.FEWER))
    group = group.where(~(plain & frame["server_machines"].gt(0)), 0.5)
    group = group.where(~(plain & frame["option"].map(in_torch)), -1)
    order = frame.assign(group=group).sort_values(
        ["group", THROUGHPUT], ascending=[True, False], kind="stable"
    )
    best = order[THROUGHPUT].iloc[0]
    return (
        order.assign(over_best=order[THROUGHPUT] / best)
        .drop(columns="group")
        .reset_index(drop=True)
    )
