"""EF-signSGD: one bit per element and the mean magnitude of the piece, with error feedback.

Source: Karimireddy et al. 2019 (arXiv 1901.09847), algorithm 1. It loses exactly the share
1 - |v|_1^2 / (D |v|_2^2) of the squared norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import (
    CONTRACTION,
    QUANTISATION,
    SURVEY,
    Bound,
    Codec,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
    as_bytes,
)
from ddlnb.compression.packing import (
    flat_values,
    leading_floats,
    magnitudes,
    pack_signs,
    squared_norm,
    unpack_signs,
)

SCALE_BYTES = 4


@dataclass(frozen=True)
class ScaledSign(Codec):
    """Four bytes and one bit per element. Zero counts as positive."""

    name = "ef-sign"
    family = QUANTISATION
    on_gpu = OnGpu(Passes(5, 21), Passes(4, 22))  # and magnitudes, their mean; times the scale
    feedback = "needed"

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        return Quote.of(32, SURVEY)

    def error_bound(self, tensor: Tensor) -> Bound:
        total = tensor.abs().sum(dtype=torch.float64).item()
        loss = 1 - total**2 / (tensor.numel() * squared_norm(tensor))
        return Bound(loss, CONTRACTION, "1 - |v|_1^2 / (D |v|^2)", exact=True)

    def payload_bytes(self, elements: int) -> int:
        return SCALE_BYTES + -(-elements // 8)

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the mean magnitude and the signs. Raises NotFinite."""
        values = flat_values(tensor)
        scale = torch.tensor([magnitudes(values).mean])
        return torch.cat([as_bytes(scale), pack_signs(values)])

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        scale = float(leading_floats(payload, 1)[0])
        return unpack_signs(payload[SCALE_BYTES:], elements, scale)
