"""A sentence of the survey about a throughput table, and how it is judged.

A claim is made of comparisons. Each has a value per cell, a range that supports it, and how many
cells must be within.

What the survey's claims compare: values by the cell that a claim praises or blames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ddlnb.plans.methods import SURVEYED
from ddlnb.results.tables import SINGLE, Cell

FAILURES_SHOWN = 5  # of a claim; the others are counted

Values = dict[Cell, float]  # what is compared with a range


class Strength(Enum):
    """How many of the cells must support a claim."""

    ANY = "at least one cell"
    MOST = "more than half of the cells"
    EVERY = "every cell"

    def is_met(self, supporting: int, cells: int) -> bool:
        """Return whether this number of supporting cells is enough.

        >>> Strength.MOST.is_met(2, 4), Strength.MOST.is_met(3, 4)
        (False, True)
        """
        if self is Strength.ANY:
            return supporting > 0
        return supporting == cells if self is Strength.EVERY else 2 * supporting > cells

    @property
    def share(self) -> float:
        """Return the share of the cells that must support a claim, or that must be exceeded."""
        return {Strength.ANY: 0.0, Strength.MOST: 0.5, Strength.EVERY: 1.0}[self]


@dataclass(frozen=True)
class Table:
    """The throughput of every cell, and the number of GPUs that share a node."""

    rates: Mapping[Cell, float]
    gpus_per_node: int

    def uses_network(self, cell: Cell) -> bool:
        """Return whether the cell's GPUs are beyond one node."""
        return cell.gpus > self.gpus_per_node

    def single(self, cell: Cell) -> float | None:
        """Return the throughput of one GPU alone with the cell's model and batch, if known."""
        alike = (one for one in self.rates if one.method == SINGLE and one[:2] == cell[:2])
        rates = [self.rates[one] / one.gpus for one in alike]
        return median(rates) if rates else None


@dataclass(frozen=True)
class Part:
    """One comparison: a value per cell, the range that supports the claim, how many cells must.

    ``needs`` are the cells without which there is nothing to compare, ``unit`` the words after a
    value: a cell is 0.9 "times WFBP-PS".
    """

    needs: str
    values: Callable[[Table], Values]
    unit: str
    strength: Strength
    low: float = -math.inf
    high: float = math.inf

    def failing(self, values: Values) -> Values:
        """Return the values outside the range, the farthest first."""
        miss = {cell: max(self.low - value, value - self.high) for cell, value in values.items()}
        worst_first = sorted(miss, key=lambda cell: -miss[cell])
        return {cell: values[cell] for cell in worst_first if miss[cell] > 0}


@dataclass(frozen=True)
class Claim:
    """A sentence of the survey in our words. It holds if all of its parts do."""

    id: str
    section: str
    text: str
    parts: tuple[Part, ...]

    @property
    def needs(self) -> str:
        """Return the cells without which the claim cannot be judged."""
        return "; ".join(part.needs for part in self.parts)


class Comparison(NamedTuple):
    """One part of a claim, compared: how many of its cells support it."""

    part: Part
    supporting: int
    cells: int

    @property
    def holds(self) -> bool:
        """Return whether enough cells support it."""
        return self.part.strength.is_met(self.supporting, self.cells)

    @property
    def margin(self) -> float:
        """Return the share of the cells that support it, less what is needed."""
        return self.supporting / self.cells - self.part.strength.share


def deciding(found: Sequence[Comparison]) -> Comparison | None:
    """Return the comparison on which a claim stands or falls: the one with the least margin."""
    return min(found, key=lambda one: (one.holds, one.margin), default=None)


def _in_columns(one: Comparison | None) -> dict[str, object]:
    """Return the columns of a verdict on what decides it; without a comparison they are empty."""
    if one is None:
        return {"decided_by": "", "needed": "", "deciding_cells": 0, "deciding_support": 0}
    return {
        "decided_by": one.part.needs,
        "needed": one.part.strength.value,
        "deciding_cells": one.cells,
        "deciding_support": one.supporting,
    }


