"""The slow mode: in some runs every transfer between stages loses a quarter of a second.

Which runs is not known before: it is a chance. It grows with nodes, is high where every replica
keeps whole optimizer states, and near one where a rank asks for more memory than there is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ddlnb.parallelism.forecast.cases import Cases, Column
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS
from ddlnb.parallelism.forecast.parameters import Fitted

MOST_NODES = 32  # beyond which the chance is kept: runs on at most 8 nodes say no more
SHORT = 8  # micro batches: with fewer, no run with whole optimizer states was slow
WITHOUT_MEMORY = 0.97  # chance where a rank asks for more than there is: 12 of 12 runs


def chance_of_slow(cases: Cases, fitted: Fitted, lacking: NDArray[np.bool_]) -> Column:
    """Return the chance that a run of each case is slow; ``lacking`` marks a lack of memory.

    Logistic in the logarithm of the nodes. Zero with one stage, one replica or one node, where no
    run was slow that had all of its micro batches, and for frameworks without the mode.
    """
    values = fitted.parameters
    whole = (cases.zero == 0) & (cases.micro_batches > SHORT)
    doublings = np.log2(np.minimum(cases.nodes, MOST_NODES))
    odds = values.slow_odds + values.slow_growth * doublings + values.slow_whole * whole
    chance = np.where(lacking, WITHOUT_MEMORY, 1 / (1 + np.exp(-odds)))
    able = np.array([framework.slow_transfers for framework in FRAMEWORKS])
    may = able[cases.framework.astype(int)] & (cases.pp > 1) & (cases.dp > 1) & (cases.nodes > 1)
    return np.asarray(np.where(may, chance, 0.0))
