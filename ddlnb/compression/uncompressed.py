"""No compression, as a compressor: for pieces that need none among others that do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import (
    CONTRACTION,
    Averaged,
    Bound,
    Codec,
    Memory,
    Round,
    Traffic,
    as_bytes,
)
from ddlnb.plans.requests import AllReduce, Flow

ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Uncompressed(Codec):
    """One all-reduce of the whole tensor; a payload holds its float32 numbers."""

    name = "uncompressed"
    feedback = "optional"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """All-reduce the tensor; all of it is ``sent``, so that feedback keeps zeros."""
        total = yield AllReduce(tensor.detach().flatten().clone())
        return Averaged((total / round_.workers).view_as(tensor), tensor)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return [Traffic(AllReduce, self.payload_bytes(math.prod(shape)))]

    def error_bound(self, tensor: Tensor) -> Bound:
        return Bound(0.0, CONTRACTION, "nothing is lost", exact=True)

    def payload_bytes(self, elements: int) -> int:
        return ELEMENT_BYTES * elements

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        return as_bytes(tensor.detach()).clone()

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return payload.clone().view(torch.float32)