def judged(claim: Claim, table: Table) -> dict[str, object]:
    """Judge one claim by a table, and return its row."""
    compared = {part: values for part in claim.parts if (values := part.values(table))}
    lacking = [part.needs for part in claim.parts if part not in compared]
    verdicts: list[bool] = []
    failures: list[str] = []
    found: list[Comparison] = []
    for part, values in compared.items():
        failing = part.failing(values)
        found.append(Comparison(part, len(values) - len(failing), len(values)))
        verdicts.append(found[-1].holds)
        if not (verdicts[-1] and part.strength is Strength.ANY):  # where one is enough, none fails
            failures += [f"{cell} is {value:.3f} {part.unit}" for cell, value in failing.items()]
    cells, supporting = sum(one.cells for one in found), sum(one.supporting for one in found)
    more = len(failures) - FAILURES_SHOWN
    shown = [*failures[:FAILURES_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return {
        "claim": claim.id,
        "section": claim.section,
        "text": claim.text,
        "holds": None if lacking and all(verdicts) else all(verdicts),
        "cells": cells,
        "share": supporting / cells if cells else math.nan,
        "failures": "; ".join(shown),
        "reason": f"the table has no {', and no '.join(lacking)}" if lacking else "",
        **_in_columns(deciding(found)),
    }


EQUAL = 0.02  # some three times the usual spread of repetitions, 0.6 %
TCP = ("10GbE", "100GbE")  # the networks of high latency
IB = "100GbIB"
BERTS = ("bert-base", "bert-large")
# PS and A2A with the same schedule; MG-WFBP has no counterpart.
SAME_SCHEDULE = (
    ("BSP-PS", "BSP-A2A"),
    ("WFBP-PS", "WFBP-A2A"),
    ("ByteScheduler-PS", "ByteScheduler-A2A"),
)


def any_cell(cell: Cell) -> bool:
    """Return True: every cell counts."""
    return True


def over(table: Table, above: str, below: str, keep: Callable[[Cell], bool] = any_cell) -> Values:
    """Return the throughput of one method over another's in the same configuration."""
    return {
        cell: rate / table.rates[other]
        for cell, rate in table.rates.items()
        if cell.method == above
        and keep(cell)
        and (other := cell._replace(method=below)) in table.rates
    }


def gains(table: Table, slow: str, fast: str, keep: Callable[[Cell], bool] = any_cell) -> Values:
    """Return the throughput of all methods on one network over another, beyond one node."""
    return {
        cell: rate / table.rates[other]
        for cell, rate in table.rates.items()
        if cell.network == fast
        and cell.method in SURVEYED
        and table.uses_network(cell)
        and keep(cell)
        and (other := cell._replace(network=slow)) in table.rates
    }


def more_than_on_ib(
    table: Table, above: str, below: str, keep: Callable[[Cell], bool] = any_cell
) -> Values:
    """Return the ratio of two methods on a TCP network over their ratio on IB, beyond one node."""
    ratios = over(table, above, below, keep)
    return {
        cell: ratio / ratios[on_ib]
        for cell, ratio in ratios.items()
        if cell.network in TCP
        and table.uses_network(cell)
        and (on_ib := cell._replace(network=IB)) in ratios
    }


def ps_over_a2a_on_tcp(table: Table) -> Values:
    """Return the throughput of PS over A2A with the same schedule, on TCP beyond one node."""
    return {
        cell: ratio
        for ps, a2a in SAME_SCHEDULE
        for cell, ratio in over(table, ps, a2a, table.uses_network).items()
        if cell.network in TCP
    }


def a2a_growth_over_ps(table: Table) -> Values:
    """Return the growth of A2A over that of PS with the same schedule, on IB.

    The growth is from the fewest GPUs of the table to the most, which must be beyond one node.
    """
    found = {}
    for ps, a2a in SAME_SCHEDULE:
        curves: dict[tuple[object, ...], list[Cell]] = {}
        ratios = over(table, a2a, ps, lambda cell: cell.network == IB)
        for cell in sorted(ratios, key=lambda cell: cell.gpus):
            curves.setdefault(cell[:2], []).append(cell)
        for curve in curves.values():
            if len(curve) > 1 and table.uses_network(curve[-1]):
                found[curve[-1]] = ratios[curve[-1]] / ratios[curve[0]]
    return found


def best_bert(table: Table, keep: Callable[[Cell], bool]) -> Values:
    """Return the share of linear speedup of BERT's best method in every configuration."""
    best: dict[Cell, tuple[float, Cell]] = {}
    for cell, rate in table.rates.items():
        if cell.model in BERTS and cell.method in SURVEYED and keep(cell):
            configuration = cell._replace(method="")
            if single := table.single(cell):
                found = (rate / cell.gpus / single, cell)
                best[configuration] = max(best.get(configuration, found), found)
    return {cell: efficiency for efficiency, cell in best.values()}


def best_bert_on_ib(table: Table) -> Values:
    """Return the share of linear speedup of BERT's best method on IB beyond one node."""
    return best_bert(table, lambda c: c.network == IB and table.uses_network(c))


def bert_lost_in_node(table: Table) -> Values:
    """Return the speedup lost within one node over that lost on IB; 0 if none is lost."""
    within = best_bert(table, lambda c: c.gpus > 1 and not table.uses_network(c))
    found = {}
    for cell, efficiency in best_bert_on_ib(table).items():
        alike = [one for one in within if one[:2] == cell[:2]]
        if alike:
            full = max(one.gpus for one in alike)
            in_node = max(within[one] for one in alike if one.gpus == full)
            found[cell] = (1 - in_node) / (1 - efficiency) if efficiency < 1 else 0.0
    return found


def leader_over_best(table: Table) -> Values:
    """Return the throughput of the most frequent winner over the best, by configuration.

    Only configurations with all methods of the table count, and to win the only one says nothing.
    A method wins where it is the best, or below it by no more than EQUAL.
    """
    configurations: dict[Cell, Values] = {}
    for cell, rate in table.rates.items():
        if cell.method in SURVEYED:
            configurations.setdefault(cell._replace(method=""), {})[cell] = rate
    methods = {cell.method for rates in configurations.values() for cell in rates}
    full = [rates for rates in configurations.values() if len(rates) == len(methods)]
    if len(methods) < 2 or len(full) < 2:
        return {}
    shares = {cell: rate / max(rates.values()) for rates in full for cell, rate in rates.items()}
    wins = [cell.method for cell, share in shares.items() if share >= 1 - EQUAL]
    leader = max(sorted(methods), key=wins.count)
    return {cell: share for cell, share in shares.items() if cell.method == leader}


def larger_batches(table: Table) -> Values:
    """Return the speedup at a larger local batch over that at the model's next smaller one.

    Speedup over one GPU alone where the table has it for both batches, else over the fewest GPUs
    at which the table has both cells.
    """
    batches: dict[str, set[int]] = {}
    for cell in table.rates:
        batches.setdefault(cell.model, set()).add(cell.local_batch)
    found: Values = {}
    first: dict[tuple[object, ...], float] = {}
    for model, sizes in batches.items():
        for smaller, larger in pairwise(sorted(sizes)):
            cells = [c for c in table.rates if c[:2] == (model, larger) and c.method in SURVEYED]
            for cell in sorted(cells, key=lambda cell: cell.gpus):
                other = cell._replace(local_batch=smaller)
                if other not in table.rates:
                    continue
                ratio = table.rates[cell] / table.rates[other]
                single, other_single = table.single(cell), table.single(other)
                if single and other_single:
                    found[cell] = ratio / (single / other_single)
                elif cell[:4] in first:
                    found[cell] = ratio / first[cell[:4]]
                else:
                    first[cell[:4]] = ratio
    return found
