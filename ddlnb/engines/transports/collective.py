"""Carries out any collective's list of transfers on real ranks, by point-to-point messages.

Receives are posted before they are due, into tensors of their own: a sender that has to ask for
room pays a second delay per step. Sums are made in the order of ranks, whoever comes first. Where
links would idle while ranks wait and add, a tensor can travel in blocks: each goes through the
collective by itself, and hands on what it has while the next is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

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

AHEAD = 3  # moves for which room is made before their messages come


def group_or_default(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group, or the default one that `process_group` makes."""
    found = group if group is not None else dist.group.WORLD
    assert found is not None
    return found


class CollectiveExecutor:
    """Runs one collective on the ranks of a process group, in place, on any tensor.

    The collective's ranks are those of the group, the default one if none is given. The tensor must
    be contiguous, on the CPU and as long on all ranks; its parts are cut as `torch.tensor_split`
    cuts, so that any length will do. A server starts from zeros. With ``block_bytes`` no message is
    longer: the tensor is cut into blocks instead, if all ranks end with all parts of it.

    Raises InputError for blocks of another primitive.
    """

    def __init__(
        self,
        collective: Collective,
        group: dist.ProcessGroup | None = None,
        block_bytes: float = math.inf,
    ):
        require(
            block_bytes == math.inf or collective.primitive in ("all-reduce", "broadcast"),
            f"{collective.primitive} leaves ranks different parts and does not travel in blocks of "
            f"{block_bytes} bytes; leave block_bytes out",
        )
        self._group = group_or_default(group)
        self._rank = self._group.rank()
        self._parts, self._steps = collective.parts, collective.steps
        self._turns = itinerary(collective, self._rank)
        self._longest = longest_message(collective) / collective.parts
        self._block_bytes = block_bytes
        self._known: dict[int, list[Move]] = {}

    def __call__(self, tensor: torch.Tensor) -> None:
        """Carry the collective out; every rank of the group has to."""
        blocks = [
            _Block(block, self._group, self._moves(block.numel()), number * self._steps)
            for number, block in enumerate(self._blocks(tensor))
        ]
        for block in blocks:
            block.begin()
        for number in range(len(self._turns)):
            for block in blocks:
                block.take(number)
        for block in blocks:
            block.end()

    def bytes_sent(self, tensor: torch.Tensor) -> int:
        """Return the bytes that this rank sends for such a tensor, without headers."""
        elements = sum(
            move.elements_sent
            for block in self._blocks(tensor)
            for move in self._moves(block.numel())
        )
        return elements * tensor.element_size()

    def _blocks(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the blocks of a tensor: as many on every rank."""
        flat = tensor.view(-1)
        longest = self._longest * flat.numel() * flat.element_size()
        count = math.ceil(longest / self._block_bytes)
        return flat.tensor_split(count) if count > 1 else (flat,)

    def _moves(self, elements: int) -> list[Move]:
        """Return this rank's moves with a tensor of this length, worked out once."""
        known = self._known.get(elements)
        if known is None:
            bounds = part_bounds(elements, self._parts)
            known = [in_elements(turn, bounds, self._rank) for turn in self._turns]
            self._known[elements] = known
        return known


class _Block:
    """A block of a tensor on its way through the collective.

    Messages without elements are not sent: both ends know that they have none.
    """

    def __init__(
        self, block: torch.Tensor, group: dist.ProcessGroup, moves: list[Move], first_tag: int
    ):
        self._block, self._group, self._moves = block, group, moves
        self._first_tag = first_tag
        self._arriving: list[list[tuple[torch.Tensor, Any]]] = []
        self._leaving: list[tuple[torch.Tensor, Any]] = []

    def begin(self) -> None:
        for move in self._moves[:AHEAD]:
            self._make_room(move)
        for move in self._moves[:1]:
            self._send(move)

    def take(self, number: int) -> None:
        """Write what arrives in one move, and send what leaves in the next one."""
        moves = self._moves
        if number + AHEAD < len(moves):
            self._make_room(moves[number + AHEAD])
        arrived = []
        for room, work in self._arriving[number]:
            if work is not None:
                work.wait()
            arrived.append(room)
        self._arriving[number].clear()
        for letter in moves[number].overwrites:
            self._wait_until_left(letter)
        self._write(moves[number], arrived)
        if number + 1 < len(moves):
            self._send(moves[number + 1])

    def end(self) -> None:
        for letter in range(len(self._leaving)):
            self._wait_until_left(letter)

    def _make_room(self, move: Move) -> None:
        rooms: list[tuple[torch.Tensor, Any]] = []
        for peer, length in move.receives:
            room = self._block.new_empty(length)
            tag = self._first_tag + move.step
            rooms.append((room, self._group.recv([room], peer, tag) if length else None))
        self._arriving.append(rooms)

    def _send(self, move: Move) -> None:
        for peer, intervals in move.sends:
            pieces = [self._block[first:stop] for first, stop in intervals]
            content = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            tag = self._first_tag + move.step
            work = self._group.send([content], peer, tag) if content.numel() else None
            self._leaving.append((content, work))

    def _wait_until_left(self, letter: int) -> None:
        content, work = self._leaving[letter]
        if work is not None:
            work.wait()
            self._leaving[letter] = content, None  # gloo would wait for another one

    def _write(self, move: Move, arrived: list[torch.Tensor]) -> None:
        block = self._block
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


def _read(piece: Piece, block: torch.Tensor, arrived: list[torch.Tensor]) -> torch.Tensor:
    source = block if piece.letter == OWN else arrived[piece.letter]
    return source[piece.first : piece.stop]
