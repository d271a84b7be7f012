"""A sentence of the survey about a throughput table, and how it is judged.

A claim is made of comparisons. Each has a value per cell, a range that supports it, and how many
cells must be within.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import NamedTuple

from ddlnb.results.table import SINGLE, Cell

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
