"""Half precision: two bytes per element instead of four.

Source: survey of Shi et al. 2020, section 3.1.3 (quantisation). Payloads travel to all workers and
are added up in float32: sums of half-precision numbers would overflow and round once per worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ddlnb.compression.base import Codec, Memory, Round, as_bytes
from ddlnb.compression.packing import NOT_FINITE
from ddlnb.errors import require


@dataclass(frozen=True)
class Half(Codec):
    """Numbers rounded to the nearest of a format of two bytes; beyond its largest, that one."""

    dtype: ClassVar[torch.dtype]
    feedback = "optional"

    def payload_bytes(self, elements: int) -> int:
        return 2 * elements

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """As for every codec. Raises InputError for NaN and infinity."""
        flat = tensor.detach().flatten().float()
        if not len(flat):
            return torch.empty(0, dtype=torch.uint8)
        low, high = (float(extreme) for extreme in torch.aminmax(flat))
        require(math.isfinite(low) and math.isfinite(high), NOT_FINITE)
        most = torch.finfo(self.dtype).max
        if max(-low, high) > most:
            flat = flat.clamp(-most, most)
        return as_bytes(flat.to(self.dtype))

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        # A slice of a longer payload may begin at an odd address, where no number may.
        aligned = payload.clone() if payload.storage_offset() % 2 else payload
        return aligned.view(self.dtype).float()


@dataclass(frozen=True)
class Float16(Half):
    """IEEE half precision: 11 significant bits from 6e-5 to 65504, fewer down to 6e-8."""

    name = "fp16"
    dtype = torch.float16


@dataclass(frozen=True)
class BFloat16(Half):
    """Brain float: the range of float32 with 8 significant bits."""

    name = "bf16"
    dtype = torch.bfloat16
