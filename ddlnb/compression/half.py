"""Half precision: two bytes per element instead of four.

All-reduced in two hops: every worker sums one part for all, in float32, and sends the average on
with two bytes per element, too. So numbers are rounded twice, whatever the number of workers, and
sums do not overflow; what the second rounding loses the worker that sums counts as not sent. On
servers and to neighbours payloads travel whole. Source: survey of Shi et al. 2020, section 3.1.3
(quantisation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ddlnb.compression.base import (
    Averaged,
    Codec,
    Memory,
    Round,
    Traffic,
    as_bytes,
    elements_of,
)
from ddlnb.compression.packing import require_finite
from ddlnb.exchange import AllGather, Flow, Messages


@dataclass(frozen=True)
class Half(Codec):
    """Numbers rounded to the nearest of a format of two bytes; beyond its largest, that one."""

    dtype: ClassVar[torch.dtype]
    feedback = "optional"

    def payload_bytes(self, elements: int) -> int:
        return 2 * elements

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        rank, workers = round_.rank, round_.workers
        own = self.encode(tensor, round_, memory).view(self.dtype)
        size = _part(len(own), workers)
        parts = torch.nn.functional.pad(own, (0, workers * size - len(own))).view(workers, size)
        others = [other for other in range(workers) if other != rank]
        arrived = yield Messages(
            {other: as_bytes(parts[other]) for other in others},
            {other: 2 * size for other in others},
        )
        mean = torch.zeros(size)
        for worker in range(workers):
            mean += (parts[rank] if worker == rank else arrived[worker].view(self.dtype)).float()
        mean /= workers
        rounded = mean.to(self.dtype)
        gathered = yield AllGather(as_bytes(rounded))
        average = torch.cat([part.view(self.dtype) for part in gathered]).float()[: len(own)]
        sent = parts.float()
        sent[rank] += workers * (rounded.float() - mean)
        return Averaged(average.view_as(tensor), sent.view(-1)[: len(own)].view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        bytes_ = 2 * _part(elements_of(shape), workers)
        return [Traffic(Messages, (workers - 1) * bytes_), Traffic(AllGather, bytes_)]

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """As for every codec. Raises NotFinite."""
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
        # A slice of a longer payload may begin at an odd address, where no number may.
        aligned = payload.clone() if payload.storage_offset() % 2 else payload
        return aligned.view(self.dtype).float()


def _part(elements: int, workers: int) -> int:
    """The elements that a worker sums: a share of all, rounded up."""
    return -(-elements // workers)


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
