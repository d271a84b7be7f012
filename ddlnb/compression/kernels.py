"""Compiled loops over one slice of a tensor: signs, levels and ternary digits to bits and back.

Random numbers are SplitMix64 (Steele, Lea and Flood 2014) of a seed and the element's position.
Compiled code is cached on disk. Bits fill bytes from the lowest up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ddlnb import compiling

TRITS = 5  # ternary digits in a byte: 3**5 = 243 of 256 values
BLOCK = 40 * 64  # elements that fit into the first cache; a multiple of eight and of five
MOST_BITS = 16  # of a code

compiled = compiling.compiled(error_model="numpy")
# Sums may be taken in any order, several at a time. In all other loops the order of operations
# keeps floats in range.
summing = compiling.compiled(error_model="numpy", fastmath={"reassoc"})


@summing
def measure(values: Any) -> Any:
    """Return the bits of the largest magnitude, the sum of magnitudes and that of squares."""
    words = values.view(np.uint32)
    largest, total, squares = np.uint32(0), 0.0, 0.0
    for i in range(len(values)):
        # Magnitudes are ordered as their bits are, and integers are compared eight at a time.
        largest = max(largest, words[i] & np.uint32(0x7FFFFFFF))
        wide = np.float64(values[i])
        total += abs(wide)
        squares += wide * wide
    return largest, total, squares


@summing
def bucket_norms(values: Any, bucket: int, norms: Any) -> None:
    """Write the Euclidean norm of every bucket."""
    for which in range(len(norms)):
        squares = 0.0
        for value in values[which * bucket : (which + 1) * bucket]:
            squares += np.float64(value) * np.float64(value)
        norms[which] = np.sqrt(squares)


@compiled
def unpack_signs(packed: Any, scale: Any, values: Any) -> None:
    """Write minus or plus the scale: eight values for every byte."""
    for byte in range(len(packed)):
        bits = packed[byte]
        for j in range(8):
            below = (bits >> np.uint8(j)) & np.uint8(1)
            values[8 * byte + j] = -scale if below else scale


@compiled
def uniform(seed: Any, position: int) -> Any:
    """Return a multiple of 2**-24 in [0, 1)."""
    z = seed + np.uint64(position + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float32(z >> np.uint64(40)) * np.float32(2**-24)


@compiled
def pack_ternary(values: Any, start: int, limit: Any, seed: Any, packed: Any) -> None:
    """Write five digits per byte: one plus the sign with probability magnitude/limit, else one."""
    divisor = limit if limit > 0 else np.float32(1)
    digits = np.empty(BLOCK, np.uint8)
    for first in range(0, len(values), BLOCK):
        block = values[first : first + BLOCK]
        digits[len(block) :] = 1
        for i in range(len(block)):
            kept = np.int32(uniform(seed, start + first + i) < abs(block[i]) / divisor)
            digits[i] = np.uint8(1 + (kept if block[i] > 0 else -kept))
        out = packed[first // TRITS : -(-(first + len(block)) // TRITS)]
        for byte in range(len(out)):
            k = TRITS * byte
            out[byte] = np.uint8(
                digits[k]
                + 3 * digits[k + 1]
                + 9 * digits[k + 2]
                + 27 * digits[k + 3]
                + 81 * digits[k + 4]
            )


@compiled
def unpack_ternary(packed: Any, scale: Any, values: Any) -> None:
    """Write minus the scale, zero or the scale: five values for every byte."""
    for byte in range(len(packed)):
        left = np.uint32(packed[byte])
        for j in range(TRITS):
            digit = np.float32(np.int32(left % np.uint32(3)))
            values[TRITS * byte + j] = scale * (digit - np.float32(1))
            left //= np.uint32(3)


@compiled
def pack_levels(
    values: Any,
    start: int,
    norms: Any,
    bucket: int,
    levels: int,
    bits: int,
    seed: Any,
    packed: Any,
) -> None:
    """Write codes of values over their norms, rounded at random to multiples of 1/levels."""
    codes, words = np.empty(BLOCK, np.uint32), np.empty(BLOCK // 8 * MOST_BITS, np.uint8)
    for first in range(0, len(values), BLOCK):
        block = values[first : first + BLOCK]
        codes[len(block) :] = 0
        i = 0
        while i < len(block):
            at = start + first + i
            stop = min(len(block), i + bucket - at % bucket)
            round_at_random(block[i:stop], at, norms[at // bucket], levels, seed, codes[i:stop])
            i = stop
        pack_codes(codes[: -(-len(block) // 8) * 8], bits, words)
        out = packed[first * bits // 8 : -(-(first + len(block)) * bits // 8)]
        out[:] = words[: len(out)]


@compiled
def unpack_levels(
    packed: Any, start: int, norms: Any, bucket: int, levels: int, bits: int, values: Any
) -> None:
    """Write what the codes of `pack_levels` stand for."""
    codes, words = np.empty(BLOCK, np.uint32), np.empty(BLOCK // 8 * MOST_BITS, np.uint8)
    for first in range(0, len(values), BLOCK):
        block = values[first : first + BLOCK]
        part = packed[first * bits // 8 : -(-(first + len(block)) * bits // 8)]
        words[: len(part)] = part
        words[len(part) :] = 0
        unpack_codes(words, bits, codes[: -(-len(block) // 8) * 8])
        i = 0
        while i < len(block):
            at = start + first + i
            stop = min(len(block), i + bucket - at % bucket)
            norm = norms[at // bucket]
            for k in range(i, stop):
                # Over the levels first, so that the whole norm comes back exactly.
                level = np.float32(np.int32(codes[k]) - np.int32(levels))
                block[k] = level / np.float32(levels) * norm
            i = stop


@compiled
def round_at_random(
    values: Any, position: int, norm: Any, levels: int, seed: Any, codes: Any
) -> None:
    """Write codes from 0 to twice the levels; ``levels`` itself stands for zero."""
    most = np.float32(levels)
    divisor = norm if norm > 0 else np.float32(1)
    for i in range(len(values)):
        # Dividing first keeps norms near the smallest float32 from overflowing.
        exact = abs(values[i]) / divisor * most
        below = np.floor(exact)
        level = min(below + np.float32(uniform(seed, position + i) < exact - below), most)
        codes[i] = np.uint32(np.int32(most) + np.int32(level if values[i] > 0 else -level))


@compiled
def pack_codes(codes: Any, bits: int, packed: Any) -> None:
    """Write codes as one sequence of bits, eight at a time: as many bytes as a code has bits."""
    width = np.uint64(bits)
    half = np.uint64(4) * width
    for group in range(len(codes) // 8):
        low, high = np.uint64(0), np.uint64(0)
        for j in range(4):
            low |= np.uint64(codes[8 * group + j]) << (np.uint64(j) * width)
            high |= np.uint64(codes[8 * group + 4 + j]) << (np.uint64(j) * width)
        # In two shifts, as a shift by all 64 bits is not defined.
        low |= (high << (half - np.uint64(1))) << np.uint64(1)
        high >>= np.uint64(64) - half
        for j in range(min(bits, 8)):
            packed[bits * group + j] = np.uint8(low >> np.uint64(8 * j))
        for j in range(8, bits):
            packed[bits * group + j] = np.uint8(high >> np.uint64(8 * j - 64))


@compiled
def unpack_codes(packed: Any, bits: int, codes: Any) -> None:
    """Write the codes of `pack_codes`."""
    width, one = np.uint64(bits), np.uint64(1)
    half, mask = np.uint64(4) * width, (one << width) - one
    for group in range(len(codes) // 8):
        low, rest = np.uint64(0), np.uint64(0)
        for j in range(min(bits, 8)):
            low |= np.uint64(packed[bits * group + j]) << np.uint64(8 * j)
        for j in range(8, bits):
            rest |= np.uint64(packed[bits * group + j]) << np.uint64(8 * j - 64)
        high = ((low >> (half - one)) >> one) | (rest << (np.uint64(64) - half))
        for j in range(4):
            codes[8 * group + j] = np.uint32((low >> (np.uint64(j) * width)) & mask)
            codes[8 * group + 4 + j] = np.uint32((high >> (np.uint64(j) * width)) & mask)
