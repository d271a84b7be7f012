"""A few entries of a tensor and where they are: what sparsifying compressors send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from ddlnb.compression.selection import largest
from ddlnb.errors import DdlnbError

ENTRY_BYTES = 8  # four of the value, four of the index


class Sparse(NamedTuple):
    """``values`` (float32) at ``indices`` (int64, ascending, all different) of a flat tensor."""

    indices: Tensor
    values: Tensor

    def payload(self) -> Tensor:
        """Return flat bytes: all indices as int32, then all values."""
        payload = torch.empty(ENTRY_BYTES * self.indices.numel(), dtype=torch.uint8)
        _pack(self.indices.numpy(), self.values.numpy(), payload.numpy().view(np.int32))
        return payload

    def dense(self, elements: int) -> Tensor:
        """Return the flat tensor, zero at all other entries."""
        return torch.zeros(elements).index_copy_(0, self.indices, self.values)

    def add_to(self, flat: Tensor) -> None:
        """Add the entries to a flat tensor."""
        flat.index_add_(0, self.indices, self.values)


def from_payload(payload: Tensor) -> Sparse:
    """Return what `Sparse.payload` packed."""
    half = len(payload) // 2
    indices, values = payload[:half].view(torch.int32), payload[half:].view(torch.float32)
    return Sparse(indices.long(), values)


def add_payload(payload: Tensor, flat: Tensor) -> None:
    """Do ``from_payload(payload).add_to(flat)``, faster.

    Raises DdlnbError for indices beyond the tensor, a sign that workers disagree on their model.
    """
    if not _add(payload.numpy().view(np.int32), flat.numpy()):
        raise DdlnbError(
            f"a sparse payload has indices beyond the {flat.numel()} entries of its tensor; "
            f"workers must train the same model"
        )


def total_of(payloads: Sequence[Tensor], elements: int) -> Tensor:
    """Return the flat tensor that all payloads add up to. Raises as `add_payload` does."""
    total = torch.zeros(elements)
    for payload in payloads:
        add_payload(payload, total)
    return total


def largest_entries(tensor: Tensor, count: int) -> Sparse:
    """Return the ``count`` entries of largest magnitude of a tensor of any shape.

    Raises as `largest` does.
    """
    flat = tensor.detach().flatten()
    indices = largest(flat, count)
    return Sparse(indices, flat[indices])


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
