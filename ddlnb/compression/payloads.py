"""The payloads of several tensors joined into one, as they travel to a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ddlnb.compression.base import Codec, Encoder, Voting
from ddlnb.errors import InputError
from ddlnb.seeding import generator


@dataclass(frozen=True)
class Payloads:
    """The payloads of tensors with these numbers of ``elements``, one after the other.

    Raises InputError for a codec that was made for another number of tensors.
    """

    codec: Encoder
    elements: tuple[int, ...]

    @cached_property
    def codecs(self) -> tuple[Encoder, ...]:
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
        parts = []
        for codec, part, size in zip(self.codecs, self._split(payload), self.elements, strict=True):
            assert isinstance(codec, Codec), f"payloads of {codec} stand for no tensor"
            parts.append(codec.decode(part, size))
        return torch.cat(parts)

    def tally(self, payloads: Sequence[Tensor], clock: int) -> Tensor:
        """Return the joined payload of the outcome of a vote, the ``clock``-th of all.

        Raises InputError for a payload of another length.
        """
        split = [self._split(payload) for payload in payloads]
        parts = []
        for piece, (codec, size) in enumerate(zip(self.codecs, self.elements, strict=True)):
            assert isinstance(codec, Voting), f"payloads of {codec} are no votes"
            draw = generator(clock, piece)
            parts.append(codec.tally([one[piece] for one in split], size, draw))
        return torch.cat(parts)

    def outcome(self, payload: Tensor) -> Tensor:
        """Return the flat float32 tensor that the joined payload of an outcome stands for."""
        parts = []
        for codec, part, size in zip(self.codecs, self._split(payload), self.elements, strict=True):
            assert isinstance(codec, Voting), f"payloads of {codec} are no votes"
            parts.append(codec.outcome(part, size))
        return torch.cat(parts)

    def _split(self, payload: Tensor) -> list[Tensor]:
        if len(payload) != self.payload_bytes:
            raise InputError(
                f"a payload has {len(payload)} bytes and must have {self.payload_bytes}, those of "
                f"{self.codec} for tensors of {self.elements} elements"
            )
        # A copy is aligned for floats; a slice of bytes need not be.
        return [part.clone() for part in payload.split(self.sizes)]
