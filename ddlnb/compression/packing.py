"""Pack tensors into as few bits as they need, and back, on as many threads as torch uses.

Tensors are cut into slices of fixed length, and every slice fills its own bytes, so the result does
not depend on the number of threads. The loops are those of `kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddlnb.compression import kernels
from ddlnb.compression.kernels import BLOCK, MOST_BITS, TRITS
from ddlnb.errors import NotFinite, require

SLICE = 128 * BLOCK  # elements that one thread takes at a time
NOT_FINITE = (
    "a gradient with NaN or infinity in it, or with a norm beyond float32, cannot be compressed; "
    "lower the learning rate"
)

Floats = NDArray[np.float32]


def flat_values(tensor: Tensor) -> Floats:
    """Return the tensor's numbers as a flat float32 array, without a copy if possible."""
    values: Floats = tensor.detach().flatten().float().contiguous().numpy()
    return values


def squared_norm(tensor: Tensor) -> float:
    """Return the sum of the squares of all entries, in double precision."""
    return tensor.double().square().sum().item()


def leading_floats(payload: Tensor, count: int) -> Floats:
    """Return the first ``count`` float32 numbers of a payload, which need not be aligned."""
    floats: Floats = payload[: 4 * count].clone().numpy().view(np.float32)
    return floats


def require_finite(*numbers: float | Floats) -> None:
    """Raise NotFinite unless all numbers are finite."""
    if not all(np.isfinite(one).all() for one in numbers):
        raise NotFinite(NOT_FINITE)


class Magnitudes(NamedTuple):
    """The largest magnitude of a tensor, the mean, and the root of the mean square."""

    largest: float
    mean: float
    root_mean_square: float


def magnitudes(values: Floats) -> Magnitudes:
    """Return the `Magnitudes` of these values, zeros if there are none. Raises NotFinite."""
    if not len(values):
        return Magnitudes(0.0, 0.0, 0.0)
    found = in_slices(len(values), lambda start, stop: kernels.measure(values[start:stop]))
    largest, total, squares = zip(*found, strict=True)
    require_finite(sum(total))
    return Magnitudes(
        float(np.uint32(max(largest)).view(np.float32)),
        sum(total) / len(values),
        math.sqrt(sum(squares) / len(values)),
    )


def bucket_norms(values: Floats, bucket: int) -> Floats:
    """Return the Euclidean norm of every ``bucket`` elements. Raises NotFinite."""
    norms = np.empty(-(-len(values) // bucket), np.float32)
    with np.errstate(over="ignore"):
        if len(norms) == 1:
            norms[0] = magnitudes(values).root_mean_square * math.sqrt(len(values))
        else:
            in_slices(
                len(norms),
                lambda start, stop: kernels.bucket_norms(
                    values[start * bucket : stop * bucket], bucket, norms[start:stop]
                ),
                max(1, SLICE // bucket),
            )
    require_finite(norms)
    return norms


def pack_signs(values: Floats) -> Tensor:
    """Return one bit per element, set below zero; the first is the lowest bit of a byte."""
    return torch.from_numpy(np.packbits(values < 0, bitorder="little"))


def unpack_signs(packed: Tensor, elements: int, scale: float = 1.0) -> Tensor:
    """Return minus ``scale`` for every set bit of `pack_signs`, plus ``scale`` for the others."""
    bits, values = packed.numpy(), np.empty(8 * len(packed), np.float32)
    in_slices(
        len(values),
        lambda start, stop: kernels.unpack_signs(
            bits[start // 8 : stop // 8], np.float32(scale), values[start:stop]
        ),
    )
    return torch.from_numpy(values)[:elements]


def majority(packed: Sequence[Tensor], elements: int) -> Tensor:
    """Return 1, -1 or, for a tie, 0 for every element, by the majority of these signs."""
    ballots = (np.unpackbits(one.numpy(), count=elements, bitorder="little") for one in packed)
    below = sum(ballot.astype(np.int32) for ballot in ballots)
    return torch.from_numpy(np.sign(len(packed) - 2 * below).astype(np.float32))


def seed_from(generator: torch.Generator) -> int:
    """Return a whole number below 2**63, from which the loops draw all their random numbers."""
    return int(torch.randint(2**63 - 1, (), generator=generator))


def pack_ternary(values: Floats, limit: float, seed: int) -> Tensor:
    """Return five digits per byte: the sign with probability magnitude over limit, else zero.

    Magnitudes beyond the limit count as the limit.
    """
    packed = np.empty(-(-len(values) // TRITS), np.uint8)
    in_slices(
        len(values),
        lambda start, stop: kernels.pack_ternary(
            values[start:stop],
            start,
            np.float32(limit),
            np.uint64(seed),
            packed[start // TRITS : -(-stop // TRITS)],
        ),
    )
    return torch.from_numpy(packed)


def unpack_ternary(packed: Tensor, elements: int, scale: float) -> Tensor:
    """Return plus or minus ``scale``, or zero, for every digit of `pack_ternary`."""
    digits, values = packed.numpy(), np.empty(TRITS * len(packed), np.float32)
    in_slices(
        len(values),
        lambda start, stop: kernels.unpack_ternary(
            digits[start // TRITS : stop // TRITS], np.float32(scale), values[start:stop]
        ),
    )
    return torch.from_numpy(values)[:elements]


def code_bits(levels: int) -> int:
    """Return the bits of a code for 2 levels + 1 values. Raises InputError for more than 16.

    >>> [code_bits(levels) for levels in (1, 2, 7, 127)]
    [2, 3, 4, 8]
    """
    bits = (2 * levels).bit_length()
    most = 2 ** (MOST_BITS - 1) - 1
    require(bits <= MOST_BITS, f"levels {levels} must be at most {most}; send fp16 instead")
    return bits


def pack_levels(values: Floats, norms: Floats, bucket: int, levels: int, seed: int) -> Tensor:
    """Return a code per element: the element over its bucket's norm, rounded at random.

    It is rounded to a multiple of 1/levels; the code, of `code_bits`, is the multiple plus
    ``levels``.
    """
    bits = code_bits(levels)
    packed = np.empty(-(-len(values) * bits // 8), np.uint8)
    in_slices(
        len(values),
        lambda start, stop: kernels.pack_levels(
            values[start:stop],
            start,
            norms,
            bucket,
            levels,
            bits,
            np.uint64(seed),
            packed[start * bits // 8 : -(-stop * bits // 8)],
        ),
    )
    return torch.from_numpy(packed)


def unpack_levels(packed: Tensor, elements: int, norms: Floats, bucket: int, levels: int) -> Tensor:
    """Return what the codes of `pack_levels` stand for."""
    bits, codes, values = code_bits(levels), packed.numpy(), np.empty(elements, np.float32)
    in_slices(
        elements,
        lambda start, stop: kernels.unpack_levels(
            codes[start * bits // 8 : -(-stop * bits // 8)],
            start,
            norms,
            bucket,
            levels,
            bits,
            values[start:stop],
        ),
    )
    return torch.from_numpy(values)


def in_slices(elements: int, work: Callable[[int, int], Any], at_once: int = SLICE) -> list[Any]:
    """Return what ``work(start, stop)`` returns for every slice, in order."""
    spans = [(start, min(start + at_once, elements)) for start in range(0, elements, at_once)]
    threads = min(torch.get_num_threads(), len(spans))
    if threads < 2:
        return [work(*span) for span in spans]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda span: work(*span), spans))
