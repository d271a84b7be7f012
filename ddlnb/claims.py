"""What section 4 of the survey says about its figure, as predicates over a throughput table.

How words become numbers: an order without qualifier ("not slower", "no gain") must hold in every
cell, up to EQUAL, since noise must not refute it. "Most" is more than half of the cells, and a size
("clearly", "about", "nearly", "poorly") is that of the typical cell, so it too must hold in most;
there a tie counts only where the claim includes it. Claims about a network are judged by cells
beyond one node, because the others do not use it; the rest by every cell there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median

import pandas as pd

from ddlnb.errors import require_whole
from ddlnb.methods import METHODS
from ddlnb.table_checks import GPUS_PER_NODE, SINGLE, Cell, cell_rates

TCP = ("10GbE", "100GbE")  # the networks of high latency
IB = "100GbIB"
BERTS = ("bert-base", "bert-large")
# PS and A2A with the same schedule; MG-WFBP has no twin.
TWINS = (
    ("BSP-PS", "BSP-A2A"),
    ("WFBP-PS", "WFBP-A2A"),
    ("ByteScheduler-PS", "ByteScheduler-A2A"),
)

BETTER = math.nextafter(1.0, 2.0)  # the smallest ratio above 1: a tie is no win
EQUAL = 0.02  # some three times the usual spread of repetitions, 0.6 %
CLEAR = 0.05  # "well above", "clearly above": more than twice EQUAL, so no matter of noise
MANY_GPUS = 32  # "at 32 workers", the most the survey has
TEN_TO_EIGHTY_PERCENT = (1.10, 1.80)  # as the survey says
ABOUT_15_PERCENT = (1.05, 1.25)  # "about +15 %": a CLEAR gain at least, and as far above 15 %
NEARLY_TWICE = (1.6, 2.2)  # "nearly 2x": a fifth less, and for noise a tenth more
POOR = 0.80  # "poorly": BERT-Base's 72.5 % (A41) is meant by it, ResNet-50's 98.8 % (A40) is not
MAIN_CAUSE = 0.5  # "because of": what explains more than half of a loss

FAILURES_SHOWN = 5
COLUMNS = ["claim", "section", "text", "holds", "cells", "share", "failures", "reason"]

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


def evaluate_claims(rows: pd.DataFrame, *, gpus_per_node: int = GPUS_PER_NODE) -> pd.DataFrame:
    """One row per claim: whether it holds in this table, and in which share of how many cells.

    ``holds`` is None where the table lacks the cells, and ``reason`` says which. ``failures`` are
    the cells against the claim, worst first. A claim of several parts fails with any of them, even
    if another cannot be judged; a cell counts once for each part. Raises InputError if the rows
    are no table.
    """
    require_whole(gpus_per_node=gpus_per_node)
    table = Table(cell_rates(rows), gpus_per_node)
    lines = [_judged(claim, table) for claim in CLAIMS.values()]
    return pd.DataFrame(lines, columns=COLUMNS).astype({"holds": object})


def _judged(claim: Claim, table: Table) -> dict[str, object]:
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


# The values that claims are about. Each belongs to the cell that the claim praises or blames.


def _any(cell: Cell) -> bool:
    return True


def _over(table: Table, above: str, below: str, keep: Callable[[Cell], bool] = _any) -> Values:
    """The throughput of one method over another's in the same configuration."""
    return {
        cell: rate / table.rates[other]
        for cell, rate in table.rates.items()
        if cell.method == above
        and keep(cell)
        and (other := cell._replace(method=below)) in table.rates
    }


def _gains(table: Table, slow: str, fast: str, keep: Callable[[Cell], bool] = _any) -> Values:
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


def _more_than_on_ib(
    table: Table, above: str, below: str, keep: Callable[[Cell], bool] = _any
) -> Values:
    """The ratio of two methods on a TCP network over their ratio on IB, beyond one node."""
    ratios = _over(table, above, below, keep)
    return {
        cell: ratio / ratios[on_ib]
        for cell, ratio in ratios.items()
        if cell.network in TCP
        and table.uses_network(cell)
        and (on_ib := cell._replace(network=IB)) in ratios
    }


def _ps_over_a2a_on_tcp(table: Table) -> Values:
    """The throughput of PS over that of A2A with the same schedule, on TCP beyond one node."""
    return {
        cell: ratio
        for ps, a2a in TWINS
        for cell, ratio in _over(table, ps, a2a, table.uses_network).items()
        if cell.network in TCP
    }


def _a2a_growth_over_ps(table: Table) -> Values:
    """The growth of A2A over that of PS with the same schedule, on IB.

    The growth is from the fewest GPUs of the table to the most, which must be beyond one node.
    """
    found = {}
    for ps, a2a in TWINS:
        curves: dict[tuple, list[Cell]] = {}
        ratios = _over(table, a2a, ps, lambda cell: cell.network == IB)
        for cell in sorted(ratios, key=lambda cell: cell.gpus):
            curves.setdefault(cell[:2], []).append(cell)
        for curve in curves.values():
            if len(curve) > 1 and table.uses_network(curve[-1]):
                found[curve[-1]] = ratios[curve[-1]] / ratios[curve[0]]
    return found


