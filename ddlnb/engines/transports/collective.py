"""Carries out collectives on real ranks, over one connection between each two of them.

All messages share the connections and travel in the order in which they start, the next one while
the last one still is on its way: an all-reduce occupies links for its bytes, and its delays pass
meanwhile. A frame says which move of which message it belongs to, so ranks may start messages in
different orders, and one that comes early waits for its turn. One thread does it all, and sleeps
until the rest of a frame is there, or many packets of it: a message costs little of a processor
that computes as well.

Transports that carry messages on courses of ours: one for all, by request, or by message.

All-reduce for links with long delays: a mesh, and a ring.

A ring of n workers passes 2 (n-1) delays one after the other; a mesh, in which every worker sums
one part of the tensor for all, passes two, with the same 2 (n-1) / n of the bytes from every
worker. On links with long delays that is most of a small message's cost. Small tensors are not even
cut: every worker sends its own to all others and sums them itself, in one hop. Large ones go round
a ring in blocks: there only the bytes count, and steady streams fill links better than everybody's
bursts. Where "large" begins depends on the links, so the workers measure it before they start.
"""

from __future__ import annotations

import os
import queue
import selectors
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle, Pending
from ddlnb.engines.transports.all_reduce import AllReduceTransport
from ddlnb.engines.transports.connections import (
    ON_CPUS,
    Frame,
    Stream,
    connect_to_peers,
    group_or_default,
)
from ddlnb.engines.transports.push_pull import to_bytes
from ddlnb.engines.transports.rank_schedule import Course, Move, content, write
from ddlnb.errors import InputError, MissingPart
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.requests import AllReduce, GatherParts, ReduceScatter
from ddlnb.plans.transfers import Collective, Primitive
from ddlnb.units import KIB, MIB

_CLOSED = "this rank closed its connections before the message was answered"


