"""gTop-k: merge the workers' k largest entries along a tree, keeping k at every merge.

Source: Shi et al. 2019 (arXiv 1901.04359). Each level of the tree halves the number of workers
that still hold entries: 2 ceil(log2 n) messages of k entries, one after the other, against n - 1
for an all-gather.

An entry that did not survive stays with the workers that had selected it, as in the paper. Of an
entry that did, some workers' parts may have been dropped on the way. Those workers do not know,
and the paper loses these parts. Here they stay with the worker that dropped them, so that what was
sent adds up to the average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddlnb.compression.base import Averaged, Memory, OnGpu, Passes, Round, Traffic
from ddlnb.compression.sparse import (
    ENTRY_BYTES,
    Sparse,
    Sparsifier,
    from_payload,
    kept,
    largest,
    largest_entries,
)
from ddlnb.plans.requests import Flow, Messages

Step = tuple[list[int], list[int]]


@dataclass(frozen=True)
class GTopK(Sparsifier):
    """A share ``density`` = k/D of the entries travels between two workers and is averaged."""

    name = "gtop-k"
    on_gpu = OnGpu(Passes(12, 36), Passes(16, 4))  # top-k; merged entries are selected again
    feedback = "needed"
    why_no_payload = "workers merge entries pairwise along a tree, and nobody else keeps just k"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        elements, rank, workers = tensor.numel(), round_.rank, round_.workers
        count = kept(self.density, elements)
        entries = own = largest_entries(tensor, count)
        sent = own.dense(elements)
        bytes_ = ENTRY_BYTES * count
        up, down = tree(rank, workers)
        for outgoing, incoming in up:
            arrived = yield Messages(
                {other: entries.payload() for other in outgoing},
                {other: bytes_ for other in incoming},
            )
            for other in incoming:
                entries, dropped = merged(entries, from_payload(arrived[other]), count)
                Sparse(dropped.indices, -dropped.values).add_to(sent)
        for outgoing, incoming in down:
            arrived = yield Messages(
                {other: entries.payload() for other in outgoing},
                {other: bytes_ for other in incoming},
            )
            for other in incoming:
                entries = from_payload(arrived[other])
        survived = torch.zeros(elements, dtype=torch.bool).index_fill_(0, entries.indices, True)
        average = entries.dense(elements) / workers
        return Averaged(average.view_as(tensor), (sent * survived).view_as(tensor))

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        elements = math.prod(shape)
        return [Traffic(Messages, ENTRY_BYTES * kept(self.density, elements))] * (
            2 * levels(workers)
        )


MOST = torch.finfo(torch.float32).max


def merged(one: Sparse, other: Sparse, count: int) -> tuple[Sparse, Sparse]:
    """Return the ``count`` largest entries of the sum, and its other entries.

    Sums stay below the largest number: to raise amid the tree would leave others waiting.

    >>> first = Sparse(torch.tensor([0, 2]), torch.tensor([3.0, 2.0]))
    >>> second = Sparse(torch.tensor([1, 2]), torch.tensor([-1.0, 2.0]))
    >>> merged(first, second, 2)[0]
    Sparse(indices=tensor([0, 2]), values=tensor([3., 4.]))
    """
    both = torch.cat([one.indices, other.indices])
    indices, positions = torch.unique(both, return_inverse=True)
    values = torch.zeros(len(indices))
    values.index_add_(0, positions, torch.cat([one.values, other.values]))
    values.clamp_(-MOST, MOST)
    chosen = largest(values, count)
    is_left = torch.ones(len(indices), dtype=torch.bool).index_fill_(0, chosen, False)
    return (
        Sparse(indices[chosen], values[chosen]),
        Sparse(indices[is_left], values[is_left]),
    )


def levels(workers: int) -> int:
    """Return the levels of a binary tree over the workers: ceil(log2 n).

    >>> [levels(workers) for workers in (1, 2, 3, 4, 5, 32)]
    [0, 1, 2, 2, 3, 5]
    """
    return (workers - 1).bit_length()


def tree(rank: int, workers: int) -> tuple[list[Step], list[Step]]:
    """Return whom a worker sends to and receives from, level by level: up, and down again.

    >>> tree(2, 4)
    ([([], [3]), ([0], [])], [([], [0]), ([3], [])])
    """
    up = []
    for distance in (1 << level for level in range(levels(workers))):
        position = rank % (2 * distance)
        sender = [rank + distance] if position == 0 and rank + distance < workers else []
        receiver = [rank - distance] if position == distance else []
        up.append((receiver, sender))
    return up, [(sender, receiver) for receiver, sender in reversed(up)]
