"""What the survey's claims compare: values by the cell that a claim praises or blames."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ddlnb.plans.methods import SURVEYED
from ddlnb.results.claim import Table, Values
from ddlnb.results.table import Cell

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
