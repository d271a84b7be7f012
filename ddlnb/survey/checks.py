"""Check a throughput table for cells that cannot be right or contradict their neighbours.

A finding is no proof. It names the cells to look at, so that the errors of a forecast can be
reported with and without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from ddlnb.errors import require, require_whole
from ddlnb.plans.methods import METHODS
from ddlnb.results.rows import (
    GPUS_PER_NODE,
    NETWORKS,
    SINGLE,
    Cell,
    cell_rates,
    cells_of,
    checked_table,
    optional_numbers,
    read_table,
)

# A cell at 90 % of linear speedup gains at most 11 % from a network that costs nothing, hardly more
# than a clear gain: whether the network was the right one does not show in it.
NEAR_LINEAR = 0.90


def faster_networks(
    rates: Mapping[Cell, float], networks: Sequence[str]
) -> Iterator[tuple[Cell, Cell]]:
    """Yield every cell with the same cell on the next faster network that the table has for it."""
    for cell in rates:
        if cell.network in networks:
            faster = networks[networks.index(cell.network) + 1 :]
            there = (cell._replace(network=network) for network in faster)
            if fast := next((other for other in there if other in rates), None):
                yield cell, fast


def is_comparable(other: Cell, cell: Cell) -> bool:
    """Return whether they differ in the method alone, or in the model (and batch) alone."""
    same_model = other[:2] == cell[:2]
    return other.gpus == cell.gpus and same_model != (other.method == cell.method)


def free_seconds(rates: Mapping[Cell, float], cell: Cell, gpus_per_node: int) -> float:
    """Return the seconds per sample and GPU that the cell would have without a network.

    Those of the same method on the most GPUs within one node, else the least of the model, one GPU
    alone included. (GPUs share the PCIe of their node: measured by one GPU alone, what is bound by
    the node would seem to be bound by the network.)
    """
    model = [one for one in rates if one[:2] == cell[:2]]
    own = [one for one in model if one.method == cell.method and one.gpus <= gpus_per_node]
    full = [one for one in own if one.gpus == max(one.gpus for one in own)]
    return min(one.gpus / rates[one] for one in full or model)


def is_near_linear(rates: Mapping[Cell, float], slow: Cell, fast: Cell, gpus_per_node: int) -> bool:
    """Return whether both run nearly at the rate per GPU that they would have without a network."""
    free = free_seconds(rates, slow, gpus_per_node)
    return free * min(rates[slow], rates[fast]) / slow.gpus >= NEAR_LINEAR


def lost_share(
    rates: Mapping[Cell, float], few: Cell, many: Cell, gpus_per_node: int
) -> float | None:
    """Return how long each of many GPUs waits for the network, over how long each of fewer does.

    It is seconds per sample, less those without a network; None if the fewer do not wait.
    """
    free = free_seconds(rates, few, gpus_per_node)
    lost, kept = (cell.gpus / rates[cell] - free for cell in (few, many))
    return kept / lost if lost > 0 else None


def grouped(
    values: Mapping[Cell, float], key: Callable[[Cell], Hashable]
) -> list[dict[Cell, float]]:
    """Return the cells with their values, those together that have one key."""
    groups: dict[Hashable, dict[Cell, float]] = {}
    for cell, value in values.items():
        groups.setdefault(key(cell), {})[cell] = value
    return list(groups.values())


def scaling_curves(rates: Mapping[Cell, float]) -> list[list[Cell]]:
    """Return the cells that differ in the number of GPUs alone, fewest first."""
    rising = dict(sorted(rates.items(), key=lambda pair: pair[0].gpus))
    return [list(curve) for curve in grouped(rising, lambda cell: cell[:4])]


def configuration(cell: Cell, gpus_per_node: int) -> Cell:
    """Return the cell with its network left out where it is not used.

    >>> print(configuration(Cell("resnet50", 64, "10GbE", "MG-WFBP", 4), gpus_per_node=4))
    resnet50/64 one-node MG-WFBP 4 GPUs
    """
    return cell._replace(network="one-node") if cell.gpus <= gpus_per_node else cell


def relative_noises(rows: pd.DataFrame, rates: Mapping[Cell, float]) -> dict[Cell, float]:
    """Return the standard deviation over the throughput of every cell that has one."""
    deviations = zip(rates.items(), optional_numbers(rows, "std"), strict=True)
    return {cell: std / rate for (cell, rate), std in deviations if not math.isnan(std)}


SUSPICIOUS = "suspicious"
NOTE = "note"

# Means of a hundred iterations repeat to about half a percent, so a difference of less than one
# percent between two cells says nothing.
SAME = 0.01
# Ten times SAME: nobody takes this for noise.
CLEAR_GAIN = 0.10
# Three runs of one configuration spread by some 0.6 % of the mean; five times that is no noise.
REPLICATE_SPREAD = 0.03
# N times the GPUs have N times the work done at best. Two cells, each 1 % off, may seem 2 % above.
SUPER_LINEAR = 0.02
# The robust z-score above which Iglewicz and Hoaglin (1993) call a value an outlier.
OUTLIER = 3.5
# Where all noises are alike the z-score calls trifles outliers; twice the usual noise is none.
LEAST_OUTLIER = 2.0
# The median of fewer noises says little about what is usual.
FEWEST_NOISES = 5


@dataclass(frozen=True)
class Finding:
    """What one rule says about some cells. ``severity`` is "suspicious" or "note"."""

    rule: str
    cells: tuple[Cell, ...]
    message: str
    severity: str = SUSPICIOUS


def check(table: str | Path | pd.DataFrame, *, gpus_per_node: int = GPUS_PER_NODE) -> pd.DataFrame:
    """Return one row per finding in a throughput table, a CSV file or a frame; none if all is well.

    The table needs the columns model, local_batch, network, method, gpus and
    throughput_samples_per_s. A finding has a ``severity``, "suspicious" or "note", the ``rule``
    that found it, the ``cells`` to look at, and a ``message``, all texts. Runs with at most
    ``gpus_per_node`` GPUs use no network. Raises ResultsError for a file and InputError for a frame
    that is not such a table.

    >>> import ddlnb
    >>> import pandas as pd
    >>> cells = {"model": "resnet50", "local_batch": 64, "network": "10GbE", "method": "BSP-A2A"}
    >>> rows = pd.DataFrame({"gpus": [8, 16], "throughput_samples_per_s": [1000, 900]})
    >>> rows = rows.assign(**cells)
    >>> ddlnb.results.check(rows)[["severity", "rule"]].values.tolist()
    [['note', 'falls with more GPUs']]
    """
    rows = read_table(table) if isinstance(table, str | Path) else table
    return findings_frame(check_table(rows, gpus_per_node=gpus_per_node))


def check_table(
    rows: pd.DataFrame,
    *,
    networks: Sequence[str] = NETWORKS,
    gpus_per_node: int = GPUS_PER_NODE,
) -> list[Finding]:
    """Return what is suspicious in the table, then what is only worth a note.

    ``networks`` are in order, slowest first; no network is compared that is not among them.
    Cells with at most ``gpus_per_node`` GPUs use no network. Raises InputError for no table.
    """
    require_whole(gpus_per_node=gpus_per_node)
    require(len(set(networks)) == len(networks), f"networks {networks!r} repeats a name")
    rates = cell_rates(rows)
    noises = relative_noises(rows, rates)
    findings = [
        *_dominated_networks(rates, noises, networks, gpus_per_node),
        *_replicates_that_differ(rates, gpus_per_node),
        *_more_than_linear(rates, noises, gpus_per_node),
        *_fewer_with_more(rates),
        *_noise_out_of_line(noises),
        *_outside_its_range(rows, rates),
    ]
    return sorted(findings, key=lambda finding: finding.severity != SUSPICIOUS)


def findings_frame(findings: Iterable[Finding]) -> pd.DataFrame:
    """Return the findings as a table, one row each, the cells as text."""
    lines = [
        {
            "severity": finding.severity,
            "rule": finding.rule,
            "cells": "; ".join(str(cell) for cell in finding.cells),
            "message": finding.message,
        }
        for finding in findings
    ]
    return pd.DataFrame(lines, columns=["severity", "rule", "cells", "message"])


def without_suspicious(rows: pd.DataFrame, findings: Iterable[Finding]) -> pd.DataFrame:
    """Return the rows that no suspicious finding names, unchanged; notes drop nothing."""
    dropped = {cell for f in findings if f.severity == SUSPICIOUS for cell in f.cells}
    kept = [cell not in dropped for cell in cells_of(checked_table(rows))]
    return rows[np.array(kept, dtype=bool)]


# The rules. Each gives its findings; none knows of the others.


def no_difference(least: float, noises: Mapping[Cell, float], *cells: Cell) -> float:
    """Return up to which relative difference the cells are the same: their noise together.

    That is at least ``least``, and half of CLEAR_GAIN at most: the noisiest cell must not pass for
    the same as any other.
    """
    noise = math.hypot(*(noises.get(cell, 0.0) for cell in cells))
    return min(max(least, noise), CLEAR_GAIN / 2)


def _dominated_networks(
    rates: Mapping[Cell, float],
    noises: Mapping[Cell, float],
    networks: Sequence[str],
    gpus_per_node: int,
) -> Iterator[Finding]:
    """Find cells that a faster network does not speed up although it does so for others.

    The usual cause is traffic on the slower interface, so the cell on the faster network is the
    suspect. The others are the same method with another model, or another method with the same
    model, on as many GPUs.
    """
    steps = [step for step in faster_networks(rates, networks) if step[0].gpus > gpus_per_node]
    gains = {step: rates[step[1]] / rates[step[0]] - 1 for step in steps}
    for (slow, fast), gain in gains.items():
        same = no_difference(SAME, noises, slow, fast)
        if gain > same or is_near_linear(rates, slow, fast, gpus_per_node):
            continue
        others = {
            other: other_gain
            for (other_slow, other), other_gain in gains.items()
            if other_gain >= CLEAR_GAIN
            and (other_slow.network, other.network) == (slow.network, fast.network)
            and is_comparable(other, fast)
        }
        if others:
            best = max(others, key=lambda cell: (others[cell], cell))
            yield Finding(
                "dominated network",
                (fast,),
                f"{fast} gains {gain:+.1%} over {slow.network}, {best} {others[best]:+.1%} "
                f"(cells like it that gain {CLEAR_GAIN:.0%} or more: {len(others)}); look whether "
                f"its traffic took the interface of {slow.network}",
            )


def _replicates_that_differ(rates: Mapping[Cell, float], gpus_per_node: int) -> Iterator[Finding]:
    """Find rows within one node that differ by more than noise, although they use no network.

    Which of them is off is unknown, so all are suspects.
    """
    for group in grouped(rates, lambda cell: configuration(cell, gpus_per_node)):
        spread = max(group.values()) / min(group.values()) - 1
        if spread > REPLICATE_SPREAD:
            yield Finding(
                "replicates differ",
                tuple(group),
                f"{configuration(min(group), gpus_per_node)} uses no network, yet its {len(group)} "
                f"rows spread by {spread:.1%}, more than {REPLICATE_SPREAD:.0%}",
            )


def _more_than_linear(
    rates: Mapping[Cell, float], noises: Mapping[Cell, float], gpus_per_node: int
) -> Iterator[Finding]:
    """Find throughput that grows by more than the number of GPUs; either cell may be wrong.

    With parameter servers it may: every node of GPUs brings a server, so that with N times the
    nodes a node sends to N times as many, each with connections of its own. Where these are the
    limit, the wait for the network falls, at most to 1 / N. Down to there it is only a note.
    """
    for curve in scaling_curves(rates):
        for few, many in pairwise(curve):
            times = many.gpus / few.gpus
            excess = rates[many] / rates[few] / times - 1
            if excess <= no_difference(SUPER_LINEAR, noises, few, many):
                continue
            said, severity = f"{many} is {excess:.1%} above {times:g} times {few}", SUSPICIOUS
            share = lost_share(rates, few, many, gpus_per_node)
            if few.gpus > gpus_per_node and has_servers(few) and share is not None:
                severity = NOTE if share >= 1 / times else SUSPICIOUS
                explained = f"{1 / times:.0%} or more" if severity == NOTE else "no such fall"
                said += (
                    f"; a sample's wait for the network fell to {share:.0%} of what it was: "
                    f"{times:g} times the servers explain {explained}"
                )
            yield Finding("more than linear", (few, many), said, severity)
        yield from _more_than_alone(rates, curve)


def has_servers(cell: Cell) -> bool:
    """Return whether the cell's method is known to exchange through parameter servers."""
    return cell.method in METHODS and METHODS[cell.method].architecture == "PS"


