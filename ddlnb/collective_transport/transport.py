"""Carries out collectives on real ranks, over one connection between each two of them.

All messages share the connections and travel in the order in which they start, the next one while
the last one still is on its way: an all-reduce occupies links for its bytes, and its delays pass
meanwhile. A frame says which move of which message it belongs to, so ranks may start messages in
different orders, and one that comes early waits for its turn. One thread does it all, and sleeps
until the rest of a frame is there, or many packets of it: a message costs little of a processor
that computes as well.

Which schedule a message travels by is a function of the message and the request. The collectives
themselves come from the registry, which `ddlnb.networks` supplies.

What ranks measure of collectives: seconds by collective and size, in alternating rounds.
"""

from __future__ import annotations

import math
import os
import selectors
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddlnb.collective_transport.connections import (
    ON_CPUS,
    Frame,
    Stream,
    connect_to_peers,
    group_or_default,
)
from ddlnb.collective_transport.rank_schedule import Move, RankSchedule, content, write
from ddlnb.engines.base import Callback, Handle, Pending, ThreadedTransport
from ddlnb.engines.transports.push_pull import to_bytes
from ddlnb.errors import InputError, MissingPart
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.plans.requests import AllReduce, GatherParts, ReduceScatter
from ddlnb.plans.transfers import Collective, Primitive
from ddlnb.registry import supplied
from ddlnb.units import KIB, MIB

Choose = Callable[[int, Any], RankSchedule]  # by the number of a message, and its request

HALVES: dict[type, Primitive] = {ReduceScatter: "reduce-scatter", GatherParts: "all-gather"}


class _Block:
    """A block of a message. ``leaving`` are numbers of letters that the kernel does not have yet.

    Messages without elements are not sent: both ends know that they have none.
    """

    def __init__(self, number: int, flat: torch.Tensor, moves: list[Move]):
        self.number, self.flat, self._moves = number, flat, moves
        self.taken = 0
        self.leaving: set[int] = set()
        self._letters = 0

    @property
    def now(self) -> Move:
        """The move that is to be taken next."""
        return self._moves[self.taken]

    @property
    def is_done(self) -> bool:
        return self.taken == len(self._moves)

    @property
    def is_held(self) -> bool:
        """Whether letters have to leave before the next move is written."""
        return not self.leaving.isdisjoint(self.now.overwrites)

    def letters(self) -> list[tuple[int, int, torch.Tensor]]:
        """Return number, peer and content of what leaves in this move."""
        found = []
        for peer, intervals in self.now.sends:
            elements = content(self.flat, intervals)
            if elements.numel():
                self.leaving.add(self._letters)
                found.append((self._letters, peer, elements))
            self._letters += 1
        return found


class _Carried(Pending):
    """A message on its way."""

    def __init__(
        self,
        message: int,
        tensor: torch.Tensor,
        callbacks: tuple[Callback, ...],
        timeout_seconds: float,
        schedule: RankSchedule,
        repeat: int,
    ):
        super().__init__(message, tensor, callbacks, "the other ranks", timeout_seconds)
        self.key = message, repeat
        self.blocks = [
            _Block(number, flat, schedule.moves(flat.numel()))
            for number, flat in enumerate(schedule.blocks(tensor))
        ]

    @property
    def is_done(self) -> bool:
        return all(block.is_done and not block.leaving for block in self.blocks)


