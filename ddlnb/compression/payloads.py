"""The payloads of several tensors as one: what travels to a parameter server at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import Codec
from ddlnb.errors import InputError


@dataclass(frozen=True)
class Payloads:
    """The payloads of tensors with so many ``elements`` each, one after the other."""

    codec: Codec
    elements: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """The length of the joined payload."""
        return sum(self.codec.payload_bytes(size) for size in self.elements)

    def joined(self, payloads: Sequence[Tensor]) -> Tensor:
        """One flat uint8 tensor of `payload_bytes`."""
        return torch.cat(list(payloads))

    def decode(self, payload: Tensor) -> Tensor:
        """The flat float32 tensor that a joined payload stands for.

        Raises InputError for a payload of another length.

        >>> from ddlnb.compression.top_k import TopK
        >>> payloads = Payloads(TopK(0.5), (2, 4))
        >>> payloads.decode(torch.zeros(payloads.payload_bytes, dtype=torch.uint8)).tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        """
        if len(payload) != self.payload_bytes:
            raise InputError(
                f"a payload has {len(payload)} bytes and must have {self.payload_bytes}, those of "
                f"{self.codec} for tensors of {self.elements} elements"
            )
        sizes = [self.codec.payload_bytes(size) for size in self.elements]
        parts = zip(payload.split(sizes), self.elements, strict=True)
        # A copy begins at an address at which floats may begin; a slice of bytes may not.
        return torch.cat([self.codec.decode(part.clone(), size) for part, size in parts])
