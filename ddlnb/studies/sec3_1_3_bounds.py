"""What theory says a compressor loses of a tensor's squared norm, in one round without memory.

Of the mean over its random draws. For those that draw nothing that is the loss itself.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from ddlnb.compression.base import Compressor
from ddlnb.compression.dgc import DeepGradientCompression
from ddlnb.compression.gtop_k import GTopK
from ddlnb.compression.half import Half
from ddlnb.compression.powersgd import PowerSGD
from ddlnb.compression.qsgd import QSGD
from ddlnb.compression.random_k import RandomK
from ddlnb.compression.scaled_sign import ScaledSign
from ddlnb.compression.sparse import kept
from ddlnb.compression.terngrad import TernGrad
from ddlnb.compression.top_k import TopK

CONTRACTION, UNBIASED, ROUNDING, NONE = "contraction", "unbiased", "rounding", "no bound"


class Bound(NamedTuple):
    """``loss``: mean |Q(v) - v|^2 is at most so much of |v|^2, or as much where ``exact``."""

    loss: float
    law: str
    formula: str
    exact: bool = False


@singledispatch
def error_bound(compressor: Compressor, tensor: Tensor) -> Bound:
    """The bound for this tensor, which must not be zero everywhere."""
    return Bound(math.inf, NONE, "magnitudes are lost")


@error_bound.register
def _(compressor: Half, tensor: Tensor) -> Bound:
    about = torch.finfo(compressor.dtype)
    unit = about.eps / 2
    least = about.tiny * unit  # half the distance of the numbers near zero
    floor = tensor.numel() * least**2 / _squares(tensor)
    return Bound(unit**2 + floor, ROUNDING, "half a unit in the last place")


@error_bound.register
def _(compressor: ScaledSign, tensor: Tensor) -> Bound:
    total = tensor.abs().sum(dtype=torch.float64).item()
    loss = 1 - total**2 / (tensor.numel() * _squares(tensor))
    return Bound(loss, CONTRACTION, "1 - |v|_1^2 / (D |v|^2)", exact=True)


@error_bound.register
def _(compressor: QSGD, tensor: Tensor) -> Bound:
    elements = min(tensor.numel(), compressor.bucket or tensor.numel())
    levels = compressor.levels
    return Bound(
        min(elements / levels**2, math.sqrt(elements) / levels),
        UNBIASED,
        "min(D / s^2, sqrt(D) / s)",
    )


@error_bound.register
def _(compressor: TernGrad, tensor: Tensor) -> Bound:
    if compressor.clip is not None:
        return Bound(math.inf, NONE, "clipping loses what it clips")
    total = tensor.abs().sum(dtype=torch.float64).item()
    loss = tensor.abs().max().item() * total / _squares(tensor) - 1
    return Bound(loss, UNBIASED, "|v|_max |v|_1 / |v|^2 - 1", exact=True)


@error_bound.register(TopK)
@error_bound.register(GTopK)
@error_bound.register(DeepGradientCompression)
def _(compressor: TopK | GTopK | DeepGradientCompression, tensor: Tensor) -> Bound:
    share = kept(compressor.density, tensor.numel()) / tensor.numel()
    return Bound(1 - share, CONTRACTION, "1 - k / D")


@error_bound.register
def _(compressor: RandomK, tensor: Tensor) -> Bound:
    share = kept(compressor.density, tensor.numel()) / tensor.numel()
    if compressor.unbiased:
        return Bound(1 / share - 1, UNBIASED, "D / k - 1", exact=True)
    return Bound(1 - share, CONTRACTION, "1 - k / D", exact=True)


@error_bound.register
def _(compressor: PowerSGD, tensor: Tensor) -> Bound:
    """A random subspace of r of b columns keeps r/b in the mean; a power iteration keeps more."""
    formula = "1 - r / b, vectors whole"
    sides = compressor.factored(tuple(tensor.shape))
    if sides is None:
        return Bound(0.0, CONTRACTION, formula)
    return Bound(max(0.0, 1 - compressor.rank / sides[1]), CONTRACTION, formula)


def _squares(tensor: Tensor) -> float:
    return tensor.double().square().sum().item()
