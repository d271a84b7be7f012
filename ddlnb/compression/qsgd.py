"""QSGD: elements rounded at random, without bias, to a few levels of the norm.

Source: Alistarh et al. 2017 (arXiv 1610.02132), section 3.1. Lemma 3.1: the expected squared error
is at most min(D/s^2, sqrt(D)/s) of the squared norm, with D the elements of a bucket. Codes are of
fixed length here, not Elias codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddlnb.compression.base import (
    QUANTISATION,
    UNBIASED,
    Bound,
    Codec,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
)
from ddlnb.compression.packing import (
    bucket_norms,
    code_bits,
    flat_values,
    leading_floats,
    pack_levels,
    seed_from,
    unpack_levels,
)
from ddlnb.errors import require_whole

NORM_BYTES = 4


@dataclass(frozen=True)
class QSGD(Codec):
    """``levels`` = s above zero and as many below: ceil(log2(2s + 1)) bits per element.

    A norm of four bytes travels for every ``bucket`` elements, or one for the whole tensor. Where
    the error may exceed the squared norm, error feedback accumulates errors instead of correcting
    them: combine it with buckets of at most s^2 elements.
    """

    levels: int = 127
    bucket: int | None = None

    name = "qsgd"
    family = QUANTISATION
    # The norm; magnitudes, over the norm, levels below, draws, compared, added, signs, one byte.
    on_gpu = OnGpu(Passes(10, 69), Passes(3, 25))  # from a byte, times the norm, added
    feedback = "optional"

    def __post_init__(self) -> None:
        require_whole(levels=self.levels)
        code_bits(self.levels)
        if self.bucket is not None:
            require_whole(bucket=self.bucket)

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        return Quote.of(32 / code_bits(self.levels))

    def error_bound(self, tensor: Tensor) -> Bound:
        elements = min(tensor.numel(), self.bucket or tensor.numel())
        loss = min(elements / self.levels**2, math.sqrt(elements) / self.levels)
        return Bound(loss, UNBIASED, "min(D / s^2, sqrt(D) / s)")

    def payload_bytes(self, elements: int) -> int:
        code_bytes = -(-elements * code_bits(self.levels) // 8)
        return NORM_BYTES * self._buckets(elements) + code_bytes

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the norms and the codes. Raises NotFinite, also for norms beyond float32."""
        values = flat_values(tensor)
        bucket = self._bucket(len(values))
        norms = bucket_norms(values, bucket)
        codes = pack_levels(values, norms, bucket, self.levels, seed_from(round_.own()))
        return torch.cat([torch.from_numpy(norms.view(np.uint8)), codes])

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        buckets = self._buckets(elements)
        norms = leading_floats(payload, buckets)
        codes = payload[NORM_BYTES * buckets :]
        return unpack_levels(codes, elements, norms, self._bucket(elements), self.levels)

    def _bucket(self, elements: int) -> int:
        return self.bucket or max(1, elements)

    def _buckets(self, elements: int) -> int:
        return -(-elements // self._bucket(elements))
