"""What section 4 of the survey says about its figure, as predicates over a throughput table.

A claim is made of comparisons. Each has a value per cell, a range that supports it, and how many
cells must be within.

How words become numbers: an order without qualifier ("not slower", "no gain") must hold in every
cell, up to EQUAL, since noise must not refute it. "Most" is more than half of the cells, and a size
("clearly", "about", "nearly", "poorly") is that of the typical cell, so it too must hold in most;
there a tie counts only where the claim includes it. Claims about a network are judged by cells
beyond one node, because the others do not use it; the rest by every cell there is.

Where a table has standard deviations, a value nearer to its bound than its noise may be on either
side; so may a cell that is missing. A claim whose verdict turns with such cells is undecided.

>>> import ddlnb
>>> ddlnb.survey.CLAIMS["A44"].text
'BSP-A2A is faster than BSP-PS in most cells'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import pandas as pd

from ddlnb.errors import require_whole
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.rows import GPUS_PER_NODE, SINGLE, Cell, cell_rates
from ddlnb.survey.checks import grouped, relative_noises, scaling_curves

FAILURES_SHOWN = 5  # of a claim; the others are counted
OPEN = "cannot be decided with these cells: noise or missing ones may turn the verdict"


class Rate(float):
    """A throughput or a ratio of some, with its relative standard deviation."""

    noise: float

    def __new__(cls, value: float, noise: float = 0.0) -> Rate:
        """Return the number that knows its noise."""
        rate = super().__new__(cls, value)
        rate.noise = noise
        return rate

    def __truediv__(self, other: float) -> Rate:
        """Return the ratio, which has the noise of both: errors are taken to be independent."""
        return Rate(float(self) / float(other), math.hypot(self.noise, getattr(other, "noise", 0)))


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

    def within_noise(self, values: Values) -> Values:
        """Return the values that are nearer to an end of the range than their noise."""
        return {
            cell: value
            for cell, value in values.items()
            if min(abs(value - self.low), abs(value - self.high))
            < value * getattr(value, "noise", 0.0)
        }


@dataclass(frozen=True)
class Claim:
    """A sentence of the survey in our words. It holds if all of its parts do.

    ``decided`` says why no measurement could refute it, as that of `ddlnb.survey.items.Item`.
    """

    id: str
    section: str
    text: str
    parts: tuple[Part, ...]
    decided: str = ""

    @property
    def needs(self) -> str:
        """Return the cells without which the claim cannot be judged."""
        return "; ".join(part.needs for part in self.parts)


class Comparison(NamedTuple):
    """One part of a claim, compared: how many of its cells support it.

    ``doubtful`` of the supporting and ``hopeful`` of the failing ones are so within their noise;
    ``missing`` are in the whole table alone.
    """

    part: Part
    supporting: int
    cells: int
    doubtful: int = 0
    hopeful: int = 0
    missing: int = 0

    @property
    def holds(self) -> bool | None:
        """Return whether enough cells support it; None if that depends on noise or missing ones."""
        cells = self.cells + self.missing
        meets = {self.part.strength.is_met(support, cells) for support in self.between}
        return meets.pop() if len(meets) == 1 else None

    @property
    def between(self) -> tuple[int, int]:
        """Return how many support it at least and at most, whatever noise and missing cells say."""
        return self.supporting - self.doubtful, self.supporting + self.hopeful + self.missing

    @property
    def margin(self) -> float:
        """Return the share of the cells that support it, less what is needed."""
        return self.supporting / self.cells - self.part.strength.share


def compared(part: Part, values: Values, missing: int = 0) -> Comparison:
    """Return the comparison of a part with its values, of which there is at least one."""
    failing, near = part.failing(values), part.within_noise(values)
    hopeful = len(near.keys() & failing.keys())
    counts = len(values) - len(failing), len(values)
    return Comparison(part, *counts, len(near) - hopeful, hopeful, missing)


def deciding(found: Sequence[Comparison]) -> Comparison | None:
    """Return the comparison on which a claim stands or falls.

    It is the one with the least margin, of those that fail, else of those that noise leaves open.
    """
    order = (False, None, True)
    return min(found, key=lambda one: (order.index(one.holds), one.margin), default=None)


def _open(verdicts: set[bool | None]) -> str:
    """Return why comparisons without a false one do not decide a claim; empty if they do."""
    return OPEN if None in verdicts and False not in verdicts else ""


def _in_columns(one: Comparison | None) -> dict[str, object]:
    """Return the columns of a verdict on what decides it; without a comparison they are empty."""
    if one is None:
        empty = {"decided_by": "", "needed": "", "deciding_cells": 0, "deciding_support": 0}
        return {**empty, "support_at_least": 0, "support_at_most": 0, "missing": 0}
    return {
        "decided_by": one.part.needs,
        "needed": one.part.strength.value,
        "deciding_cells": one.cells,
        "deciding_support": one.supporting,
        "support_at_least": one.between[0],
        "support_at_most": one.between[1],
        "missing": one.missing,
    }


def judged(claim: Claim, table: Table, whole: Table) -> dict[str, object]:
    """Judge one claim by a table, of which cells of the whole one may be missing; return a row."""
    values_of = {part: values for part in claim.parts if (values := part.values(table))}
    lacking = [part.needs for part in claim.parts if part not in values_of]
    failures: list[str] = []
    found: list[Comparison] = []
    for part, values in values_of.items():
        found.append(compared(part, values, len(part.values(whole).keys() - values.keys())))
        if not (found[-1].holds and part.strength is Strength.ANY):  # where one is enough
            failing = part.failing(values)
            failures += [f"{cell} is {value:.3f} {part.unit}" for cell, value in failing.items()]
    verdicts = {one.holds for one in found}
    cells, supporting = sum(one.cells for one in found), sum(one.supporting for one in found)
    more = len(failures) - FAILURES_SHOWN
    shown = [*failures[:FAILURES_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return {
        "claim": claim.id,
        "section": claim.section,
        "text": claim.text,
        "holds": False if False in verdicts else None if lacking or None in verdicts else True,
        "cells": cells,
        "share": supporting / cells if cells else math.nan,
        "failures": "; ".join(shown),
        "reason": f"the table has no {', and no '.join(lacking)}" if lacking else _open(verdicts),
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


def without_method(cell: Cell) -> Cell:
    """Return the configuration of a cell: all but its method."""
    return cell._replace(method="")


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
        ratios = over(table, a2a, ps, lambda cell: cell.network == IB)
        for curve in scaling_curves(ratios):
            if len(curve) > 1 and table.uses_network(curve[-1]):
                found[curve[-1]] = ratios[curve[-1]] / ratios[curve[0]]
    return found


def best_bert(table: Table, keep: Callable[[Cell], bool]) -> Values:
    """Return the share of linear speedup of BERT's best method in every configuration."""
    efficiencies = {
        cell: rate / cell.gpus / single
        for cell, rate in table.rates.items()
        if cell.model in BERTS
        and cell.method in SURVEYED
        and keep(cell)
        and (single := table.single(cell))
    }
    groups = grouped(efficiencies, without_method)
    best = (max(zip(group.values(), group, strict=True)) for group in groups)
    return {cell: efficiency for efficiency, cell in best}


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
    surveyed = {cell: rate for cell, rate in table.rates.items() if cell.method in SURVEYED}
    methods = {cell.method for cell in surveyed}
    full = [rates for rates in grouped(surveyed, without_method) if len(rates) == len(methods)]
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
    found: Values = {}
    first: dict[tuple[object, ...], float] = {}
    for of_model in grouped(table.rates, lambda cell: cell.model):
        for smaller, larger in pairwise(sorted({cell.local_batch for cell in of_model})):
            cells = [c for c in of_model if c.local_batch == larger and c.method in SURVEYED]
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


