"""A collective as a list of transfers: who sends which part of the message to whom, in which step.

The list is all there is. The proof that a collective is right, its counts of bytes and steps, its
simulation on a network and its execution on real ranks all read the same list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import require, require_whole
from ddlnb.plans.alpha_beta import AlphaBeta

Primitive = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all"]

TRANSFER = np.dtype(
    [
        ("step", np.int32),
        ("source", np.int32),
        ("target", np.int32),
        ("first", np.int32),
        ("stop", np.int32),
        ("reduces", np.bool_),
    ]
)
"""One transfer: in ``step`` rank ``source`` sends the parts ``first`` to ``stop`` - 1 to rank
``target``, which adds them to its own (``reduces``) or puts them in their place."""

Transfers = NDArray[np.void]
Whole = NDArray[np.integer[Any]]
Interval = tuple[int, int]  # the first part or element, and the one behind the last


def transfers(
    step: int | Whole,
    source: Sequence[int] | Whole,
    target: Sequence[int] | Whole,
    first: Sequence[int] | Whole | int,
    stop: Sequence[int] | Whole | int,
    reduces: bool,
) -> Transfers:
    """Return transfers; arguments are numbers, or arrays with one for each transfer.

    >>> transfers(0, [0, 1], [1, 0], 0, 1, reduces=True).tolist()
    [(0, 0, 1, 0, 1, True), (0, 1, 0, 0, 1, True)]
    """
    columns = np.broadcast_arrays(step, source, target, first, stop, reduces)
    rows = np.empty(columns[0].shape, TRANSFER)
    for name, column in zip(TRANSFER.names or (), columns, strict=True):
        rows[name] = column
    return rows


@dataclass(frozen=True, eq=False)
class Collective:
    """What ``ranks`` do to a message that is cut into equal ``parts``.

    Ranks from 0 to ``workers`` - 1 contribute; those after them, if any, are parameter servers.
    What they begin and end with says the primitive:

    - all-reduce: every worker begins with a message and ends with the sum of all;
    - reduce-scatter: the same, and worker r ends with the sum of its parts (`owner`) alone;
    - all-gather: worker r begins with its parts and all end with all;
    - broadcast: worker 0 begins with the message and all end with it;
    - all-to-all: part s * workers + t goes from worker s to worker t.

    Order: a rank sends in a step when it has received all that earlier steps send it of the parts
    concerned, and its own sends of earlier steps have left: their last byte is on its way, which
    is before it arrives, by the start-up and the latency of the route. So the bytes of a message
    leave first, and what is waited for comes after them. Rows of one step with the same source
    and target travel as one message; none that a rank receives in a step is sent on in that step.

    Raises InputError for ranks, parts or steps that are out of range, and for a rank that sends to
    itself.
    """

    name: str
    primitive: Primitive
    workers: int
    parts: int
    transfers: Transfers = field(repr=False)
    servers: int = 0

    def __post_init__(self) -> None:
        require_whole(workers=self.workers, parts=self.parts)
        require_whole(0, servers=self.servers)
        rows = self.transfers
        order = np.argsort(rows["step"], kind="stable")
        object.__setattr__(self, "transfers", rows[order])
        ends = np.concatenate([rows["source"], rows["target"]])
        require(
            len(rows) == 0 or (ends.min() >= 0 and ends.max() < self.ranks),
            f"{self.name} sends between ranks that are not among its {self.ranks}",
        )
        require(
            not (rows["source"] == rows["target"]).any(), f"{self.name}: a rank sends to itself"
        )
        require(not (rows["step"] < 0).any(), f"{self.name} has steps below 0; begin with step 0")
        require(
            len(rows) == 0
            or (
                rows["first"].min() >= 0
                and rows["stop"].max() <= self.parts
                and bool((rows["first"] < rows["stop"]).all())
            ),
            f"{self.name} sends parts that are not among its {self.parts}",
        )

    @property
    def ranks(self) -> int:
        """Return the number of ranks that take part, servers among them."""
        return self.workers + self.servers

    @cached_property
    def steps(self) -> int:
        """Return the number of steps, one after the other."""
        return int(self.transfers["step"].max()) + 1 if len(self.transfers) else 0

    def owner(self, part: int) -> int:
        """Return the worker that ends with a part of a reduce-scatter, or begins with it."""
        return part * self.workers // self.parts

    @cached_property
    def parts_sent(self) -> NDArray[np.int64]:
        """Return the number of parts that every rank sends."""
        rows = self.transfers
        sent = np.bincount(rows["source"], rows["stop"] - rows["first"], minlength=self.ranks)
        return sent.astype(np.int64)

    def bytes_sent(self, message_bytes: float) -> NDArray[np.float64]:
        """Return the bytes that every rank sends for a message of this many bytes."""
        return np.asarray(self.parts_sent * (message_bytes / self.parts), np.float64)

    def cost(self, link: AlphaBeta) -> AlphaBeta:
        """Return the seconds where steps wait for each other, and links are all alike.

        ``link`` is the cost of one message. In every step the rank counts that sends or receives
        most: it does both at the same time, and no two ranks share a link.

        >>> from ddlnb.networks.collectives.catalogue import get_collective
        >>> print(get_collective("halving-doubling", 4).cost(AlphaBeta(1e-4, 1e-9)))
        400 us + M / (5.33 Gb/s)
        """
        rows, most = self.transfers, np.zeros(self.steps)
        for end in ("source", "target"):
            place = rows["step"].astype(np.int64) * self.ranks + rows[end]
            parts = np.bincount(place, rows["stop"] - rows["first"], self.steps * self.ranks)
            most = np.maximum(most, parts.reshape(-1, self.ranks).max(axis=1, initial=0.0))
        share = float(most.sum()) / self.parts
        return AlphaBeta(self.steps * link.latency_seconds, share * link.seconds_per_byte)


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals in which one that begins where the last one ends is part of it.

    >>> joined([(0, 2), (2, 5), (7, 9)])
    [(0, 5), (7, 9)]
    """
    found: list[Interval] = []
    for first, stop in intervals:
        begin = found.pop()[0] if found and found[-1][1] == first else first
        found.append((begin, stop))
    return found