def _more_than_alone(rates: Mapping[Cell, float], curve: Sequence[Cell]) -> Iterator[Finding]:
    """Find cells that have more than one GPU alone, times their number."""
    alone = [one for one in rates if one.method == SINGLE and one[:2] == curve[0][:2]]
    if not alone or curve[0].method == SINGLE:
        return
    rate = median(rates[single] / single.gpus for single in alone)
    for cell in curve:
        excess = rates[cell] / (cell.gpus * rate) - 1
        if excess > SUPER_LINEAR:
            said = f"{cell} is {excess:.1%} above {cell.gpus} times one GPU alone"
            yield Finding("more than linear", (*alone, cell), said)


def _fewer_with_more(rates: Mapping[Cell, float]) -> Iterator[Finding]:
    """Find throughput that falls with more GPUs. Slow networks do that, so it is only a note."""
    for curve in scaling_curves(rates):
        for few, many in pairwise(curve):
            loss = 1 - rates[many] / rates[few]
            if loss > SAME:
                yield Finding(
                    "falls with more GPUs",
                    (few, many),
                    f"{many} is {loss:.1%} below {few}",
                    NOTE,
                )


def _noise_out_of_line(noises: Mapping[Cell, float]) -> Iterator[Finding]:
    """Find cells whose relative noise is far above the table's.

    The robust z-score (x - median) / (1.4826 MAD) of logarithms, because noise is skewed: it is
    never below zero, and its factors are alike rather than its differences.
    """
    positive = {cell: noise for cell, noise in noises.items() if noise > 0}
    if len(positive) < FEWEST_NOISES:
        return
    logs = np.log(list(positive.values()))
    middle = float(np.median(logs))
    scale = 1.4826 * float(np.median(np.abs(logs - middle)))
    limit = math.exp(middle + max(OUTLIER * scale, math.log(LEAST_OUTLIER)))
    for cell, noise in positive.items():
        if noise > max(limit, SAME):  # less than SAME harms nobody
            yield Finding(
                "noise out of line",
                (cell,),
                f"{cell} has a std of {noise:.1%} of its throughput, the median of the table "
                f"is {math.exp(middle):.1%}",
            )


def _outside_its_range(rows: pd.DataFrame, rates: Mapping[Cell, float]) -> Iterator[Finding]:
    """Find cells whose ``low`` is above or whose ``high`` is below the throughput."""
    bounds = zip(
        rates.items(), optional_numbers(rows, "low"), optional_numbers(rows, "high"), strict=True
    )
    for (cell, rate), low, high in bounds:
        if low > rate or high < rate:  # false for empty bounds, which are NaN
            yield Finding(
                "outside its range",
                (cell,),
                f"{cell} has {rate:g} samples/s, not between low {low:g} and high {high:g}",
            )
