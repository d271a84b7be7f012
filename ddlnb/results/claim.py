"""A sentence of the survey about a throughput table, and how it is judged.

A claim is made of comparisons. Each has a value per cell, a range that supports it, and how many
cells must be within.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median

from ddlnb.plans.methods import METHODS
from ddlnb.results.table import SINGLE, Cell

FAILURES_SHOWN = 5

Values = dict[Cell, float]  # what is compared with a range


class Strength(Enum):
    """How many of the cells must support a claim."""

    ANY = "at least one cell"
    MOST = "more than half of the cells"
    EVERY = "every cell"

    def is_met(self, supporting: int, cells: int) -> bool:
        """Whether that many are enough.

        >>> Strength.MOST.is_met(2, 4), Strength.MOST.is_met(3, 4)
        (False, True)
        """
        if self is Strength.ANY:
            return supporting > 0
        return supporting == cells if self is Strength.EVERY else 2 * supporting > cells


@dataclass(frozen=True)
class Table:
    """The throughput of every cell, and how many GPUs do without a network."""

    rates: Mapping[Cell, float]
    gpus_per_node: int

    def uses_network(self, cell: Cell) -> bool:
        """Whether the cell's GPUs are beyond one node."""
        return cell.gpus > self.gpus_per_node

    def single(self, cell: Cell) -> float | None:
        """The throughput of one GPU alone with the cell's model and batch, if the table has it."""
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
        """The values outside the range, the farthest first."""
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
        """The cells without which the claim cannot be judged."""
        return "; ".join(part.needs for part in self.parts)


def judged(claim: Claim, table: Table) -> dict[str, object]:
    """The row of one claim."""
    compared = {part: values for part in claim.parts if (values := part.values(table))}
    lacking = [part.needs for part in claim.parts if part not in compared]
    verdicts: list[bool] = []
    failures: list[str] = []
    cells = supporting = 0
    for part, values in compared.items():
        failing = part.failing(values)
        cells += len(values)
        supporting += len(values) - len(failing)
        verdicts.append(part.strength.is_met(len(values) - len(failing), len(values)))
        if not (verdicts[-1] and part.strength is Strength.ANY):  # where one is enough, none fails
            failures += [f"{cell} is {value:.3f} {part.unit}" for cell, value in failing.items()]
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
    }


# What the survey's claims compare: values by cell, the one that a claim praises or blames.
EQUAL = 0.02  # some three times the usual spread of repetitions, 0.6 %
TCP = ("10GbE", "100GbE")  # the networks of high latency
IB = "100GbIB"
BERTS = ("bert-base", "bert-large")
# PS and A2A with the same schedule; MG-WFBP has no twin.
TWINS = (
    ("BSP-PS", "BSP-A2A"),
    ("WFBP-PS", "WFBP-A2A"),
    ("ByteScheduler-PS", "ByteScheduler-A2A"),
)


def any_cell(cell: Cell) -> bool:
    return True


def over(table: Table, above: str, below: str, keep: Callable[[Cell], bool] = any_cell) -> Values:
    """The throughput of one method over another's in the same configuration."""
    return {
        cell: rate / table.rates[other]
        for cell, rate in table.rates.items()
        if cell.method == above
        and keep(cell)
        and (other := cell._replace(method=below)) in table.rates
    }


def gains(table: Table, slow: str, fast: str, keep: Callable[[Cell], bool] = any_cell) -> Values:
    """The throughput of the seven methods on one network over that on another, beyond one node."""
    return {
        cell: rate / table.rates[other]
        for cell, rate in table.rates.items()
        if cell.network == fast
        and cell.method in METHODS
        and table.uses_network(cell)
        and keep(cell)
        and (other := cell._replace(network=slow)) in table.rates
    }


def more_than_on_ib(
    table: Table, above: str, below: str, keep: Callable[[Cell], bool] = any_cell
) -> Values:
    """The ratio of two methods on a TCP network over their ratio on IB, beyond one node."""
    ratios = over(table, above, below, keep)
    return {
        cell: ratio / ratios[on_ib]
        for cell, ratio in ratios.items()
        if cell.network in TCP
        and table.uses_network(cell)
        and (on_ib := cell._replace(network=IB)) in ratios
    }


def ps_over_a2a_on_tcp(table: Table) -> Values:
    """The throughput of PS over that of A2A with the same schedule, on TCP beyond one node."""
    return {
        cell: ratio
        for ps, a2a in TWINS
        for cell, ratio in over(table, ps, a2a, table.uses_network).items()
        if cell.network in TCP
    }


def a2a_growth_over_ps(table: Table) -> Values:
    """The growth of A2A over that of PS with the same schedule, on IB.

    The growth is from the fewest GPUs of the table to the most, which must be beyond one node.
    """
    found = {}
    for ps, a2a in TWINS:
        curves: dict[tuple[object, ...], list[Cell]] = {}
        ratios = over(table, a2a, ps, lambda cell: cell.network == IB)
        for cell in sorted(ratios, key=lambda cell: cell.gpus):
            curves.setdefault(cell[:2], []).append(cell)
        for curve in curves.values():
            if len(curve) > 1 and table.uses_network(curve[-1]):
                found[curve[-1]] = ratios[curve[-1]] / ratios[curve[0]]
    return found


def best_bert(table: Table, keep: Callable[[Cell], bool]) -> Values:
    """The share of linear speedup that BERT's best method reaches in every configuration."""
    best: dict[Cell, tuple[float, Cell]] = {}
    for cell, rate in table.rates.items():
        if cell.model in BERTS and cell.method in METHODS and keep(cell):
            place = cell._replace(method="")
            if single := table.single(cell):
                found = (rate / cell.gpus / single, cell)
                best[place] = max(best.get(place, found), found)
    return {cell: efficiency for efficiency, cell in best.values()}


def best_bert_on_ib(table: Table) -> Values:
    """The share of linear speedup that BERT's best method reaches on IB beyond one node."""
    return best_bert(table, lambda c: c.network == IB and table.uses_network(c))


def bert_lost_in_node(table: Table) -> Values:
    """The share of linear speedup lost within one node over that lost on IB; 0 if none is lost."""
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
    """The throughput of the method that wins most often over the best, in every configuration.

    Only configurations with all methods of the table count, and to win the only one says nothing.
    A method wins where it is the best, or below it by no more than EQUAL.
    """
    places: dict[Cell, Values] = {}
    for cell, rate in table.rates.items():
        if cell.method in METHODS:
            places.setdefault(cell._replace(method=""), {})[cell] = rate
    methods = {cell.method for rates in places.values() for cell in rates}
    full = [rates for rates in places.values() if len(rates) == len(methods)]
    if len(methods) < 2 or len(full) < 2:
        return {}
    shares = {cell: rate / max(rates.values()) for rates in full for cell, rate in rates.items()}
    wins = [cell.method for cell, share in shares.items() if share >= 1 - EQUAL]
    leader = max(sorted(methods), key=wins.count)
    return {cell: share for cell, share in shares.items() if cell.method == leader}


def larger_batches(table: Table) -> Values:
    """The speedup at a larger local batch over that at the model's next smaller one.

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
            cells = [c for c in table.rates if c[:2] == (model, larger) and c.method in METHODS]
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
