"""Small changes of a candidate, of which a search takes those that make it quicker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ddlnb.search.sent import Sending
from ddlnb.search.space import Candidate
from ddlnb.units import KIB, MIB


def changes(
    one: Candidate, count: int, sending: Sending, generator: random.Random
) -> Iterator[Candidate]:
    """Yield candidates of ``count`` gradients that differ a little, in an order of chance.

    A group that is moved stays dense or compressed; two halves of one are what it was.
    """
    ends, dense = set(one.ends), one.dense
    found: list[Candidate] = []

    def add(changed: set[int], now_dense: frozenset[int] = dense) -> None:
        found.append(
            replace(one, ends=tuple(sorted(changed)), dense=now_dense & frozenset(changed))
        )

    inner = sorted(ends - {count})
    for end in inner:
        add(ends - {end})
        for step in (1, -1, 3, -3, 10, -10):
            moved = end + step
            if 0 < moved < count and moved not in ends:
                add(ends - {end} | {moved}, dense | {moved} if end in dense else dense)
    bounds = [0, *sorted(ends)]
    for before, after in pairwise(bounds):
        for share in (0.25, 0.5, 0.75):
            middle = before + round((after - before) * share)
            if before < middle < after:
                add(ends | {middle}, dense | {middle} if after in dense else dense)
    if sending.is_mixed:
        for end in sorted(ends):
            add(ends, dense ^ {end})
    if sending.space.partition and not one.split:
        sizes = [one.partition * 2, one.partition // 2] if one.partition else [32 * MIB, 8 * MIB]
        found += [replace(one, partition=size) for size in sizes if size >= KIB]
    generator.shuffle(found)
    yield from found
