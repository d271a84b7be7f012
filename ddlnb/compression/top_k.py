"""Top-k: send the k largest entries of the gradient and their indices.

Source: Aji and Heafield 2017; survey of Shi et al. 2020, section 3.1.3. It keeps at least a share
k/D of the squared norm, and much more on real gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ddlnb.compression.base import Codec, Memory, OnGpu, Passes, Round
from ddlnb.compression.sparse import (
    ENTRY_BYTES,
    Sparsifier,
    add_payload,
    kept,
    largest_entries,
    total_of,
)


@dataclass(frozen=True)
class TopK(Sparsifier, Codec):
    """A share ``density`` = k/D of the entries travels: four bytes each, and four for the index."""

    name = "top-k"
    # Magnitudes, four passes of a radix selection, one that gathers; k values and indices.
    on_gpu = OnGpu(Passes(12, 36), Passes(2, 4))
    feedback = "needed"

    def payload_bytes(self, elements: int) -> int:
        return ENTRY_BYTES * kept(self.density, elements)

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        return largest_entries(tensor, kept(self.density, tensor.numel())).payload()

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return total_of([payload], elements)

    def add(self, payload: Tensor, total: Tensor) -> None:
        add_payload(payload, total)
