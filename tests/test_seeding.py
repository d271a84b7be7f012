"""Streams of random numbers: repeated by the same numbers, and unlike any others."""

from itertools import product

import torch

from ddlnb.compression.base import Round
from ddlnb.seeding import generator, mixed


def draw(*numbers: int) -> list[float]:
    return torch.rand(3, generator=generator(*numbers)).tolist()


def test_numbers_repeat_and_every_one_of_them_counts():
    assert draw(1, 2, 3) == draw(1, 2, 3)
    others = [(0, 2, 3), (1, 2, 4), (2, 1, 3), (1, 2), (1, 2, 3, 0), (1 + (1 << 32), 2, 3)]
    assert all(draw(*other) != draw(1, 2, 3) for other in others)


def test_seeds_steps_pieces_and_ranks_have_streams_of_their_own():
    rounds = [
        Round(rank, 8, step, piece, seed)
        for seed, step, piece, rank in product(range(3), range(10), range(5), range(8))
    ]
    first = [torch.rand(1, generator=one.own()).item() for one in rounds]
    # 1,200 streams of 32 bits are all different but for one time in 6,000; draws have 24 bits.
    assert len(set(first)) > 1195
    shared = {torch.rand(2, generator=one.shared()) for one in rounds if one.rank < 2}
    assert len({tuple(pair.tolist()) for pair in shared}) == 3 * 10 * 5


def test_a_bit_of_a_number_changes_half_of_the_bits():
    """In the mean over 64 bits and 20 numbers, within four standard errors."""
    counts = [
        (mixed(number, 1) ^ mixed(number ^ (1 << bit), 1)).bit_count()
        for number in range(20)
        for bit in range(64)
    ]
    assert abs(sum(counts) / len(counts) - 32) < 4 * 4 / len(counts) ** 0.5
