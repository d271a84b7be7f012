"""Which rank runs where: placements searched by the traffic matrix, beside orders of axes.

The search sees the matrix and the routes alone, and lowers what links need for their bytes; the
iteration is then played to see what that was worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlnb.networks.channels import Startup
from ddlnb.networks.loads import busiest_seconds, link_bytes
from ddlnb.networks.network import Network, Numbers
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.simulated.iteration import parts_of, play_iteration
from ddlnb.parallelism.traffic import traffic_matrices
from ddlnb.studies.findings import Findings, findings
from ddlnb.studies.layers_codesign.factorial import FLOPS, LLAMA, MEMORY, network_of
from ddlnb.units import MS, seconds_from

Whole = NDArray[np.int64]
BETTER = 1 - 1e-9  # a swap is taken if it lowers the load by more than rounding
STARTS = 4


def searched_placement(
    network: Network, matrix: Numbers, seed: int, starts: int = STARTS
) -> tuple[int, ...]:
    """Return the placement with the least loaded busiest link of those that descents find.

    A descent begins at random and takes the best swap of two ranks, again and again, by the sum of
    squares of what all links need (seconds): the busiest link alone is often two at once.
    """
    seconds = _pair_seconds(network, len(matrix))
    rng = np.random.default_rng(seed)
    found = [_descent(seconds, matrix, rng.permutation(len(matrix))) for _ in range(starts)]
    best = min(found, key=lambda one: busiest_seconds(network, matrix, one.tolist()))
    return tuple(best.tolist())


def _descent(seconds: Numbers, matrix: Numbers, placement: Whole) -> Whole:
    """Return where no swap lowers the load any more."""
    pairs = list(combinations(range(len(matrix)), 2))
    load = _load(seconds, matrix, placement)
    while True:
        tries = [_swapped(placement, one, other) for one, other in pairs]
        loads = [_load(seconds, matrix, one) for one in tries]
        best = int(np.argmin(loads))
        if loads[best] >= load * BETTER:
            return placement
        placement, load = tries[best], loads[best]


def _swapped(placement: Whole, one: int, other: int) -> Whole:
    swapped = placement.copy()
    swapped[[one, other]] = swapped[[other, one]]
    return swapped


def _pair_seconds(network: Network, count: int) -> Numbers:
    """Return the seconds on every link of a byte between two endpoints: [links, from, to]."""
    found = np.zeros((len(network.links), count, count))
    for one in range(count):
        for other in range(count):
            if one != other:
                single = np.zeros((count, count))
                single[one, other] = 1.0
                found[:, one, other] = link_bytes(network, single) / network.bandwidths
    return found


def _load(seconds: Numbers, matrix: Numbers, placement: Whole) -> float:
    moved = np.zeros_like(matrix)
    moved[np.ix_(placement, placement)] = matrix
    loads = seconds.reshape(len(seconds), -1) @ moved.ravel()
    return float(loads @ loads)


def placement_table(
    topologies: Sequence[str],
    layout: str = "dp4 tp4 acc4",
    *,
    per_node: int = 4,
    between: str = "50 GB/s",
    inside: str = "450 GB/s",
    latency: str = "10 us",
    seed: int = 1,
) -> pd.DataFrame:
    """Return placements of a layout's ranks: a row per topology and placement; simulated.

    Columns: ``busiest`` (seconds of the busiest link for its bytes) and ``seconds`` of the played
    iteration. Placements: ``across`` the grain, ``random``, ``searched`` by the matrix,
    and ``along`` the grain: tensor ranks are neighbours.
    """
    along = Layout.parse(layout)
    start = seconds_from(latency)
    matrix = np.sum(list(traffic_matrices(LLAMA.shape, along).values()), axis=0)
    count = along.ranks
    rows = []
    for topology in topologies:
        network = network_of(topology, per_node, between, inside)
        places = {
            "across": tuple(
                rank % along.tp * (count // along.tp) + rank // along.tp for rank in range(count)
            ),
            "random": tuple(np.random.default_rng(seed).permutation(count).tolist()),
            "searched": searched_placement(network, matrix, seed),
            "along": tuple(range(count)),
        }
        for name, placement in places.items():
            line = play_iteration(
                LLAMA.shape,
                along,
                network,
                FLOPS,
                memory_bandwidth=MEMORY,
                startup=Startup(inside=start / 5, between=start),
                placement=placement,
            )
            busiest = busiest_seconds(network, matrix, placement)
            seconds = sum(parts_of(line).values())
            rows.append((topology, name, busiest, seconds))
    columns = ["topology", "placement", "busiest", "seconds"]
    return pd.DataFrame(rows, columns=columns).set_index(["topology", "placement"])


def placement_findings(table: pd.DataFrame) -> Findings:
    """Return what the search did to the busiest link, and to the iteration, in sentences."""
    told = []
    for topology, part in table.groupby(level="topology", sort=False):
        own = part.droplevel("topology")
        before, after, along = (own.loc[name] for name in ("random", "searched", "along"))
        told.append(
            f"{topology}: the busiest link needs {before['busiest'] / MS:,.0f} ms with ranks at "
            f"random and {after['busiest'] / MS:,.0f} ms with searched places "
            f"({along['busiest'] / MS:,.0f} ms with tensor ranks as neighbours); the iteration "
            f"takes {before['seconds'] / MS:,.0f}, {after['seconds'] / MS:,.0f} and "
            f"{along['seconds'] / MS:,.0f} ms."
        )
    return findings(*told)
