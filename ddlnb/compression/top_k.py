"""Top-k: send the k largest entries of the gradient and where they are.

Source: Aji and Heafield 2017; survey of Shi et al. 2020, section 3.1.3. It keeps all but a share
1 - k/D of the squared norm at least, and much more on real gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import Codec, Memory, Round, as_bytes
from ddlnb.errors import require


@dataclass(frozen=True)
class TopK(Codec):
    """``density`` k/D of the entries travel, at least one: four bytes each, four more for where."""

    density: float = 0.01

    name = "top-k"
    feedback = "needed"

    def __post_init__(self) -> None:
        require(0 < self.density <= 1, f"density {self.density!r} must be above 0 and at most 1")

    def kept(self, elements: int) -> int:
        """How many of so many entries travel.

        >>> TopK(0.001).kept(25_000_000)
        25000
        """
        return max(1, round(self.density * elements))

    def payload_bytes(self, elements: int) -> int:
        return 8 * self.kept(elements)

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        flat = tensor.flatten()
        chosen = flat.abs().topk(self.kept(len(flat)), sorted=False).indices
        return torch.cat([as_bytes(chosen.int()), as_bytes(flat[chosen])])

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        kept = self.kept(elements)
        dense = torch.zeros(elements)
        dense[payload[: 4 * kept].view(torch.int32).long()] = payload[4 * kept :].view(
            torch.float32
        )
        return dense
