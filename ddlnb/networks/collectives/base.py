"""What a page of this folder is: parameters, and the list of transfers that they make.

What pages are built of: reduce-scatter and all-gather round rings and between pairs.

All functions make the rows of many rings or pairs, and of all their steps, at once. Workers may
stand as an array of rows and columns, whose shape fits or is refused with the reason; algorithms
for powers of two have extra workers lean on a neighbour.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.plans.transfers import TRANSFER, Collective, Primitive, Transfers, transfers
from ddlnb.registry import Choice

ALL_REDUCE: Primitive = "all-reduce"


class Algorithm(Choice):
    """One way to carry out a primitive, or several; subclasses are frozen dataclasses.

    Fields are parameters that can be written behind the name: ``torus(4, 8)``.
    """

    brief = True
    primitives: ClassVar[tuple[Primitive, ...]] = (ALL_REDUCE,)
    knows_nodes: ClassVar[bool] = False  # whether it matters which workers share a node

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return why it does not run among so many workers and the way out, or nothing."""
        return ""

    @abstractmethod
    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
    ) -> Collective:
        """Return the transfers among workers of which ``per_node`` neighbours share a node."""

    def made(
        self,
        primitive: Primitive,
        workers: int,
        parts: int,
        *rows: Transfers,
        servers: int = 0,
    ) -> Collective:
        """Return the collective of these rows, named after the page."""
        return Collective(self.name, primitive, workers, parts, joined(*rows), servers)


Numbers = NDArray[np.int64]


def joined(*rows: Transfers) -> Transfers:
    """Return all rows that send something, in one array."""
    flat = np.concatenate([np.empty(0, TRANSFER), *(some.reshape(-1) for some in rows)])
    return flat[flat["first"] < flat["stop"]]


def after(step: int, rows: Transfers) -> Transfers:
    """Return the rows, so many steps later."""
    later = rows.copy()
    later["step"] += step
    return later


def reversed_steps(rows: Transfers, steps: int) -> Transfers:
    """Return the way back: last step first, from target to source, sums put in their place."""
    back = rows.copy()
    back["step"] = steps - 1 - rows["step"]
    back["source"], back["target"] = rows["target"], rows["source"]
    back["reduces"] = False
    return back


