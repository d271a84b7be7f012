"""Relate the cells of a throughput table: faster networks, scaling curves, replicates, noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from ddlnb.results.table import Cell, optional_numbers

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


def is_near_linear(rates: Mapping[Cell, float], slow: Cell, fast: Cell, gpus_per_node: int) -> bool:
    """Return whether both run nearly at the rate per GPU that they would have without a network.

    That is the rate of the same method on the most GPUs within one node, else the highest of the
    model, one GPU alone included. (GPUs share the PCIe of their node: measured by one GPU alone,
    what is bound by the node would seem to be bound by the network.)
    """
    model = [cell for cell in rates if cell[:2] == slow[:2]]
    own = [c for c in model if c.method == slow.method and c.gpus <= gpus_per_node]
    full = [cell for cell in own if cell.gpus == max(cell.gpus for cell in own)]
    free = max(rates[cell] / cell.gpus for cell in full or model)
    return min(rates[slow], rates[fast]) / slow.gpus >= NEAR_LINEAR * free


def scaling_curves(rates: Mapping[Cell, float]) -> list[list[Cell]]:
    """Return the cells that differ in the number of GPUs alone, fewest first."""
    curves: dict[tuple[object, ...], list[Cell]] = {}
    for cell in sorted(rates, key=lambda cell: cell.gpus):
        curves.setdefault(cell[:4], []).append(cell)
    return list(curves.values())


def configuration(cell: Cell, gpus_per_node: int) -> Cell:
    """Return the cell with its network left out where it is not used.

    >>> print(configuration(Cell("resnet50", 64, "10GbE", "MG-WFBP", 4), gpus_per_node=4))
    resnet50/64 one-node MG-WFBP 4 GPUs
    """
    return cell._replace(network="one-node") if cell.gpus <= gpus_per_node else cell


def replicates(rates: Mapping[Cell, float], gpus_per_node: int) -> dict[Cell, dict[Cell, float]]:
    """Return the rows of every configuration that has several."""
    groups: dict[Cell, dict[Cell, float]] = {}
    for cell, rate in rates.items():
        groups.setdefault(configuration(cell, gpus_per_node), {})[cell] = rate
    return {configuration: group for configuration, group in groups.items() if len(group) > 1}


def spread_of(group: Mapping[Cell, float]) -> float:
    """Return how far the largest throughput is above the smallest, relatively."""
    return max(group.values()) / min(group.values()) - 1


def relative_noises(rows: pd.DataFrame, rates: Mapping[Cell, float]) -> dict[Cell, float]:
    """Return the standard deviation over the throughput of every cell that has one."""
    deviations = zip(rates.items(), optional_numbers(rows, "std"), strict=True)
    return {cell: std / rate for (cell, rate), std in deviations if not math.isnan(std)}
