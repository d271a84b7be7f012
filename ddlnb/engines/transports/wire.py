"""The protocol of workers and parameter servers: a header, and a tensor if there is one."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag

import torch

_HEADER = struct.Struct("<BBIQ")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8)


class Kind(IntFlag):
    """The kinds of a request; a push and a pull usually travel together.

    With ACK the server confirms at once that the push has arrived, in a header without payload.
    """

    PUSH = 1
    PULL = 2
    ACK = 4
    BYE = 8


@dataclass(frozen=True)
class Header:
    """``key`` is the number of the message in the plan, ``clock`` the worker's iteration."""

    kind: Kind
    key: int = 0
    clock: int = 0
    dtype: torch.dtype = torch.float32

    def pack(self) -> bytes:
        """Return the header in its 14 bytes."""
        return _HEADER.pack(self.kind, _DTYPES.index(self.dtype), self.key, self.clock)

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Return the header that `pack` made."""
        kind, dtype, key, clock = _HEADER.unpack(data)
        return cls(Kind(kind), key, clock, _DTYPES[dtype])


HEADER_BYTES = _HEADER.size


def to_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, not copied."""
    return memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2


def from_bytes(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor on the received memory, not copied; it must not be written to."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=dtype)
