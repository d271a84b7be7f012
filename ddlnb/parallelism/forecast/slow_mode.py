"""The slow mode: in some runs every transfer between stages loses a quarter of a second.

Which runs is not known before: it is a chance. Every link between stages on different nodes has the
same small one of being slow, and a run is slow where any of its links is. It is higher where every
replica keeps whole optimizer states, and near one where a rank asks for more memory than there is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS
from ddlnb.parallelism.forecast.parameters import Fitted

MOST_LINKS = 512  # beyond which the chance is kept: runs of at most 60 links say no more
SHORT = 8  # micro batches: with fewer, no run with whole optimizer states was slow
WITHOUT_MEMORY = 0.97  # chance where a rank asks for more than there is: 12 of 13 runs


def chance_of_slow(cases: Cases, fitted: Fitted, lacking: NDArray[np.bool_]) -> Column:
    """Return the chance that a run of each case is slow; ``lacking`` marks a lack of memory.

    1 - exp(-q l) with l links across nodes, of which each is slow with the chance q (Poisson). Zero
    with one stage, one replica or one node, where no run was slow that had all of its micro
    batches, and for frameworks without the mode.
    """
    values = fitted.parameters
    whole = (cases.zero == 0) & (cases.micro_batches > SHORT)
    each = np.exp(values.slow_link + values.slow_whole * whole)
    links = np.minimum(links_across(cases), MOST_LINKS)
    chance = np.where(lacking, WITHOUT_MEMORY, -np.expm1(-each * links))
    able = np.array([framework.slow_transfers for framework in FRAMEWORKS])
    may = able[cases.framework.astype(int)] & (cases.pp > 1) & (cases.dp > 1) & (cases.nodes > 1)
    return np.asarray(np.where(may, chance, 0.0))


def links_across(cases: Cases) -> Column:
    """Return how many links between ranks of neighbouring stages lead to another node.

    Tensors, then replicas lie on neighbouring ranks: a stage that fills nodes is left by all links
    of its ranks, and of smaller stages only the last on a node is.
    """
    ranks = cases.gpus / cases.pp
    boundaries = np.where(ranks >= cases.gpus_per_node, cases.pp, cases.nodes) - 1
    return np.asarray(ranks * boundaries)
