"""Everything that the study measures, on one emulated network that is closed afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ddlnb.launch.emulation.network import lacking
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.studies.sec3_2_architectures.all_reduces import fit_link, measure_topologies
from ddlnb.studies.sec3_2_architectures.architectures import (
    architecture_formulas,
    made_up_workload,
    measure_architectures,
)
from ddlnb.studies.sec3_2_architectures.links import asked_link, emulated_ranks


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured among ``nodes`` nodes, and the formulas for the same cells.

    ``links`` is the table of verified links, or the sentence that says why nothing can be emulated
    here; the frames of measured rows are empty then. ``asked`` is a message on a link as asked
    for, ``fitted`` the one that fits the all-reduces best.
    """

    nodes: int
    links: pd.DataFrame | str
    iterations: pd.DataFrame
    formulas: pd.DataFrame
    all_reduces: pd.DataFrame
    asked: AlphaBeta
    fitted: AlphaBeta


def measure_network(
    network: str,
    workers: Sequence[int],
    servers: Sequence[int],
    sizes: Sequence[int],
    *,
    iterations: int,
    repetitions: int,
    rounds: int,
) -> Measured:
    """Train the made-up model with servers and without, then run all-reduces among all nodes."""
    nodes, workload = max(workers) + max(servers), made_up_workload()
    ranks = emulated_ranks(nodes, network, __name__)
    try:
        trained = measure_architectures(
            workload, workers, servers, ranks, iterations=iterations, repetitions=repetitions
        )
        reduced = measure_topologies(ranks, sizes, repetitions=rounds)
    finally:
        if ranks is not None:
            ranks.close()
    return Measured(
        nodes,
        lacking() if ranks is None else ranks.verified,
        trained,
        architecture_formulas(workload, workers, servers, network),
        reduced,
        asked_link(network),
        fit_link(reduced) or asked_link(network),
    )