def _best_bert(table: Table, keep: Callable[[Cell], bool]) -> Values:
    """The share of linear speedup that BERT's best method reaches in every configuration."""
    best: dict[Cell, tuple[float, Cell]] = {}
    for cell, rate in table.rates.items():
        if cell.model in BERTS and cell.method in METHODS and keep(cell):
            place = cell._replace(method="")
            if single := table.single(cell):
                found = (rate / cell.gpus / single, cell)
                best[place] = max(best.get(place, found), found)
    return {cell: efficiency for efficiency, cell in best.values()}


def _best_bert_on_ib(table: Table) -> Values:
    """The share of linear speedup that BERT's best method reaches on IB beyond one node."""
    return _best_bert(table, lambda c: c.network == IB and table.uses_network(c))


def _bert_lost_in_node(table: Table) -> Values:
    """The share of linear speedup lost within one node over that lost on IB; 0 if none is lost."""
    within = _best_bert(table, lambda c: c.gpus > 1 and not table.uses_network(c))
    found = {}
    for cell, efficiency in _best_bert_on_ib(table).items():
        alike = [one for one in within if one[:2] == cell[:2]]
        if alike:
            full = max(one.gpus for one in alike)
            in_node = max(within[one] for one in alike if one.gpus == full)
            found[cell] = (1 - in_node) / (1 - efficiency) if efficiency < 1 else 0.0
    return found


def _leader_over_best(table: Table) -> Values:
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


def _larger_batches(table: Table) -> Values:
    """The speedup at a larger local batch over that at the model's next smaller one.

    Speedup over one GPU alone where the table has it for both batches, else over the fewest GPUs
    at which the table has both cells.
    """
    batches: dict[str, set[int]] = {}
    for cell in table.rates:
        batches.setdefault(cell.model, set()).add(cell.local_batch)
    found: Values = {}
    first: dict[tuple, float] = {}
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


# The claims, in the order of their ids.

_ALL = (
    Claim(
        "A44",
        "4.2.2",
        "BSP-A2A is faster than BSP-PS in most cells",
        (
            Part(
                "cells of BSP-A2A beside BSP-PS",
                lambda table: _over(table, "BSP-A2A", "BSP-PS"),
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
                lambda table: _over(
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
                lambda table: _more_than_on_ib(
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
                lambda table: _over(table, "MG-WFBP", "WFBP-PS"),
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
                _ps_over_a2a_on_tcp,
                "times its A2A twin",
                Strength.MOST,
                low=BETTER,
            ),
            Part(
                "PS beside A2A with the same schedule for two numbers of GPUs on 100GbIB, "
                "the larger beyond one node",
                _a2a_growth_over_ps,
                "times the growth of its PS twin",
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
                lambda table: (
                    _over(table, "WFBP-PS", "BSP-PS") | _over(table, "WFBP-A2A", "BSP-A2A")
                ),
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
                lambda table: _over(table, "MG-WFBP", "WFBP-A2A", table.uses_network),
                "times WFBP-A2A",
                Strength.MOST,
                low=1 + CLEAR,
            ),
            Part(
                "cells of MG-WFBP beside WFBP-A2A on TCP and on 100GbIB beyond one node",
                lambda table: _more_than_on_ib(table, "MG-WFBP", "WFBP-A2A"),
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
                lambda table: _over(table, "ByteScheduler-A2A", "WFBP-A2A"),
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
                lambda table: _over(
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
                lambda table: _gains(table, "10GbE", "100GbE"),
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
                lambda table: _gains(
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
                lambda table: _gains(
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
                _best_bert_on_ib,
                "of linear speedup",
                Strength.MOST,
                high=POOR,
            ),
            Part(
                "cells of BERT within one node beside 100GbIB together with its single-GPU rows "
                "(method 'single', gpus 1)",
                _bert_lost_in_node,
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
                _leader_over_best,
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
                _larger_batches,
                "times the speedup at the smaller batch",
                Strength.MOST,
                low=BETTER,
            ),
        ),
    ),
    Claim(
        "A58",
        "4.2.3",
        "merging fits A2A and partition fits PS: in most cells MG-WFBP is not slower than "
        "ByteScheduler-A2A, and ByteScheduler-PS not slower than WFBP-PS",
        (
            Part(
                "cells of MG-WFBP beside ByteScheduler-A2A",
                lambda table: _over(table, "MG-WFBP", "ByteScheduler-A2A"),
                "times ByteScheduler-A2A",
                Strength.MOST,
                low=1.0,
            ),
            Part(
                "cells of ByteScheduler-PS beside WFBP-PS",
                lambda table: _over(table, "ByteScheduler-PS", "WFBP-PS"),
                "times WFBP-PS",
                Strength.MOST,
                low=1.0,
            ),
        ),
    ),
)

CLAIMS: dict[str, Claim] = {claim.id: claim for claim in _ALL}