class CollectiveTransport(ThreadedTransport[_Carried]):
    """Carries tensors by their schedules among the ranks of a process group, in place.

    ``choose`` returns the schedule of a request, the same on all ranks. ``host`` is the address of
    this rank's machine, at which the others reach it; the group is the default one if none.
    ``bytes_sent`` is what is sent to the others, without headers.
    """

    def __init__(
        self,
        host: str,
        timeout_seconds: float,
        group: dist.ProcessGroup | None = None,
        choose: Choose | None = None,
    ):
        connections = connect_to_peers(host, timeout_seconds, group_or_default(group))
        super().__init__("collectives", timeout_seconds)
        self._choose = choose
        self._streams = {
            other: Stream(connection, self._room) for other, connection in connections.items()
        }
        self._repeats: Counter[int] = Counter()  # how often a message was started
        self._arrived: dict[tuple[int, ...], memoryview] = {}  # by the numbers of a frame and rank
        self._spare: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._gone: set[int] = set()  # ranks that have closed their end
        self._changed: deque[tuple[_Carried, _Block]] = deque()  # which may have moves to take
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for other, stream in self._streams.items():
            self._selector.register(stream.connection, selectors.EVENT_READ, other)
        self._thread.start()

    def start(
        self, message: int, request: Any, released: Callback = None, answered: Callback = None
    ) -> Handle:
        """Start what the request asks for, in place of its tensor; released when it is answered."""
        assert self._choose is not None
        schedule = self._choose(message, request)
        return self.carry(schedule, message, request.tensor, released, answered)

    def carry(
        self,
        schedule: RankSchedule,
        message: int,
        tensor: torch.Tensor,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start a tensor on a schedule; every rank has to, with the same number of the message.

        Raises ConnectionError once a connection was lost or all were closed.
        """
        if tensor.is_cuda:
            raise MissingPart(ON_CPUS)
        again = (answered, released), self._timeout, schedule, self._repeats[message]
        started = _Carried(message, tensor, *again)
        self._repeats[message] += 1
        self.bytes_sent += schedule.bytes_sent(tensor)
        self._put(started)
        return started

    def _turn(self) -> bool:
        for key, events in self._selector.select():
            if key.data is None:
                os.read(self._woken, 4096)
                continue
            if events & selectors.EVENT_WRITE:
                self._send(key.data)
            if events & selectors.EVENT_READ:
                self._receive(key.data)
        for started in self._taken():
            if started is None:
                return False
            self._pending[started.key] = started
            for block in started.blocks:
                if not block.is_done:
                    self._leave(started, block)
                self._changed.append((started, block))
        while self._changed:
            self._advance(*self._changed.popleft())
        return True

    def _disconnect(self) -> None:
        self._selector.close()
        for stream in self._streams.values():
            stream.connection.close()

    def _leave(self, started: _Carried, block: _Block) -> None:
        """Send what leaves in the block's move."""
        letters = block.letters()
        for number, other, tensor in letters:
            frame = Frame(*started.key, block.number, block.now.step, to_bytes(tensor))
            self._streams[other].put(frame, (started, block, number))
        for _, other, _ in letters:
            self._send(other)

    def _send(self, other: int) -> None:
        stream = self._streams[other]
        if other in self._gone:
            raise ConnectionError(f"{_gone(other)} it had all messages")
        try:
            left = stream.send()
        except ConnectionError as error:
            raise ConnectionError(f"{_gone(other)} it had all messages") from error
        for started, block, letter in left:
            block.leaving.discard(letter)
            self._changed.append((started, block))
        events = selectors.EVENT_READ | (0 if stream.is_idle else selectors.EVENT_WRITE)
        if self._selector.get_key(stream.connection).events != events:
            self._selector.modify(stream.connection, events, other)

    def _room(self, size: int) -> memoryview:
        spare = self._spare[size]
        return spare.pop() if spare else to_bytes(torch.empty(size, dtype=torch.uint8))

    def _receive(self, other: int) -> None:
        try:
            frames = self._streams[other].receive()
        except (EOFError, ConnectionError) as error:
            if not self._streams[other].is_idle:
                raise ConnectionError(f"{_gone(other)} it had all messages") from error
            self._selector.unregister(self._streams[other].connection)
            self._gone.add(other)
            self._changed += [(s, block) for s in self._pending.values() for block in s.blocks]
            return
        for message, repeat, number, step, data in frames:
            self._arrived[message, repeat, number, step, other] = data
            if (started := self._pending.get((message, repeat))) is not None:
                self._changed.append((started, started.blocks[number]))

    def _advance(self, started: _Carried, block: _Block) -> None:
        """Take the moves for which all is there, and answer a message that has taken its last."""
        while not block.is_done and not block.is_held:
            arrived = self._letters_of(started, block)
            if arrived is None:
                return
            write(
                block.now,
                block.flat,
                [
                    torch.frombuffer(data, dtype=block.flat.dtype) if data else block.flat[:0]
                    for data in arrived
                ],
            )
            for data in filter(None, arrived):
                self._spare[data.nbytes].append(data)
            block.taken += 1
            if not block.is_done:
                self._leave(started, block)
        if started.is_done and started.key in self._pending:
            started.finish()
            del self._pending[started.key]  # not before: if a callback fails, the waiter hears

    def _letters_of(self, started: _Carried, block: _Block) -> list[memoryview] | None:
        """Return what the block's move receives, in order, once all of it is there."""
        numbers = (*started.key, block.number, block.now.step)
        full = [peer for peer, length in block.now.receives if length]
        missing = [peer for peer in full if (*numbers, peer) not in self._arrived]
        for peer in missing:
            if peer in self._gone:
                raise ConnectionError(f"{_gone(peer)} message {started.message} was there")
        if missing:
            return None
        size, found = block.flat.element_size(), []
        for peer, length in block.now.receives:
            data = self._arrived.pop((*numbers, peer)) if length else memoryview(b"")
            if data.nbytes != length * size:
                raise InputError(
                    f"rank {peer} sent {data.nbytes} bytes of message {started.message} where "
                    f"{length * size} were due; start it with as many elements of the same dtype "
                    f"on all ranks"
                )
            found.append(data)
        return found


def _gone(rank: int) -> str:
    return f"rank {rank} closed its connection before"


def schedule_named(
    name: str, group: dist.ProcessGroup | None = None, block_bytes: float = math.inf, **of: Any
) -> RankSchedule:
    """Return this rank's schedule of the collective of that name among the ranks of a group.

    ``of`` are `primitive` and `per_node`, as `get_collective` takes them.
    """
    group = group_or_default(group)
    made = supplied("collective")(name, group.size(), **of)
    return RankSchedule(made, group.rank(), block_bytes)


def halves(host: str, timeout_seconds: float) -> CollectiveTransport:
    """Return what answers `ReduceScatter` and `GatherParts` along a ring.

    The backend's own are not taken: gloo reduces to all before it scatters, and both want tensors
    that workers divide evenly.
    """
    by_kind = {kind: schedule_named("ring", primitive=half) for kind, half in HALVES.items()}
    return CollectiveTransport(
        host, timeout_seconds, choose=lambda _, request: by_kind[type(request)]
    )


def per_message(
    names: Sequence[str], per_node: int, host: str, timeout_seconds: float
) -> CollectiveTransport:
    """Return what answers message i by the collective ``names[i]``; those without have none.

    ``per_node`` is how many neighbouring ranks share a node, which only some collectives care for.
    """
    by_name = {name: schedule_named(name, per_node=per_node) for name in sorted({*names} - {""})}
    return CollectiveTransport(
        host, timeout_seconds, choose=lambda message, _: by_name[names[message]]
    )


def along(
    collective: Collective, rank: int, host: str, timeout_seconds: float
) -> CollectiveTransport:
    """Return what carries every message by one collective, of which this is the rank's part."""
    schedule = RankSchedule(collective, rank)
    return CollectiveTransport(host, timeout_seconds, choose=lambda *_: schedule)


# All-reduce for links with long delays: a mesh, and a ring.

SMALL_BYTES = 8 * KIB
PROBE_BYTES = 64 * KIB, MIB
PROBES = 3
BLOCK_BYTES = 128 * KIB


class MeshTransport(CollectiveTransport):
    """Sums tensors over all workers, in place; the same bits on each. Two hops up to a size.

    A ring of n workers passes 2 (n-1) delays one after the other; a mesh, in which every worker
    sums one part of the tensor for all, passes two, with the same 2 (n-1) / n of the bytes from
    every worker. On links with long delays that is most of a small message's cost. Small tensors
    are not even cut: every worker sends its own to all others and sums them itself, in one hop.
    Large ones go round a ring in blocks: there only the bytes count, and steady streams fill links
    better than everybody's bursts. Where "large" begins depends on the links: ``two_hops_up_to``
    are bytes, the same on all workers, which they measure before they start if it is None.
    """

    def __init__(
        self,
        host: str,
        timeout_seconds: float,
        group: dist.ProcessGroup | None = None,
        two_hops_up_to: float | None = None,
    ):
        group = group_or_default(group)
        self.one_hop = schedule_named("exchange", group)
        self.two_hops = schedule_named("direct", group)
        self.ring = schedule_named("ring", group, BLOCK_BYTES)
        super().__init__(host, timeout_seconds, group, self._by_size)
        try:
            measured = self._measured_limit(group) if two_hops_up_to is None else two_hops_up_to
        except BaseException:
            self.close()
            raise
        self.two_hops_up_to = measured

    def _by_size(self, message: int, request: AllReduce) -> RankSchedule:
        size = request.tensor.nbytes
        if size <= SMALL_BYTES:
            return self.one_hop
        return self.two_hops if size <= self.two_hops_up_to else self.ring

    def _measured_limit(self, group: dist.ProcessGroup) -> float:
        """Measure up to what size these workers should stay with the mesh, and agree on it.

        Mesh and ring are timed with a smaller and with a larger message, and taken for straight
        lines between; beyond the larger one always the ring, because bursts that fill the buffers
        on the way cost more than in proportion.
        """
        tensors = [torch.zeros(size // 4) for size in PROBE_BYTES]
        lost: list[list[float]] = [[], []]  # seconds that the ring takes longer
        for _ in range(PROBES + 1):
            for tensor, seconds in zip(tensors, lost, strict=True):
                by_ring = self._seconds(self.ring, tensor)
                seconds.append(by_ring - self._seconds(self.two_hops, tensor))
        medians = [statistics.median(seconds[1:]) for seconds in lost]  # windows open in the first
        agreed = torch.tensor(medians, dtype=torch.float64)
        group.allreduce([agreed]).wait()
        self.bytes_sent = 0.0
        return _crossing(*agreed.tolist())

    def _seconds(self, schedule: RankSchedule, tensor: torch.Tensor) -> float:
        start = time.perf_counter()
        self.carry(schedule, 0, tensor).wait()
        return time.perf_counter() - start


def _crossing(lost_small: float, lost_large: float) -> float:
    """Return the bytes at which a line through both probes is zero, between 0 and the larger.

    >>> round(_crossing(0.02, -0.01) / 1024)
    704
    >>> _crossing(0.02, 0.01), _crossing(-0.01, -0.02)
    (1048576, 0.0)
    """
    small, large = PROBE_BYTES
    if lost_small <= 0:
        return 0.0
    if lost_large >= 0:
        return large
    return small + (large - small) * lost_small / (lost_small - lost_large)


def time_collectives(
    context: RankContext, names: Sequence[str], sizes: Sequence[int], repetitions: int
) -> dict[tuple[str, int, int], float]:
    """Return this rank's seconds by all-reduce, bytes and repetition, each after a barrier.

    "" is the backend's own. Every repetition runs all collectives and sizes once, so that a drift
    of the machine hits all alike. The first round is not counted: in it the windows of connections
    open.
    """
    found = {}
    with (
        process_group(context, context.store(), context.count),
        CollectiveTransport(context.host, context.timeout_seconds) as transport,
    ):
        schedules = {name: schedule_named(name) if name else None for name in names}
        for repetition in range(-1, repetitions):
            for size in sizes:
                for name, schedule in schedules.items():
                    tensor = torch.ones(max(1, size // 4))
                    dist.barrier()
                    start = time.perf_counter()
                    if schedule is None:
                        dist.all_reduce(tensor)
                    else:
                        transport.carry(schedule, 0, tensor).wait()
                    found[name, size, repetition] = time.perf_counter() - start
    return {key: seconds for key, seconds in found.items() if key[2] >= 0}
