"""A few entries of a tensor and where they are: what sparsifying compressors choose and send.

The k entries that are largest in magnitude are found faster than by sorting: a sample gives a
threshold that somewhat more than k entries should pass (Lin et al. 2018, arXiv 1712.01887), one
pass over the tensor finds those that do, and the exact choice is made among them. If the sample
misled, the choice is made among all entries. The result is exact either way. `Sparsifier` is what
compressors have in common that send a share of the entries: the density.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddlnb.compiling import compiled
from ddlnb.compression.base import CONTRACTION, SPARSIFICATION, Bound, Compressor, Quote
from ddlnb.errors import DdlnbError, InputError, NotFinite, require

Bits = NDArray[np.uint32]  # of float32 magnitudes, which are ordered as their bits are
Indices = NDArray[np.int64]

SIGNLESS = np.uint32(0x7FFFFFFF)
INFINITE = np.uint32(0x7F800000)  # the bits of infinity; those of not-a-number are above
SAMPLE = 1 << 16  # entries
FEWEST = 1 << 17  # a sample of a tensor with fewer entries would save nothing
SHORT = 1 << 13  # up to this length, calling NumPy takes longer than its work
BLOCK = 64  # entries that are skipped together when none of them is large
ENTRIES_PER_THREAD = 1 << 20
NOT_FINITE = (
    "the tensor has entries that are infinite or not a number, so its largest mean nothing; "
    "lower the learning rate"
)


def largest(flat: Tensor, count: int) -> Tensor:
    """Return the indices of the ``count`` entries of largest magnitude, ascending, as int64.

    Of equally large entries the first are taken, so that every worker and run takes the same ones.
    Raises InputError unless the tensor is a flat float32 one on the CPU that has ``count`` entries,
    and NotFinite if some entries are not.

    >>> largest(torch.tensor([1.0, -3.0, 0.0, 2.0]), 2)
    tensor([1, 3])
    """
    if flat.dim() != 1 or flat.dtype != torch.float32 or flat.device.type != "cpu":
        raise InputError(
            f"entries are chosen from flat float32 tensors on the CPU, not from one of shape "
            f"{tuple(flat.shape)} and {flat.dtype} on {flat.device}; flatten and convert it"
        )
    elements = flat.numel()
    if not 0 < count <= elements:
        raise InputError(
            f"count {count!r} of the largest entries must be from 1 to the {elements} there are"
        )
    bits = flat.detach().contiguous().numpy().view(np.uint32)
    chosen = None
    if elements >= FEWEST and 4 * count <= elements:
        chosen = _largest_beyond(_sampled_threshold(bits, count), bits, count)
    if chosen is None:
        chosen = _largest_of(bits, count)
    return torch.from_numpy(chosen)


def _sampled_threshold(bits: Bits, count: int) -> np.uint32:
    """Return magnitude bits that somewhat more than ``count`` entries pass if the sample is fair.

    The margin is three standard deviations: one fair sample in several hundred misleads. The
    threshold is at least 1, which all entries but zeros pass.
    """
    stride = len(bits) // SAMPLE
    jitter = np.random.default_rng(0).integers(stride, size=SAMPLE)
    sample = bits[np.arange(SAMPLE) * stride + jitter] & SIGNLESS
    expected = count / len(bits) * SAMPLE
    rank = min(SAMPLE, math.ceil(expected + 3 * math.sqrt(expected) + 1))
    return np.uint32(np.clip(np.partition(sample, SAMPLE - rank)[SAMPLE - rank], 1, INFINITE))


def _largest_beyond(threshold: np.uint32, bits: Bits, count: int) -> Indices | None:
    """Return the largest entries that reach the threshold; None if it is of no use."""
    threads = max(1, min(torch.get_num_threads(), len(bits) // ENTRIES_PER_THREAD))
    cuts = [len(bits) // BLOCK * part // threads * BLOCK for part in range(threads)] + [len(bits)]
    parts = [bits[start:stop] for start, stop in pairwise(cuts)]
    with ThreadPoolExecutor(threads) as pool:
        passing = list(pool.map(partial(_passing, threshold), parts))
        totals = [int(of_part.sum()) for of_part in passing]
        total = sum(totals)
        is_all_but_zeros = threshold == 1
        if total > len(bits) // 2 or (total < count and not is_all_but_zeros):
            return None
        found = list(pool.map(partial(_found, threshold), parts, passing, totals))
    shifted = [start + of_part for start, of_part in zip(cuts[:-1], found, strict=True)]
    candidates = np.concatenate(shifted)
    if total < count:
        first_zeros = np.flatnonzero((bits[:count] & SIGNLESS) == 0)[: count - total]
        candidates = np.sort(np.concatenate([candidates, first_zeros]))
    return candidates[_largest_of(bits[candidates], count)]


def _largest_of(bits: Bits, count: int) -> Indices:
    if len(bits) <= SHORT:
        chosen = _largest_of_few(bits, count)
        if not len(chosen):
            raise NotFinite(NOT_FINITE)
        return chosen
    magnitudes = bits & SIGNLESS
    if magnitudes.max() >= INFINITE:
        raise NotFinite(NOT_FINITE)
    last = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    above = np.flatnonzero(magnitudes > last)
    equal = np.flatnonzero(magnitudes == last)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


# Compiled without numba's own threads, which two threads must not use at a time, nor a process
# after a fork.


@compiled()
def _passing(threshold, bits):
    """Return how many entries of each block reach the threshold."""
    passing = np.empty((len(bits) + BLOCK - 1) // BLOCK, np.uint8)
    for block in range(len(passing)):
        count = np.uint32(0)  # every operation in 32 bits, so that they are done many at a time
        for entry in bits[block * BLOCK : (block + 1) * BLOCK]:
            count = np.uint32(count + np.uint32(np.uint32(entry & SIGNLESS) >= threshold))
        passing[block] = count
    return passing


@compiled()
def _found(threshold, bits, passing, total):
    """Return the indices of the entries that reach the threshold."""
    found = np.empty(total, np.int64)
    filled = 0
    for block in range(len(passing)):
        if passing[block] > 0:
            for i in range(block * BLOCK, min((block + 1) * BLOCK, len(bits))):
                if np.uint32(bits[i] & SIGNLESS) >= threshold:
                    found[filled] = i
                    filled += 1
    return found


@compiled()
def _largest_of_few(bits, count):
    """Return what `_largest_of` does, and nothing if some entries are not finite."""
    magnitudes = bits & SIGNLESS
    if magnitudes.max() >= INFINITE:
        return np.empty(0, np.int64)
    last = np.partition(magnitudes, len(bits) - count)[len(bits) - count]
    equal = count  # that are as large as the last one and are still wanted
    for magnitude in magnitudes:
        equal -= magnitude > last
    chosen = np.empty(count, np.int64)
    filled = 0
    for i in range(len(bits)):
        is_next = magnitudes[i] == last and equal > 0
        if is_next or magnitudes[i] > last:
            equal -= is_next
            chosen[filled] = i
            filled += 1
    return chosen


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


@compiled()
def _pack(indices: Any, values: Any, words: Any) -> None:
    count = len(indices)
    bits = values.view(np.int32)
    for i in range(count):
        words[i] = indices[i]
        words[count + i] = bits[i]


@compiled()
def _add(words: Any, flat: Any) -> bool:
    count = len(words) // 2
    values = words[count:].view(np.float32)
    for i in range(count):
        if not 0 <= words[i] < len(flat):
            return False
        flat[words[i]] += values[i]
    return True


@dataclass(frozen=True)
class Sparsifier(Compressor):
    """A share ``density`` = k/D of the D entries travels, at least one."""

    density: float = 0.01

    family = SPARSIFICATION

    def __post_init__(self) -> None:
        require_density(self.density)

    def keeping(self, density: float) -> Self:
        """Return the same compressor with this density. Raises InputError unless it is a share."""
        return replace(self, density=density)

    def quoted_ratio(self, shape: tuple[int, int]) -> Quote | None:
        """Return D / 2k: a value travels with its index."""
        return Quote.of(0.5 / self.density)

    def error_bound(self, tensor: Tensor) -> Bound:
        """Return 1 - k/D: the largest entries hold at least their share of the squared norm."""
        share = kept(self.density, tensor.numel()) / tensor.numel()
        return Bound(1 - share, CONTRACTION, "1 - k / D")


def kept(density: float, elements: int) -> int:
    """Return how many of the entries travel: their share ``density``, and at least one.

    >>> kept(0.001, 25_000_000)
    25000
    """
    return max(1, round(density * elements))


def require_density(density: float) -> None:
    """Raise InputError unless this is a share of entries."""
    require(0 < density <= 1, f"density {density!r} must be above 0 and at most 1")
