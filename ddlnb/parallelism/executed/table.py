"""Predicted beside counted: every strategy, carried out on real ranks, a row per quantity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from ddlnb.errors import require, require_whole
from ddlnb.parallelism.layout import Layout, groups
from ddlnb.parallelism.memory import memory, require_fits
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.schedules import SCHEDULES, SHIPPED
from ddlnb.parallelism.volumes import exchanges

if TYPE_CHECKING:
    from ddlnb.launch.ranks import Ranks
    from ddlnb.parallelism.executed.trainer import Counted


DENSE = Transformer(
    "small transformer", layers=4, hidden=32, heads=4, vocab=64, sequence=16,
    learned_positions=True, norm="layer",
)  # fmt: skip
MIXTURE = replace(DENSE, name="small mixture", experts=4, top_k=2)
SCORES = replace(DENSE, name="small, scores kept", flash=False)


@dataclass(frozen=True)
class Case:
    """A strategy by the name that the field gives it, the model, and the layout.

    Raises InputError for a model or a combination that is not executed here.

    >>> Case("both", DENSE, Layout(dp=2, pp=2, zero=3))
    Traceback (most recent call last):
    ddlnb.errors.InputError: ZeRO-2 and 3 are executed without pipelines; give zero1 or pp 1
    """

    strategy: str
    shape: Transformer
    layout: Layout

    def __post_init__(self) -> None:
        shape, layout = self.shape, self.layout
        require_fits(shape.shape, layout)
        kind = (shape.learned_positions, shape.norm, shape.bias, shape.gated, shape.tied)
        plain = kind == (True, "layer", False, False, False) and shape.kv_heads == shape.heads
        for is_executed, otherwise in (
            (
                plain,
                f"model {shape.name!r} is not executed here: it needs learned positions, layer "
                f"norms, no biases, no gates, as many key heads as heads, and an untied head",
            ),
            (
                layout.tp == 1 or not (shape.experts or layout.cp > 1),
                "tensor parallelism is executed for dense layers and whole sequences; give tp 1",
            ),
            (
                not (layout.zero and layout.ep > 1),
                "shared experts are executed without ZeRO; give zero 0",
            ),
            (
                layout.zero < 2 or layout.pp == 1,
                "ZeRO-2 and 3 are executed without pipelines; give zero1 or pp 1",
            ),
            (
                not (layout.sequence_parallel and layout.gather_again),
                "torch's sequence parallelism keeps what it gathered: say so with the word keep",
            ),
            (
                layout.recomputation != "selective" or not shape.flash,
                "selective recomputation needs a model that keeps its scores: flash=False",
            ),
        ):
            require(is_executed, otherwise)


CASES = tuple(
    Case(strategy, shape, Layout.parse(layout))
    for strategy, layout, shape in (
        ("data (DDP)", "dp4 acc2", DENSE),
        ("ZeRO-1", "dp4 zero1 acc2", DENSE),
        ("ZeRO-2", "dp4 zero2 acc2", DENSE),
        ("ZeRO-3 (FSDP2)", "dp4 zero3 acc2", DENSE),
        ("tensor", "tp4 mb2", DENSE),
        ("tensor, sequence", "tp4 sp keep", DENSE),
        ("pipeline, GPipe", "pp4 gpipe acc4", DENSE),
        ("pipeline, 1F1B", "pp4 acc8", DENSE),
        ("pipeline, interleaved", "pp2 vpp2 acc4", DENSE),
        ("pipeline, zero-bubble", "pp4 zero-bubble acc8", DENSE),
        ("context, ring", "cp4", DENSE),
        ("context, all-to-all", "cp4 all-to-all", DENSE),
        ("expert", "dp4 ep4", MIXTURE),
        ("expert, two replicas", "dp4 ep2", MIXTURE),
        ("full recomputation", "dp2 tp2 full", DENSE),
        ("selective recomputation", "dp4 selective", SCORES),
        ("data, tensor", "dp2 tp2 acc2", DENSE),
        ("data, tensor, sequence, ZeRO-1", "dp2 tp2 sp keep zero1", DENSE),
        ("ZeRO-3, tensor", "dp2 tp2 zero3", DENSE),
        ("data, pipeline, ZeRO-1", "dp2 pp2 zero1 acc2", DENSE),
        ("tensor, pipeline", "tp2 pp2 acc2", DENSE),
        ("data, context", "dp2 cp2", DENSE),
    )
)


PRECISION = "fp64"
ROUNDING = 1e-12  # of loss and parameters of order 1 in 8 bytes, after three iterations
MEMORY_TOLERANCE = 0.05
Key = tuple[str, tuple[int, ...]]


def strategy_rows(
    cases: Sequence[Case] = CASES, ranks: Ranks | None = None, seed: int = 1
) -> pd.DataFrame:
    """Train the small model with every strategy on 4 real ranks, and count what they do.

    ``ranks`` are started ranks to use, at least as many as the largest layout has. Returns one row
    per strategy and quantity: ``strategy``, ``layout``, ``model``, ``quantity``, ``predicted``,
    ``counted``, ``equal``. Quantities: ``loss`` and ``parameters`` (the largest difference to one
    worker after three iterations, predicted 0); ``calls`` and ``bytes`` of every collective,
    summed over all ranks in one iteration; and of ``memory`` the parts, in bytes on the rank that
    is furthest off. Numbers of calls and bytes are equal if they are so on every rank, for
    every group; memory if it is within 5 %. Tokens choose their experts, so that only all ranks
    together exchange and keep what is predicted there. Raises InputError for too few ranks.
    """
    from ddlnb.launch.ranks import Ranks
    from ddlnb.parallelism.executed.trainer import run_strategies

    require_whole(0, seed=seed)
    needed = max((case.layout.ranks for case in cases), default=0)
    require(needed > 0, "there are no strategies to execute; give at least one case")
    count = needed if ranks is None else ranks.count
    require(count >= needed, f"{needed} ranks are needed, {count} are started: Ranks({needed})")
    imports = (run_strategies.__module__,)
    own = Ranks(needed, imports=imports) if ranks is None else nullcontext(ranks)
    with own as started:
        given = [(case.shape, case.layout) for case in cases]
        named = dict.fromkeys(case.layout.schedule for case in cases)
        brought = [SCHEDULES[name] for name in named if name not in SHIPPED]
        counted = started.run(run_strategies, given, seed, brought, count=needed)
    return pd.DataFrame(
        {
            "strategy": case.strategy,
            "layout": str(case.layout),
            "model": case.shape.name,
            "quantity": quantity,
            "predicted": predicted,
            "counted": value,
            "equal": equal,
        }
        for number, case in enumerate(cases)
        for quantity, predicted, value, equal in _compared(
            case, [one[number] for one in counted if one[number] is not None]
        )
    )


def strategy_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per strategy: calls and bytes, memory, distance to one worker, equal.

    ``predicted`` and ``counted`` are calls, and bytes exchanged, of all ranks in an iteration;
    ``memory`` is the largest relative error of a part.
    """
    rows = rows.assign(off=(rows["predicted"] - rows["counted"]).abs() / rows["counted"])
    what = rows["quantity"].str.split().str[0]

    def of(*quantities: str) -> pd.api.typing.DataFrameGroupBy:
        return rows[what.isin(quantities)].groupby("strategy", sort=False)

    table = {"layout": rows.groupby("strategy", sort=False)["layout"].first()}
    for quantity in ("calls", "bytes"):
        for side in ("predicted", "counted"):
            table[f"{quantity} {side}"] = of(quantity)[side].sum().astype(int)
    table["memory off by"] = of("memory")["off"].max()
    table["off one worker"] = of("loss", "parameters")["counted"].max()
    table["equal"] = rows.groupby("strategy", sort=False)["equal"].all()
    return pd.DataFrame(table).reset_index()