BETTER = math.nextafter(1.0, 2.0)  # the smallest ratio above 1: a tie is no win
CLEAR = 0.05  # "well above", "clearly above": more than twice EQUAL, so no matter of noise
MANY_GPUS = 32  # "at 32 workers", the most the survey has
TEN_TO_EIGHTY_PERCENT = (1.10, 1.80)  # as the survey says
ABOUT_15_PERCENT = (1.05, 1.25)  # "about +15 %": a CLEAR gain at least, and as far above 15 %
NEARLY_TWICE = (1.6, 2.2)  # "nearly 2x": a fifth less, and for noise a tenth more
POOR = 0.80  # "poorly": BERT-Base's 72.5 % (A41) is meant by it, ResNet-50's 98.8 % (A40) is not
MAIN_CAUSE = 0.5  # "because of": what explains more than half of a loss

COLUMNS = [
    *("claim", "section", "text", "holds", "cells", "share", "failures", "reason"),
    *("decided_by", "needed", "deciding_cells", "deciding_support"),
    *("support_at_least", "support_at_most", "missing"),
]

# In the order of their ids.
_ALL = (
    Claim(
        "A44",
        "4.2.2",
        "BSP-A2A is faster than BSP-PS in most cells",
        (
            Part(
                "cells of BSP-A2A beside BSP-PS",
                lambda table: over(table, "BSP-A2A", "BSP-PS"),
                "times BSP-PS",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A45",
        "4.2.2",
        "WFBP-PS is well above WFBP-A2A on TCP networks or with 32 GPUs, "
        "and more so on TCP networks than on IB",
        (
            Part(
                "cells of WFBP-PS beside WFBP-A2A on TCP beyond one node, or with 32 GPUs",
                lambda table: over(
                    table,
                    "WFBP-PS",
                    "WFBP-A2A",
                    lambda c: table.uses_network(c) and (c.network in TCP or c.gpus >= MANY_GPUS),
                ),
                "times WFBP-A2A",
                Strength.MOST,
                low=1 + CLEAR,
            ),
            Part(
                "cells of WFBP-PS beside WFBP-A2A on TCP and on 100GbIB beyond one node, "
                "with fewer than 32 GPUs",
                lambda table: more_than_on_ib(
                    table, "WFBP-PS", "WFBP-A2A", lambda c: c.gpus < MANY_GPUS
                ),
                "times the ratio to WFBP-A2A on 100GbIB",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A46",
        "4.2.2",
        "MG-WFBP is as fast as WFBP-PS or faster, in every cell",
        (
            Part(
                "cells of MG-WFBP beside WFBP-PS",
                lambda table: over(table, "MG-WFBP", "WFBP-PS"),
                "times WFBP-PS",
                Strength.EVERY,
                low=1 - EQUAL,
            ),
        ),
    ),
    Claim(
        "A47",
        "4.2.2",
        "PS is faster than A2A with the same schedule in most cells on TCP networks, "
        "and A2A grows more with the GPUs in most cases on IB",
        (
            Part(
                "cells of PS beside A2A with the same schedule on TCP beyond one node",
                ps_over_a2a_on_tcp,
                "times its A2A counterpart",
                Strength.MOST,
                low=BETTER,
            ),
            Part(
                "PS beside A2A with the same schedule for two numbers of GPUs on 100GbIB, "
                "the larger beyond one node",
                a2a_growth_over_ps,
                "times the growth of its PS counterpart",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A48",
        "4.2.3",
        "WFBP is not slower than BSP on the same architecture, in every cell",
        (
            Part(
                "cells of WFBP beside BSP on the same architecture",
                lambda table: over(table, "WFBP-PS", "BSP-PS") | over(table, "WFBP-A2A", "BSP-A2A"),
                "times BSP",
                Strength.EVERY,
                low=1 - EQUAL,
            ),
        ),
    ),
    Claim(
        "A49",
        "4.2.3",
        "MG-WFBP is clearly above WFBP-A2A, and more so on TCP networks than on IB",
        (
            Part(
                "cells of MG-WFBP beside WFBP-A2A beyond one node",
                lambda table: over(table, "MG-WFBP", "WFBP-A2A", table.uses_network),
                "times WFBP-A2A",
                Strength.MOST,
                low=1 + CLEAR,
            ),
            Part(
                "cells of MG-WFBP beside WFBP-A2A on TCP and on 100GbIB beyond one node",
                lambda table: more_than_on_ib(table, "MG-WFBP", "WFBP-A2A"),
                "times the ratio to WFBP-A2A on 100GbIB",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A50",
        "4.2.3",
        "ByteScheduler-A2A gains nothing over WFBP-A2A, in every cell",
        (
            Part(
                "cells of ByteScheduler-A2A beside WFBP-A2A",
                lambda table: over(table, "ByteScheduler-A2A", "WFBP-A2A"),
                "times WFBP-A2A",
                Strength.EVERY,
                high=1 + EQUAL,
            ),
        ),
    ),
    Claim(
        "A51",
        "4.2.3",
        "ByteScheduler-PS is faster than WFBP-PS for ResNet-50 on 100GbE, in every cell",
        (
            Part(
                "cells of ByteScheduler-PS beside WFBP-PS for resnet50 on 100GbE beyond one node",
                lambda table: over(
                    table,
                    "ByteScheduler-PS",
                    "WFBP-PS",
                    lambda c: (
                        c.model == "resnet50" and c.network == "100GbE" and table.uses_network(c)
                    ),
                ),
                "times WFBP-PS",
                Strength.EVERY,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A52",
        "4.2.4",
        "100GbE is 10 % to 80 % faster than 10GbE in most cells",
        (
            Part(
                "cells on 100GbE beside 10GbE beyond one node",
                lambda table: gains(table, "10GbE", "100GbE"),
                "times that on 10GbE",
                Strength.MOST,
                *TEN_TO_EIGHTY_PERCENT,
            ),
        ),
    ),
    Claim(
        "A53",
        "4.2.4",
        "ResNet-50 with WFBP gains about 15 % from 100GbE to IB",
        (
            Part(
                "cells of WFBP for resnet50 on 100GbIB beside 100GbE beyond one node",
                lambda table: gains(
                    table,
                    "100GbE",
                    IB,
                    lambda c: c.model == "resnet50" and c.method in ("WFBP-PS", "WFBP-A2A"),
                ),
                "times that on 100GbE",
                Strength.MOST,
                *ABOUT_15_PERCENT,
            ),
        ),
    ),
    Claim(
        "A54",
        "4.2.4",
        "BERT with MG-WFBP is nearly twice as fast on IB as on 100GbE",
        (
            Part(
                "cells of MG-WFBP for BERT on 100GbIB beside 100GbE beyond one node",
                lambda table: gains(
                    table, "100GbE", IB, lambda c: c.model in BERTS and c.method == "MG-WFBP"
                ),
                "times that on 100GbE",
                Strength.MOST,
                *NEARLY_TWICE,
            ),
        ),
    ),
    Claim(
        "A55",
        "4.2.4",
        "BERT scales poorly on IB even with its best method, and loses most within the node",
        (
            Part(
                "cells of BERT on 100GbIB beyond one node together with its single-GPU rows "
                "(method 'single', gpus 1)",
                best_bert_on_ib,
                "of linear speedup",
                Strength.MOST,
                high=POOR,
            ),
            Part(
                "cells of BERT within one node beside 100GbIB together with its single-GPU rows "
                "(method 'single', gpus 1)",
                bert_lost_in_node,
                "for the loss within the node over all that is lost",
                Strength.MOST,
                low=MAIN_CAUSE,
            ),
        ),
    ),
    Claim(
        "A56",
        "4.2.4",
        "no method is the fastest in every configuration",
        (
            Part(
                "two configurations with all methods of the table, two or more",
                leader_over_best,
                "of the best",
                Strength.ANY,
                high=math.nextafter(1 - EQUAL, 0.0),
            ),
        ),
    ),
    Claim(
        "A57",
        "4.2.1",
        "a larger local batch, as a larger memory allows, scales better in most cells",
        (
            Part(
                "second local_batch of a model (with single-GPU rows or two numbers of GPUs)",
                larger_batches,
                "times the speedup at the smaller batch",
                Strength.MOST,
                low=BETTER,
            ),
        ),
        decided="arithmetic",  # C2C falls with the batch (A07), as do seconds of any forecast
    ),
    Claim(
        "A58",
        "4.2.3",
        "merging fits A2A and partition fits PS: in most cells MG-WFBP is not slower than "
        "ByteScheduler-A2A, and ByteScheduler-PS not slower than WFBP-PS",
        (
            Part(
                "cells of MG-WFBP beside ByteScheduler-A2A",
                lambda table: over(table, "MG-WFBP", "ByteScheduler-A2A"),
                "times ByteScheduler-A2A",
                Strength.MOST,
                low=1.0,
            ),
            Part(
                "cells of ByteScheduler-PS beside WFBP-PS",
                lambda table: over(table, "ByteScheduler-PS", "WFBP-PS"),
                "times WFBP-PS",
                Strength.MOST,
                low=1.0,
            ),
        ),
    ),
)

# The claims by their id in the notes on the survey, in order. A claim has the ``section`` of the
# survey and the ``text`` of its sentence, and the ``parts`` by which `evaluate_claims` judges it.
CLAIMS: dict[str, Claim] = {claim.id: claim for claim in _ALL}


def evaluate_claims(
    rows: pd.DataFrame, *, gpus_per_node: int = GPUS_PER_NODE, whole: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Judge every claim by a throughput table: one row each, with the share of supporting cells.

    ``holds`` is True or False, or None where the table lacks the cells, or where their noise (its
    column ``std``, if there is one) or cells that only the ``whole`` table has leave open what they
    say; ``reason`` says why.
    ``cells`` is the number judged and ``share`` that of the supporting ones, from 0 to 1.
    ``failures`` are the cells against the claim, worst first. A claim of several parts fails with
    any of them, even if another cannot be judged; a cell counts once for each part. ``decided_by``
    is the part on which it stands or falls, in words; ``deciding_support`` of its
    ``deciding_cells`` support it, ``support_at_least`` and ``support_at_most`` whatever the noise
    and its ``missing`` cells say, and ``needed`` says how many of all must. Raises InputError if
    the rows are no table.

    >>> import ddlnb
    >>> resnet50 = ddlnb.read_profile("resnet50_b64_rtx2080ti")
    >>> rows = ddlnb.forecast(resnet50, "survey-10GbE", ["BSP-PS", "BSP-A2A"], gpus=8, draws=0)
    >>> verdicts = ddlnb.survey.evaluate_claims(rows).set_index("claim")
    >>> verdicts.loc["A44", ["holds", "failures"]].to_list()
    [True, '']
    """
    require_whole(gpus_per_node=gpus_per_node)
    rates = cell_rates(rows)
    noises = relative_noises(rows, rates)
    noisy = {cell: Rate(rate, noises.get(cell, 0.0)) for cell, rate in rates.items()}
    table = Table(noisy, gpus_per_node)
    every = table if whole is None else Table(cell_rates(whole), gpus_per_node)
    lines = [judged(claim, table, every) for claim in CLAIMS.values()]
    return pd.DataFrame(lines, columns=COLUMNS).astype({"holds": object})
