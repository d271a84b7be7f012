"""A collective as one rank carries it out: in every step whom it sends what, and what it writes.

A collective is data (`Collective`), which its page in `ddlnb.networks.collectives` makes. First a
rank's schedule is worked out in parts (`turns`), then in the elements of a tensor of some length
(`in_elements`). Sums are made in the order of ranks, whoever comes first. Where links would idle
while ranks wait and add, a tensor can travel in blocks: each goes through the collective by itself,
and hands on what it has while the next is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from ddlnb.errors import require
from ddlnb.plans.transfers import Collective, Interval, Transfers, joined

OWN = -1  # instead of the number of a letter: what is there already


class Letter(NamedTuple):
    """What travels between this rank and a peer in one step: intervals of parts, in order.

    ``sums`` says of each interval that arrives whether it is added to what is there.
    """

    peer: int
    intervals: tuple[Interval, ...]
    sums: tuple[bool, ...] = ()


class Turn(NamedTuple):
    """One step of a rank. Letters that arrive are in the order of ranks.

    Intervals of two of them are the same or apart. ``overwrites`` are numbers of letters, in the
    order in which the rank sends them, that have to have left before it writes in this turn.
    """

    step: int
    sends: tuple[Letter, ...]
    receives: tuple[Letter, ...]
    overwrites: tuple[int, ...]


class Source(NamedTuple):
    """Elements of a letter that has arrived, or of what is there (`OWN`)."""

    letter: int
    first: int
    stop: int


class Move(NamedTuple):
    """A turn in elements: peers with what they are sent and with how much comes from them.

    ``copies`` are intervals and what replaces them, ``sums`` intervals and what to sum there, in
    the order of ranks.
    """

    step: int
    sends: tuple[tuple[int, tuple[Interval, ...]], ...]
    receives: tuple[tuple[int, int], ...]
    overwrites: tuple[int, ...]
    copies: tuple[tuple[Interval, Source], ...]
    sums: tuple[tuple[Interval, tuple[Source, ...]], ...]


class RankSchedule:
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
        self._turns = turns(collective, rank)
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
            sent = sum(b - a for move in moves for _, parts in move.sends for a, b in parts)
            self._sent[size] = size[1] * sent
        return self._sent[size]


def turns(collective: Collective, rank: int) -> list[Turn]:
    """Return the steps in which a rank takes part."""
    rows = collective.transfers
    own = rows[(rows["source"] == rank) | (rows["target"] == rank)]
    found: list[Turn] = []
    sent = 0
    leaving: dict[int, Letter] = {}  # letters whose parts were not written to since
    for step in np.unique(own["step"]).tolist():
        now = own[own["step"] == step]
        sends = _leaving(now[now["source"] == rank])
        receives = _arriving(now[now["target"] == rank])
        leaving |= dict(enumerate(sends, start=sent))
        sent += len(sends)
        written = [interval for letter in receives for interval in letter.intervals]
        overwrites = tuple(
            number
            for number, letter in leaving.items()
            if any(a < stop and first < b for a, b in letter.intervals for first, stop in written)
        )
        for number in overwrites:
            del leaving[number]
        found.append(Turn(step, sends, receives, overwrites))
    return found


def _leaving(rows: Transfers) -> tuple[Letter, ...]:
    """Return the letters that are sent in one step, with as few intervals as there can be."""
    letters = []
    for peer in dict.fromkeys(rows["target"].tolist()):
        intervals = sorted(rows[["first", "stop"]][rows["target"] == peer].tolist())
        letters.append(Letter(peer, tuple(joined(intervals))))
    return tuple(letters)


def _arriving(rows: Transfers) -> tuple[Letter, ...]:
    """Return the letters that arrive in one step; where an interval ends, those of others do."""
    cuts = sorted({*rows["first"].tolist(), *rows["stop"].tolist()})
    letters = []
    for peer in sorted(set(rows["source"].tolist())):
        pieces: dict[Interval, bool] = {}
        for _, _, _, first, stop, sums in rows[rows["source"] == peer].tolist():
            inner = [first, *(cut for cut in cuts if first < cut < stop), stop]
            pieces |= dict.fromkeys(pairwise(inner), sums)
        ordered = sorted(pieces)
        letters.append(Letter(peer, tuple(ordered), tuple(pieces[one] for one in ordered)))
    return tuple(letters)


def in_elements(turn: Turn, bounds: Sequence[int], rank: int) -> Move:
    """Return the turn of a rank in elements, where part p begins at ``bounds[p]``."""
    sends = [
        (letter.peer, tuple((bounds[a], bounds[b]) for a, b in letter.intervals))
        for letter in turn.sends
    ]
    receives = []
    copies: list[tuple[Interval, Source]] = []
    terms: dict[Interval, list[tuple[int, Source]]] = {}
    for number, letter in enumerate(turn.receives):
        intervals = [(bounds[a], bounds[b]) for a, b in letter.intervals]
        starts = list(accumulate((stop - first for first, stop in intervals), initial=0))
        receives.append((letter.peer, starts[-1]))
        for interval, adds, (first, stop) in zip(
            intervals, letter.sums, pairwise(starts), strict=True
        ):
            source = Source(number, first, stop)
            if adds and first < stop:
                terms.setdefault(interval, [(rank, Source(OWN, *interval))])
                terms[interval].append((letter.peer, source))
            elif first < stop:
                copies.append((interval, source))
    sums = [(one, tuple(source for _, source in sorted(some))) for one, some in terms.items()]
    return Move(
        turn.step, tuple(sends), tuple(receives), turn.overwrites, tuple(copies), tuple(sums)
    )


def part_bounds(elements: int, parts: int) -> tuple[int, ...]:
    """Return where the parts of a tensor begin, and its end: as `torch.Tensor.tensor_split`.

    >>> part_bounds(10, 4)
    (0, 3, 6, 8, 10)
    """
    longer = elements % parts
    lengths = [elements // parts + (part < longer) for part in range(parts)]
    return tuple(accumulate(lengths, initial=0))


def longest_message(collective: Collective) -> int:
    """Return the parts of the longest message of all steps and ranks."""
    rows, ranks = collective.transfers, collective.ranks
    if not len(rows):
        return 0
    pair = (rows["step"].astype(np.int64) * ranks + rows["source"]) * ranks + rows["target"]
    _, message = np.unique(pair, return_inverse=True)
    return int(np.bincount(message, rows["stop"] - rows["first"]).max())


def content(block: torch.Tensor, intervals: Sequence[Interval]) -> torch.Tensor:
    """Return the elements that a move sends to one peer, in one piece."""
    pieces = [block[first:stop] for first, stop in intervals]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def write(move: Move, block: torch.Tensor, arrived: Sequence[torch.Tensor]) -> None:
    """Copy and sum what arrived, a tensor for each letter that the move receives."""
    for (first, stop), (letter, start, end) in move.copies:
        block[first:stop] = arrived[letter][start:end]
    for (first, stop), sources in move.sums:
        values = [
            (block if source.letter == OWN else arrived[source.letter])[source.first : source.stop]
            for source in sources
        ]
        own = block[first:stop]
        if len(values) == 2:  # in either order the same bits
            torch.add(*values, out=own)
            continue
        total = values[0] + values[1]
        for value in values[2:]:
            total += value
        own.copy_(total)