def _compared(case: Case, found: Sequence[Counted]) -> Iterator[tuple[str, float, float, bool]]:
    """Yield every quantity with what was predicted, what was counted, and whether they agree."""
    for quantity, error in (("loss", "loss_error"), ("parameters", "parameter_error")):
        worst = max(getattr(one, error) for one in found)
        yield quantity, 0.0, worst, worst <= ROUNDING
    yield from _compared_exchanges(case, found)
    yield from _compared_memory(case, found)


def _compared_exchanges(
    case: Case, found: Sequence[Counted]
) -> Iterator[tuple[str, float, float, bool]]:
    predicted = [_predicted(case, rank, one.stage) for rank, one in enumerate(found)]
    counted = [(one.times, one.bytes) for one in found]
    for primitive in sorted({key[0] for times, _ in (*predicted, *counted) for key in times}):
        together = bool(case.shape.experts) and primitive == "all-to-all"
        for at, what in enumerate(("calls", "bytes")):
            told, seen = (
                [{key: n for key, n in one[at].items() if key[0] == primitive} for one in side]
                for side in (predicted, counted)
            )
            told_of_all, seen_of_all = (sum(map(Counter, side), Counter()) for side in (told, seen))
            equal = told_of_all == seen_of_all if together else told == seen
            in_all = float(told_of_all.total()), float(seen_of_all.total())
            yield f"{what} {primitive}", in_all[0], in_all[1], equal


def _predicted(case: Case, rank: int, stage: int) -> tuple[Counter[Key], Counter[Key]]:
    """Return calls and bytes of one rank by primitive and group, in one iteration."""
    times: Counter[Key] = Counter()
    size: Counter[Key] = Counter()
    for one in exchanges(case.shape.shape, case.layout, PRECISION, stage):
        members = next(group for group in groups(case.layout, one.axis) if rank in group)
        times[one.primitive, members] += one.times
        size[one.primitive, members] += round(one.times * one.bytes)
    return times, size


def _compared_memory(
    case: Case, found: Sequence[Counted]
) -> Iterator[tuple[str, float, float, bool]]:
    told = [memory(case.shape.shape, case.layout, PRECISION, one.stage) for one in found]
    for part in ("parameters", "gradients", "optimizer", "activations"):
        pairs = [
            (float(getattr(one, part)), float(counted.memory[part]))
            for one, counted in zip(told, found, strict=True)
        ]
        if case.shape.experts:
            pairs = [tuple(sum(column) / len(column) for column in zip(*pairs, strict=True))]
        predicted, counted = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / pair[1])
        equal = abs(predicted - counted) <= MEMORY_TOLERANCE * counted
        yield f"memory {part}", predicted, counted, equal
