"""All-reduce along a ring, a tree, a hypercube or a mesh, from point-to-point messages alone.

Each function sums a contiguous tensor over all ranks of the default process group, in place, for
any number of elements and ranks, and leaves the same bits on every rank. Receives are posted
before they are due, into tensors of their own: a sender that has to ask for room pays a second
delay per hop.
What each costs is in `ddlnb.plans.alpha_beta`. Source: survey of Shi et al. 2020, section 3.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.engines.process_group import process_group
from ddlnb.errors import UnknownName
from ddlnb.launch.rank import RankContext

AllReduce = Callable[[torch.Tensor], None]
BYTES_PER_ELEMENT = 4
AHEAD = 3  # hops of a ring for which room is made before they come


class _Message:
    """A message in flight. One without elements is not sent: both ends know that it has none."""

    def __init__(
        self,
        start: Callable,
        tensor: torch.Tensor,
        peer: int,
        tag: int,
        group: dist.ProcessGroup | None,
    ):
        self._tensor = tensor
        sent = tensor.numel() > 0
        self._work: Any = start(tensor, peer, group=group, tag=tag) if sent else None

    def wait(self) -> torch.Tensor:
        """Return the tensor, once it has arrived or may be written to again."""
        if self._work is not None:
            self._work.wait()
            self._work = None  # gloo would wait for another one
        return self._tensor


def _send(
    tensor: torch.Tensor, peer: int, tag: int, group: dist.ProcessGroup | None = None
) -> _Message:
    return _Message(dist.isend, tensor, peer, tag, group)


def _receive(
    like: torch.Tensor, peer: int, tag: int, group: dist.ProcessGroup | None = None
) -> _Message:
    return _Message(dist.irecv, torch.empty_like(like), peer, tag, group)


def _wait_for(messages: Iterable[_Message]) -> None:
    for message in messages:
        message.wait()


def ring(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    segment_elements: int | None = None,
) -> None:
    """Pass n parts round: summed in n - 1 hops, the sums passed on in n - 1 more.

    With ``segment_elements`` a part travels in pieces of that size: a worker hands on the first
    while the next is on its way to it, so that links do not idle while workers wait and add.
    """
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    parts = tensor.view(-1).tensor_split(count)
    pieces = [part.split(segment_elements or max(1, len(part))) for part in parts]
    most = max(len(some) for some in pieces)
    following, previous = (rank + 1) % count, (rank - 1) % count
    hops = 2 * (count - 1)

    def receive(hop: int) -> list[_Message]:
        some = pieces[(rank - hop - 1) % count]
        return [_receive(one, previous, hop * most + i, group) for i, one in enumerate(some)]

    def send(hop: int, i: int) -> None:
        sending[hop].append(
            _send(pieces[(rank - hop) % count][i], following, hop * most + i, group)
        )

    arriving = [receive(hop) for hop in range(min(hops, AHEAD))]
    sending: list[list[_Message]] = [[] for _ in range(hops)]
    for i in range(len(pieces[rank]) if hops else 0):
        send(0, i)
    for hop in range(hops):
        if hop + AHEAD < hops:
            arriving.append(receive(hop + AHEAD))
        for i, one in enumerate(pieces[(rank - hop - 1) % count]):
            arrived = arriving[hop][i].wait()
            if hop < count - 1:
                one += arrived
            else:
                sending[hop - count + 1][i].wait()  # this piece's sum so far, which has long left
                one.copy_(arrived)
            if hop + 1 < hops:
                send(hop + 1, i)
        arriving[hop].clear()
    for messages in sending:
        _wait_for(messages)


def tree(tensor: torch.Tensor) -> None:
    """Send whole tensors up a binomial tree to rank 0, and the sum down: 2 ceil(log2 n) hops."""
    rank, count = dist.get_rank(), dist.get_world_size()
    whole = tensor.view(-1)
    children = [rank + step for step in _powers(count) if rank % (2 * step) == 0]
    children = [child for child in children if child < count]
    parent = rank & (rank - 1)  # without its lowest bit
    arriving = [_receive(whole, child, 0) for child in children]
    result = _receive(whole, parent, 1) if rank else None
    for message in arriving:
        whole += message.wait()
    if result is not None:
        _send(whole, parent, 0).wait()
        whole.copy_(result.wait())
    # The farthest child first: it has the most descendants.
    _wait_for([_send(whole, child, 1) for child in reversed(children)])


def recursive_doubling(tensor: torch.Tensor) -> None:
    """Swap whole tensors with the ranks 1, 2, 4, ... away: log2 n hops for powers of two.

    Otherwise those beyond the largest power of two first hand theirs to one below it, and get the
    sum back from there: two hops more.
    """
    rank, count = dist.get_rank(), dist.get_world_size()
    whole = tensor.view(-1)
    power = 1 << (count.bit_length() - 1)
    partner = rank ^ power
    if rank >= power:
        result = _receive(whole, partner, 1)
        _send(whole, partner, 0).wait()
        whole.copy_(result.wait())
        return
    steps = _powers(power)
    arriving = [_receive(whole, rank ^ step, 1 + step) for step in steps]
    if partner < count:
        whole += _receive(whole, partner, 0).wait()
    for step, message in zip(steps, arriving, strict=True):
        sent = _send(whole, rank ^ step, 1 + step)
        arrived = message.wait()
        sent.wait()
        whole += arrived
    if partner < count:
        _send(whole, partner, 1).wait()


def mesh(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Sum one n-th on every rank, from what all others send it at once; send all the sum."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    parts = tensor.view(-1).tensor_split(count)
    others = _others(rank, count)
    shares = {other: _receive(parts[rank], other, 0, group) for other in others}
    sums = {other: _receive(parts[other], other, 1, group) for other in others}
    sending = [_send(parts[other], other, 0, group) for other in others]
    parts[rank].copy_(_in_rank_order(parts[rank], shares, rank, count))
    sending += [_send(parts[rank], other, 1, group) for other in others]
    _wait_for(sending)
    for other in others:
        parts[other].copy_(sums[other].wait())


def everyone(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Send the whole tensor from every rank to all others, and sum them there: one hop."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    whole = tensor.view(-1)
    others = _others(rank, count)
    theirs = {other: _receive(whole, other, 0, group) for other in others}
    sending = [_send(whole, other, 0, group) for other in others]
    total = _in_rank_order(whole, theirs, rank, count)
    _wait_for(sending)
    whole.copy_(total)


def _others(rank: int, count: int) -> list[int]:
    """Return all other ranks; each rank begins with another, so that none gets all at first."""
    return [(rank + step) % count for step in range(1, count)]


def _in_rank_order(
    own: torch.Tensor, theirs: dict[int, _Message], rank: int, count: int
) -> torch.Tensor:
    """Return the sum in the same order on every rank and in every run, whoever comes first."""
    total = torch.zeros_like(own)
    for other in range(count):
        total += own if other == rank else theirs[other].wait()
    return total


def _powers(count: int) -> list[int]:
    """Return 1, 2, 4, ... below the count."""
    return [1 << bit for bit in range((count - 1).bit_length())]


ALGORITHMS: dict[str, AllReduce] = {
    "ring": ring,
    "tree": tree,
    "recursive doubling": recursive_doubling,
    "direct mesh": mesh,
}


def get_algorithm(name: str) -> AllReduce:
    """Return the all-reduce of that name. Raises UnknownName."""
    if name not in ALGORITHMS:
        raise UnknownName("all-reduce", name, ALGORITHMS)
    return ALGORITHMS[name]


def time_all_reduces(
    context: RankContext, names: Sequence[str], sizes: Sequence[int], repetitions: int
) -> dict[tuple[str, int, int], float]:
    """Return this rank's seconds by algorithm, bytes and repetition, each after a barrier.

    Every repetition runs all algorithms and sizes once, so that a drift of the machine hits all
    alike. The first round is not counted: connections open in it.
    """
    found = {}
    with process_group(context, context.store(), context.count):
        for repetition in range(-1, repetitions):
            for size in sizes:
                for name in names:
                    tensor = torch.ones(max(1, size // BYTES_PER_ELEMENT))
                    dist.barrier()
                    start = time.perf_counter()
                    get_algorithm(name)(tensor)
                    found[name, size, repetition] = time.perf_counter() - start
    return {key: seconds for key, seconds in found.items() if key[2] >= 0}
