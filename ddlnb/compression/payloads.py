"""The payloads of several tensors joined into one, as they travel to a parameter server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ddlnb.compression.base import Codec
from ddlnb.errors import InputError


@dataclass(frozen=True)
class Payloads:
    """The payloads of tensors with these numbers of ``elements``, one after the other.

    Raises InputError for a codec that was made for another number of tensors.
    """

    codec: Codec
    elements: tuple[int, ...]

    @cached_property
    def codecs(self) -> tuple[Codec, ...]:
        """The codec of every tensor."""
        return self.codec.for_pieces(len(self.elements))

    @cached_property
    def sizes(self) -> list[int]:
        """The length of every payload."""
        pairs = zip(self.codecs, self.elements, strict=True)
        return [codec.payload_bytes(elements) for codec, elements in pairs]

    @property
    def payload_bytes(self) -> int:
        """The length of the joined payload."""
        return sum(self.sizes)

    def decode(self, payload: Tensor) -> Tensor:
        """Return the flat float32 tensor that a joined payload stands for.

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
        parts = zip(self.codecs, payload.split(self.sizes), self.elements, strict=True)
        # A copy is aligned for floats; a slice of bytes need not be.
        return torch.cat([codec.decode(part.clone(), size) for codec, part, size in parts])
