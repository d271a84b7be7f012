"""NCCL's model of the cost of its algorithms: the constants that it was given by its authors.

Source: NVIDIA NCCL, src/graph/tuning.cc, in data/published/nccl_tuner_constants.csv.
"""

from __future__ import annotations

import csv
import functools

from ddlnb.paths import PUBLISHED
from ddlnb.units import GB, US

PATH = PUBLISHED / "nccl_tuner_constants.csv"
PROTOCOLS = ("LL", "LL128", "Simple")


@functools.cache
def _constants() -> dict[tuple[str, str, str], float]:
    with PATH.open(newline="") as file:
        return {
            (row["table"], row["index"], row["column"]): float(row["value"])
            for row in csv.DictReader(file)
        }


def base_seconds(algorithm: str, protocol: str) -> float:
    """Return what a call costs before its first hop; algorithms that NCCL lists none for have 0."""
    return _constants().get(("baseLatency_us", algorithm, protocol), 0.0) * US


def hop_seconds(link: str, algorithm: str, protocol: str) -> float:
    """Return what a hop over NVLINK, PCI or NET costs.

    >>> round(hop_seconds("NET", "Tree", "Simple") * 1e6)
    14
    """
    return _constants()[(f"hwLatency_us {link}", algorithm, protocol)] * US


def few_bytes_cap(generation: str, nodes: int) -> float:
    """Return the most bytes per second of a ring with the protocol LL."""
    rows = {"Ampere": "Ampere|AMD", "Hopper": "Hopper", "Blackwell": "Blackwell"}
    row = rows.get(generation, "Volta|Intel") if nodes == 1 else "Volta|Intel"
    return _constants()[("llMaxBw_GBps", row, _column(nodes))] * GB


def many_nodes_share(table: str, generation: str, nodes: int) -> float:
    """Return a channel's cap on this many nodes over that on two; 1 on fewer.

    ``table`` is perChMaxTreeBw, perChMaxTreeLL128Bw, perChMaxNVLSTreeBw or perChMaxRingLL128Bw.

    >>> round(many_nodes_share("perChMaxTreeBw", "Ampere", 8), 3)
    0.754
    """
    if nodes <= 2:
        return 1.0
    caps = _constants()
    return caps[(table, generation, _column(nodes))] / caps[(table, generation, "N2")]


def _column(nodes: int) -> str:
    return f"N{nodes}" if nodes <= 2 else "N4"
