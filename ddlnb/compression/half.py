"""Half precision: two bytes per element instead of four.

Averages are made as by NCCL, Horovod's fp16 compression and the hooks of DistributedDataParallel:
every worker divides by the number of workers and rounds, and one all-reduce sums the numbers of two
bytes. Partial sums are rounded, too, so the error grows with the number of workers, and no residual
keeps what they lose. A sum beyond the largest number of the format is infinite there and here; what
one worker puts in is cut to that number. To servers and to neighbours payloads travel whole.
Source: survey of Shi et al. 2020, section 3.1.3 (quantisation);
`torch.distributed.algorithms.ddp_comm_hooks.default_hooks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ddlnb.compression.base import (
    QUANTISATION,
    ROUNDING,
    Averaged,
    Bound,
    Codec,
    Memory,
    OnGpu,
    Passes,
    Quote,
    Round,
    Traffic,
    as_bytes,
)
from ddlnb.compression.packing import require_finite, squared_norm
from ddlnb.plans.requests import AllReduce, Flow


@dataclass(frozen=True)
class Half(Codec):
    """Numbers rounded to the nearest one of a two-byte format, or to its largest one."""

    dtype: ClassVar[torch.dtype]
    family = QUANTISATION
    feedback = "optional"
    on_gpu = OnGpu(Passes(2, 14), Passes(1, 6))  # the share and its rounding; back to 4 bytes

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote:
        return Quote.of(2)

    def error_bound(self, tensor: Tensor) -> Bound:
        about = torch.finfo(self.dtype)
        if tensor.numel() and tensor.abs().max().item() > about.max:
            return Bound(1.0, ROUNDING, "cut to the largest number")
        unit = about.eps / 2
        least = about.tiny * unit  # half the distance of the numbers near zero
        floor = tensor.numel() * least**2 / squared_norm(tensor)
        return Bound(unit**2 + floor, ROUNDING, "half a unit in the last place")

    def payload_bytes(self, elements: int) -> int:
        return 2 * elements

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Return the average by one all-reduce; ``sent`` is what this worker put into it."""
        share = self.encode(tensor / round_.workers, round_, memory).view(self.dtype)
        sent = share.float().mul_(round_.workers)  # the answer may reuse the share's memory
        total = yield AllReduce(share)
        return Averaged(total.float().view_as(tensor), sent.view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllReduce, self.declared_bytes(math.prod(shape)))]

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return the rounded numbers. Raises NotFinite."""
        flat = tensor.detach().flatten().float()
        if not len(flat):
            return torch.empty(0, dtype=torch.uint8)
        low, high = (float(extreme) for extreme in torch.aminmax(flat))
        require_finite(low, high)
        most = torch.finfo(self.dtype).max
        if max(-low, high) > most:
            flat = flat.clamp(-most, most)
        return as_bytes(flat.to(self.dtype))

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        # A slice of a longer payload may begin at an odd address, where no number can begin.
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
