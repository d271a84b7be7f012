"""What kind of compressor it is: found out by what it keeps of a random matrix, not by its name."""

from __future__ import annotations

import torch

from ddlnb.compression.base import Averaged, Compressor, Round
from ddlnb.plans.requests import lockstep

QUANTISATION, SPARSIFICATION, LOW_RANK = "quantisation", "sparsification", "low rank"
FAMILIES = (QUANTISATION, SPARSIFICATION, LOW_RANK)
SIDE = 64  # of the matrix


def family(compressor: Compressor) -> str:
    """One of FAMILIES: few values of each entry, few entries, or few directions.

    A sparsifier keeps less than half of the entries and their different values. A compressor is of
    low rank if what it keeps has fewer directions than the matrix. The others round values. A
    sparsifier that keeps half of the entries or more counts as a quantiser.

    >>> from ddlnb.compression.top_k import TopK
    >>> family(TopK(0.01))
    'sparsification'
    """
    matrix = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    [found] = lockstep([compressor.average(matrix, Round(0, 1, 0), {})])
    assert isinstance(found, Averaged)
    kept = found.sent[found.sent != 0]
    if 2 * len(kept) < matrix.numel() and len(kept.unique()) > len(kept) / 2:
        return SPARSIFICATION
    if torch.linalg.matrix_rank(found.sent.view(SIDE, SIDE)) < SIDE / 2:
        return LOW_RANK
    return QUANTISATION
