"""A collective as one rank carries it out on any tensor: what it sends in every move, and writes.

Sums are made in the order of ranks, whoever comes first. Where links would idle while ranks wait
and add, a tensor can travel in blocks: each goes through the collective by itself, and hands on
what it has while the next is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ddlnb.engines.transports.itinerary import (
    OWN,
    Move,
    Piece,
    in_elements,
    itinerary,
    longest_message,
    part_bounds,
)
from ddlnb.errors import require
from ddlnb.networks.transfers import Collective


class Course:
    """One collective for a rank, in place, on any tensor.

    The tensor must be contiguous, on the CPU and as long on all ranks; its parts are cut as
    `torch.tensor_split` cuts, so that any length will do. A server starts from zeros. With
    ``block_bytes`` no message is longer: the tensor is cut into blocks instead, if all ranks end
    with all parts of it.

    Raises InputError for blocks of another primitive.
    """

    def __init__(self, collective: Collective, rank: int, block_bytes: float = math.inf):
        require(
            block_bytes == math.inf or collective.primitive in ("all-reduce", "broadcast"),
            f"{collective.primitive} leaves ranks different parts and does not travel in blocks of "
            f"{block_bytes} bytes; leave block_bytes out",
        )
        self._rank, self._parts = rank, collective.parts
        self._turns = itinerary(collective, rank)
        self._longest = longest_message(collective) / collective.parts
        self._block_bytes = block_bytes
        self._known: dict[int, list[Move]] = {}
        self._sent: dict[tuple[int, int], int] = {}

    def blocks(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the blocks of a tensor, flat: as many on every rank."""
        flat = tensor.view(-1)
        longest = self._longest * flat.numel() * flat.element_size()
        count = math.ceil(longest / self._block_bytes)
        return flat.tensor_split(count) if count > 1 else (flat,)

    def moves(self, elements: int) -> list[Move]:
        """Return this rank's moves with a block of this length, worked out once."""
        known = self._known.get(elements)
        if known is None:
            bounds = part_bounds(elements, self._parts)
            known = [in_elements(turn, bounds, self._rank) for turn in self._turns]
            self._known[elements] = known
        return known

    def bytes_sent(self, tensor: torch.Tensor) -> int:
        """Return the bytes that this rank sends for such a tensor, without headers."""
        size = tensor.numel(), tensor.element_size()
        if size not in self._sent:
            moves = [move for block in self.blocks(tensor) for move in self.moves(block.numel())]
            self._sent[size] = size[1] * sum(move.elements_sent for move in moves)
        return self._sent[size]


def content(block: torch.Tensor, intervals: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the elements that a move sends to one peer, in one piece."""
    pieces = [block[first:stop] for first, stop in intervals]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def write(move: Move, block: torch.Tensor, arrived: Sequence[torch.Tensor]) -> None:
    """Copy and sum what arrived, a tensor for each letter that the move receives."""
    for (first, stop), (letter, start, end) in move.copies:
        block[first:stop] = arrived[letter][start:end]
    for (first, stop), pieces in move.sums:
        values = [_read(piece, block, arrived) for piece in pieces]
        own = block[first:stop]
        if len(values) == 2:  # in either order the same bits
            torch.add(*values, out=own)
            continue
        total = values[0] + values[1]
        for value in values[2:]:
            total += value
        own.copy_(total)


def _read(piece: Piece, block: torch.Tensor, arrived: Sequence[torch.Tensor]) -> torch.Tensor:
    source = block if piece.letter == OWN else arrived[piece.letter]
    return source[piece.first : piece.stop]
