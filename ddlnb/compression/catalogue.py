"""The compressors there are, by name, and how their parameters are written."""

from __future__ import annotations

import torch

from ddlnb.choices import parsed
from ddlnb.compression.base import Averaged, Compressor, Round
from ddlnb.compression.dgc import DeepGradientCompression
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.half import BFloat16, Float16
from ddlnb.compression.layer_top_k import LayerTopK
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.qsgd import QSGD
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.scaled_sign import ScaledSign
from ddlnb.compression.sign import SignVote
from ddlnb.compression.terngrad import TernGrad
from ddlnb.compression.top_k import TopK
from ddlnb.plans.requests import lockstep

COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (
        *(Float16, BFloat16, SignVote, ScaledSign, QSGD, TernGrad),
        *(TopK, GTopK, RandomK, DeepGradientCompression, PowerSGD),
    )
}
# These are made for one model, so that there is no default that fits any.
FOR_ONE_MODEL: dict[str, type[Compressor]] = {LayerTopK.name: LayerTopK}


def get_compressor(text: str | Compressor | None) -> Compressor | None:
    """The compressor that a text such as ``"top-k(0.01)"`` stands for; None for "none".

    Raises UnknownName and InputError.

    >>> get_compressor("top-k(0.01)")
    TopK(density=0.01)
    """
    if text is None or text == "none" or isinstance(text, Compressor):
        return None if text == "none" else text  # type: ignore[return-value]
    return parsed("compression", text, COMPRESSORS | FOR_ONE_MODEL)


# What kind of compressor it is: found out by what it keeps of a random matrix, not by its name.
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