def shares(parts: int, among: int) -> Numbers:
    """Return where the parts of each of so many owners begin, and where the last one's end.

    >>> shares(8, 4).tolist(), shares(2, 4).tolist()
    ([0, 2, 4, 6, 8], [0, 1, 1, 2, 2])
    """
    return -(np.arange(among + 1) * -parts // among)


def ring_reduce_scatter(rings: Numbers, bounds: Numbers) -> Transfers:
    """Sum block i of every ring on its i-th member, in one step less than it has members.

    ``rings`` are ranks, a row for each ring; block i of ring r is from part ``bounds[r, i]`` to
    ``bounds[r, i + 1]``. A block sets out behind its owner and is added to on its way there.
    """
    ring, hop, block = _grid(rings, bounds)
    members = rings.shape[1]
    source = rings[ring, (block + 1 + hop) % members]
    target = rings[ring, (block + 2 + hop) % members]
    return transfers(hop, source, target, bounds[ring, block], bounds[ring, block + 1], True)


def ring_all_gather(rings: Numbers, bounds: Numbers) -> Transfers:
    """Pass block i of every ring on from its i-th member until all have it."""
    ring, hop, block = _grid(rings, bounds)
    members = rings.shape[1]
    source, target = rings[ring, (block + hop) % members], rings[ring, (block + hop + 1) % members]
    return transfers(hop, source, target, bounds[ring, block], bounds[ring, block + 1], False)


def _grid(rings: Numbers, bounds: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the numbers of rings, hops and blocks, to be broadcast against each other.

    Blocks that are empty in all rings are left out: there are few parts to 1,024 ranks.
    """
    count, members = rings.shape
    blocks = np.flatnonzero((np.diff(bounds) > 0).any(axis=0))
    return np.arange(count)[None, :, None], np.arange(members - 1)[:, None, None], blocks


def over_dimensions(ranks: Numbers, order: Sequence[int], first: int, size: int) -> Transfers:
    """All-reduce ``size`` parts from ``first`` on, dimension after dimension of an array of ranks.

    Rings along each dimension in order reduce-scatter what they hold, which shrinks by the number
    of their members; then the same rings all-gather, the other way round. ``size`` is a multiple
    of the number of ranks. Takes 2 (d - 1) steps for every dimension d.
    """
    rows, step = [], 0
    held = np.full(ranks.shape, first)
    steps = 2 * sum(ranks.shape[axis] - 1 for axis in order)
    for axis in order:
        members = ranks.shape[axis]
        size //= members
        rings = np.moveaxis(ranks, axis, -1).reshape(-1, members)
        start = np.moveaxis(held, axis, -1).reshape(-1, members)[:, :1]
        bounds = start + size * np.arange(members + 1)
        gathered = after(steps - step - (members - 1), ring_all_gather(rings, bounds))
        rows += [after(step, ring_reduce_scatter(rings, bounds)), gathered]
        place = [1] * ranks.ndim
        place[axis] = members
        held = held + size * np.arange(members).reshape(place)
        step += members - 1
    return joined(*rows)


def halving_and_doubling(ranks: Numbers, partners: Sequence[Numbers], first: int = 0) -> Transfers:
    """All-reduce as many parts as ranks, swapping halves with partner after partner, and back.

    ``partners[s][i]`` is the index of the partner of ``ranks[i]`` in step s. Two partners hold sums
    of the same range; each keeps the half that those need whom it can still reach. In as many more
    steps the halves come back. Where a rank's range lies follows from its later partners.
    """
    position = halves(partners, len(ranks))
    steps = len(partners)
    rows = []
    for step, partner in enumerate(partners):
        length = 1 << (steps - 1 - step)
        start = first + position // length * length
        given = start[partner]
        rows.append(transfers(step, ranks, ranks[partner], given, given + length, True))
    return joined(*rows, reversed_steps(joined(*rows), 2 * steps))


def halves(partners: Sequence[Numbers], count: int) -> Numbers:
    """Return the part that each rank ends with when halves are swapped with these partners.

    >>> near = [np.arange(4) ^ 1, np.arange(4) ^ 2]
    >>> halves(near, 4).tolist(), halves(near[::-1], 4).tolist()
    ([0, 2, 1, 3], [0, 1, 2, 3])
    """
    lowest = position = np.arange(count)  # the lowest rank that can be reached by later steps
    position = np.zeros_like(lowest)
    for step, partner in enumerate(reversed(partners)):
        together = np.minimum(lowest, lowest[partner])
        position = position + ((lowest != together).astype(np.int64) << step)
        lowest = together
    return position


def powers(count: int) -> list[int]:
    """Return 1, 2, 4, ... below the count.

    >>> powers(5), powers(8)
    ([1, 2, 4], [1, 2, 4])
    """
    return [1 << bit for bit in range((count - 1).bit_length())]


def is_power_of_two(count: int) -> bool:
    """Return whether the count is 1, 2, 4, ..."""
    return count & (count - 1) == 0


def squarest(workers: int) -> tuple[int, int]:
    """Return rows and columns that hold all workers and differ least, rows the fewer.

    >>> squarest(32), squarest(7)
    ((4, 8), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(workers), 0, -1) if workers % rows == 0)
    return rows, workers // rows


def misfit(name: str, shape: Sequence[int], workers: int) -> str:
    """Return why a shape does not hold the workers, or nothing if it does.

    >>> misfit("torus", (2, 3), 8)
    'torus has 2 x 3 = 6 places for 8 workers; give lengths whose product is 8'
    """
    places = math.prod(shape)
    if places == workers and min(shape) > 0:
        return ""
    lengths = " x ".join(map(str, shape))
    return (
        f"{name} has {lengths} = {places} places for {workers} workers; "
        f"give lengths whose product is {workers}"
    )


class Paired(NamedTuple):
    """``ranks`` are those that take part, a power of two of them.

    ``before``, in step 0, adds what the others have to theirs; ``result`` brings them the sum.
    """

    ranks: Numbers
    before: Transfers
    result: Transfers

    @property
    def levels(self) -> int:
        """Return the binary logarithm of the number of ranks that take part."""
        return len(self.ranks).bit_length() - 1

    @property
    def lead(self) -> int:
        """Return the steps before the ranks that take part begin: 1 if there are others."""
        return int(len(self.before) > 0)


def paired(workers: int, parts: int) -> Paired:
    """Return who takes part: of the first 2 x workers, x beyond a power of two, the odd ones.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4; so does MPICH.

    >>> paired(6, 1).ranks.tolist()
    [1, 3, 4, 5]
    """
    extra = workers - (1 << (workers.bit_length() - 1))
    even = 2 * np.arange(extra)
    ranks = np.concatenate([even + 1, np.arange(2 * extra, workers)])
    before = transfers(0, even, even + 1, 0, parts, True)
    return Paired(ranks, before, transfers(0, even + 1, even, 0, parts, False))
