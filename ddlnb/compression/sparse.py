"""A few entries of a tensor and where they are: what sparsifying compressors send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ddlnb.compression.base import Compressor
from ddlnb.compression.literature import CONTRACTION, SPARSIFICATION, Bound, Quote
from ddlnb.compression.selection import largest
from ddlnb.errors import DdlnbError, require

ENTRY_BYTES = 8  # four of the value, four of the index


class Sparse(NamedTuple):
    """``values`` (float32) at ``indices`` (int64, ascending, all different) of a flat tensor."""

    indices: Tensor
    values: Tensor

    def payload(self) -> Tensor:
        """Flat bytes: all indices as int32, then all values."""
        payload = torch.empty(ENTRY_BYTES * self.indices.numel(), dtype=torch.uint8)
        _pack(self.indices.numpy(), self.values.numpy(), payload.numpy().view(np.int32))
        return payload

    def dense(self, elements: int) -> Tensor:
        """The flat tensor, zero elsewhere."""
        return torch.zeros(elements).index_copy_(0, self.indices, self.values)

    def add_to(self, flat: Tensor) -> None:
        """Add the entries to a flat tensor."""
        flat.index_add_(0, self.indices, self.values)


def from_payload(payload: Tensor) -> Sparse:
    """What `Sparse.payload` packed."""
    half = len(payload) // 2
    indices, values = payload[:half].view(torch.int32), payload[half:].view(torch.float32)
    return Sparse(indices.long(), values)


def add_payload(payload: Tensor, flat: Tensor) -> None:
    """As ``from_payload(payload).add_to(flat)``, sooner.

    Raises DdlnbError for indices beyond the tensor, a sign that workers disagree on their model.
    """
    if not _add(payload.numpy().view(np.int32), flat.numpy()):
        raise DdlnbError(
            f"a sparse payload has indices beyond the {flat.numel()} entries of its tensor; "
            f"workers must train the same model"
        )


def total_of(payloads: Sequence[Tensor], elements: int) -> Tensor:
    """The flat tensor of what all payloads stand for together. Raises as `add_payload`."""
    total = torch.zeros(elements)
    for payload in payloads:
        add_payload(payload, total)
    return total


def largest_entries(tensor: Tensor, count: int) -> Sparse:
    """The entries of largest magnitude of a tensor of any shape. Raises as `largest` does."""
    flat = tensor.detach().flatten()
    indices = largest(flat, count)
    return Sparse(indices, flat[indices])


def kept(density: float, elements: int) -> int:
    """How many of so many entries travel: their share ``density``, and at least one.

    >>> kept(0.001, 25_000_000)
    25000
    """
    return max(1, round(density * elements))


def require_density(density: float) -> None:
    """Raise InputError unless it is a share of entries."""
    require(0 < density <= 1, f"density {density!r} must be above 0 and at most 1")


@njit(cache=True, nogil=True)
def _pack(indices: Any, values: Any, words: Any) -> None:
    count = len(indices)
    bits = values.view(np.int32)
    for i in range(count):
        words[i] = indices[i]
        words[count + i] = bits[i]


@njit(cache=True, nogil=True)
def _add(words: Any, flat: Any) -> bool:
    count = len(words) // 2
    values = words[count:].view(np.float32)
    for i in range(count):
        if not 0 <= words[i] < len(flat):
            return False
        flat[words[i]] += values[i]
    return True


# What compressors that send a share of the entries have in common.
@dataclass(frozen=True)
class Sparsifier(Compressor):
    """``density`` k/D of the entries travel, at least one."""

    density: float = 0.01

    family = SPARSIFICATION

    def __post_init__(self) -> None:
        require_density(self.density)

    def keeping(self, density: float) -> Self:
        """The same with this density. Raises InputError unless it is a share."""
        return replace(self, density=density)

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote | None:
        """Return D / 2k: a value travels with its index."""
        return Quote.of(0.5 / self.density)

    def error_bound(self, tensor: Tensor) -> Bound:
        """Return 1 - k/D: the largest entries have no less than their share of the norm."""
        share = kept(self.density, tensor.numel()) / tensor.numel()
        return Bound(1 - share, CONTRACTION, "1 - k / D")
