"""TernGrad: every sign is kept with a probability proportional to the magnitude; unbiased.

Source: Wen et al. 2017 (arXiv 1705.07878), section 3. Five ternary digits share a byte: 1.6 bits
per element, where log2(3) = 1.585 would be the least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import (
    NONE,
    QUANTISATION,
    UNBIASED,
    Bound,
    Codec,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
    as_bytes,
)
from ddlnb.compression.kernels import TRITS
from ddlnb.compression.packing import (
    flat_values,
    leading_floats,
    magnitudes,
    pack_ternary,
    seed_from,
    squared_norm,
    unpack_ternary,
)
from ddlnb.errors import require

SCALE_BYTES = 4


@dataclass(frozen=True)
class TernGrad(Codec):
    """Four bytes for the largest magnitude of the piece, and a ternary digit per element.

    ``clip`` first bounds magnitudes by that many standard deviations (2.5 in the paper), which
    trades noise for bias. The deviation is taken from zero, so that a single element is not clipped
    to nothing. Each worker has its own scale. The error is often larger than the gradient; with
    error feedback, the residual then becomes many times as large.
    """

    clip: float | None = None

    name = "terngrad"
    family = QUANTISATION
    # The largest magnitude; over it, draws, compared, times the sign, packed.
    on_gpu = OnGpu(Passes(8, 46), Passes(4, 26))
    feedback = "optional"

    def __post_init__(self) -> None:
        require(
            self.clip is None or 1 <= self.clip < math.inf,
            f"clip {self.clip!r} must be at least 1 standard deviation, or None for no clipping",
        )

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        return Quote.of(32 / math.log2(3))

    def error_bound(self, tensor: Tensor) -> Bound:
        if self.clip is not None:
            return Bound(math.inf, NONE, "clipping loses what it clips")
        total = tensor.abs().sum(dtype=torch.float64).item()
        loss = tensor.abs().max().item() * total / squared_norm(tensor) - 1
        return Bound(loss, UNBIASED, "|v|_max |v|_1 / |v|^2 - 1", exact=True)

    def payload_bytes(self, elements: int) -> int:
        return SCALE_BYTES + -(-elements // TRITS)

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the scale and the digits. Raises NotFinite."""
        values = flat_values(tensor)
        found = magnitudes(values)
        limit = found.largest
        if self.clip is not None:
            limit = min(limit, self.clip * found.root_mean_square)
        digits = pack_ternary(values, limit, seed_from(round_.own()))
        return torch.cat([as_bytes(torch.tensor([limit])), digits])

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        scale = float(leading_floats(payload, 1)[0])
        return unpack_ternary(payload[SCALE_BYTES:], elements, scale)
