"""Random numbers by whole numbers: the same for the same ones, and another stream for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MASK = (1 << 64) - 1


def generator(*numbers: int) -> torch.Generator:
    """A new generator for these numbers, of a seed and a step, say; their order counts.

    Torch's generators on CPUs use 32 bits of a seed, so that two of n streams are the same with a
    chance of n^2 / 2^33: one in 86 for ten thousand.
    """
    import torch

    return torch.Generator().manual_seed(mixed(*numbers) >> 32)


def mixed(*numbers: int) -> int:
    """64 bits that each bit of each number changes, half of them (SplitMix64; Steele et al. 2014).

    >>> [hex(mixed(seed, 0)) for seed in (0, 1)]
    ['0xa706dd2f4d197e6f', '0x5e41ab087439611e']
    """
    state = 0
    for number in numbers:
        state = (state ^ (number & MASK)) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state