class Streams:
    """Carries tensors on their courses among the ranks of a process group, the default one if none.

    ``host`` is the address of this rank's machine, at which the others reach it. ``bytes_sent``
    is what is sent to the others, without headers.
    """

    def __init__(self, host: str, timeout_seconds: float, group: dist.ProcessGroup | None = None):
        self.bytes_sent = 0.0
        self._timeout = timeout_seconds
        connections = connect_to_peers(host, timeout_seconds, group_or_default(group))
        self._streams = {
            other: Stream(connection, self._room) for other, connection in connections.items()
        }
        self._repeats: Counter[int] = Counter()  # how often a message was started
        self._under_way: dict[tuple[int, int], _Carried] = {}  # by message and repetition
        self._arrived: dict[tuple[int, ...], memoryview] = {}  # by the numbers of a frame and rank
        self._spare: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._gone: set[int] = set()  # ranks that have closed their end
        self._changed: deque[tuple[_Carried, _Block]] = deque()  # which may have moves to take
        self._outbox: queue.SimpleQueue[_Carried | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._closed = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        for other, stream in self._streams.items():
            self._selector.register(stream.connection, selectors.EVENT_READ, other)
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def carry(
        self,
        course: Course,
        message: int,
        tensor: torch.Tensor,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start a tensor on its course; every rank has to, with the same number of the message.

        Raises ConnectionError once a connection was lost or all were closed.
        """
        if tensor.is_cuda:
            raise MissingPart(ON_CPUS)
        if self._closed:
            raise ConnectionError(_CLOSED)
        again = (course, self._repeats[message])
        started = _Carried(message, tensor, released, answered, self._timeout, *again)
        self._repeats[message] += 1
        self.bytes_sent += course.bytes_sent(tensor)
        self._put(started)
        if self._failure is not None:  # the thread may have ended before it could see this one
            raise self._failure
        return started

    def close(self) -> None:
        """End the thread and close the connections; safe to call twice.

        Who waits for a message that was not answered hears that it never will be.
        """
        if self._closed:
            return
        self._closed = True
        self._put(None)
        self._thread.join(self._timeout)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _put(self, item: _Carried | None) -> None:
        self._outbox.put(item)
        with suppress(BlockingIOError):  # a full pipe wakes the thread just as well
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._end(ConnectionError(_CLOSED))
        except Exception as error:
            self._end(error)
        finally:
            self._selector.close()
            for stream in self._streams.values():
                stream.connection.close()

    def _end(self, reason: Exception) -> None:
        """Tell all that wait, and all that still come, that nothing will be carried any more."""
        self._failure = reason
        while not self._outbox.empty():
            if (started := self._outbox.get()) is not None:
                self._under_way[started.key] = started
        for started in self._under_way.values():
            started.finish(reason)

    def _turn(self) -> bool:
        """Do what can be done now; return whether there may be more to come."""
        for key, events in self._selector.select():
            if key.data is None:
                os.read(self._wake_read, 4096)
                continue
            if events & selectors.EVENT_WRITE:
                self._send(key.data)
            if events & selectors.EVENT_READ:
                self._receive(key.data)
        while not self._outbox.empty():
            started = self._outbox.get()
            if started is None:
                return False
            self._under_way[started.key] = started
            for block in started.blocks:
                if not block.is_done:
                    self._leave(started, block)
                self._changed.append((started, block))
        while self._changed:
            self._advance(*self._changed.popleft())
        return True

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
            self._changed += [(s, block) for s in self._under_way.values() for block in s.blocks]
            return
        for message, repeat, number, step, data in frames:
            self._arrived[message, repeat, number, step, other] = data
            if (started := self._under_way.get((message, repeat))) is not None:
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
        if started.is_done and started.key in self._under_way:
            started.finish()
            del self._under_way[started.key]  # not before: if a callback fails, the waiter hears

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


class _Carried(Pending):
    """A message on its way."""

    def __init__(
        self,
        message: int,
        tensor: torch.Tensor,
        released: Callback,
        answered: Callback,
        timeout_seconds: float,
        course: Course,
        repeat: int,
    ):
        super().__init__(message, tensor, (answered, released), "the other ranks", timeout_seconds)
        self.key = message, repeat
        self.blocks = [
            _Block(number, flat, course.moves(flat.numel()))
            for number, flat in enumerate(course.blocks(tensor))
        ]

    @property
    def is_done(self) -> bool:
        return all(block.is_done and not block.leaving for block in self.blocks)


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


def _gone(rank: int) -> str:
    return f"rank {rank} closed its connection before"


HALVES: dict[type, Primitive] = {ReduceScatter: "reduce-scatter", GatherParts: "all-gather"}


class CarryingTransport(Streams, ABC):
    """Answers requests in place of their tensors, each by the course that a subclass chooses.

    A subclass makes its courses before it connects: what cannot be made opens nothing.
    """

    def start(
        self,
        message: int,
        request: Any,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start what the request asks for, in place of its tensor; released when it is answered."""
        course = self._course(message, request)
        return self.carry(course, message, request.tensor, released, answered)

    @abstractmethod
    def _course(self, message: int, request: Any) -> Course:
        """Return the course of a message, the same on all ranks."""


class CollectiveTransport(CarryingTransport):
    """Answers every request by one collective."""

    def __init__(self, collective: Collective, host: str, timeout_seconds: float):
        self._only = Course(collective, dist.get_rank())
        super().__init__(host, timeout_seconds)

    def _course(self, message: int, request: Any) -> Course:
        return self._only


class HalvesTransport(CarryingTransport):
    """Answers `ReduceScatter` and `GatherParts` along a ring.

    The backend's own are not taken: gloo reduces to all before it scatters, and both want tensors
    that workers divide evenly.
    """

    def __init__(self, host: str, timeout_seconds: float):
        rank, workers = dist.get_rank(), dist.get_world_size()
        self._by_kind = {
            kind: Course(get_collective("ring", workers, primitive=primitive), rank)
            for kind, primitive in HALVES.items()
        }
        super().__init__(host, timeout_seconds)

    def _course(self, message: int, request: Any) -> Course:
        return self._by_kind[type(request)]


class PerMessageTransport(CarryingTransport):
    """Answers `AllReduce` of message i by the collective ``names[i]``, the backend's where "".

    ``per_node`` is how many neighbouring ranks share a node, which only some collectives care for.
    """

    def __init__(self, names: Sequence[str], per_node: int, host: str, timeout_seconds: float):
        rank, workers = dist.get_rank(), dist.get_world_size()
        self._by_name = {
            name: Course(get_collective(name, workers, per_node=per_node), rank)
            for name in sorted(set(names) - {""})
        }
        self._names, self._plain = names, AllReduceTransport()
        super().__init__(host, timeout_seconds)

    def start(
        self,
        message: int,
        request: AllReduce,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start the all-reduce of the request's tensor, in place; released when it is answered."""
        if self._names[message]:
            return super().start(message, request, released, answered)
        before = self._plain.bytes_sent
        handle = self._plain.start(message, request, released, answered)
        self.bytes_sent += self._plain.bytes_sent - before
        return handle

    def _course(self, message: int, request: AllReduce) -> Course:
        return self._by_name[self._names[message]]


SMALL_BYTES = 8 * KIB
PROBE_BYTES = 64 * KIB, MIB
PROBES = 3
BLOCK_BYTES = 128 * KIB


class MeshTransport(CarryingTransport):
    """Sums tensors over all workers, in place; the same bits on each. Two hops up to a size.

    ``two_hops_up_to`` are bytes, the same on all workers, which they measure if it is None.
    """

    def __init__(
        self,
        host: str,
        timeout_seconds: float,
        group: dist.ProcessGroup | None = None,
        two_hops_up_to: float | None = None,
    ):
        group = group_or_default(group)
        rank, workers = group.rank(), group.size()
        self.one_hop = Course(get_collective("exchange", workers), rank)
        self.two_hops = Course(get_collective("direct", workers), rank)
        self.ring = Course(get_collective("ring", workers), rank, BLOCK_BYTES)
        super().__init__(host, timeout_seconds, group)
        try:
            measured = self._measured_limit(group) if two_hops_up_to is None else two_hops_up_to
        except BaseException:
            self.close()
            raise
        self.two_hops_up_to = measured

    def _course(self, message: int, request: AllReduce) -> Course:
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

    def _seconds(self, course: Course, tensor: torch.Tensor) -> float:
        start = time.perf_counter()
        self.carry(course, 0, tensor).wait()
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
