"""Carries out collectives on real ranks, over one connection between each two of them.

All messages share the connections and travel in the order in which they start, the next one while
the last one still is on its way: an all-reduce occupies links for its bytes, and its delays pass
meanwhile. A frame says which move of which message it belongs to, so ranks may start messages in
different orders, and one that comes early waits for its turn. One thread does it all, and sleeps
until the rest of a frame is there, or many packets of it: a message costs little of a processor
that computes as well.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
from collections import Counter, defaultdict, deque
from contextlib import suppress
from typing import Self

import torch
import torch.distributed as dist

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.transports.course import Course, content, write
from ddlnb.engines.transports.itinerary import Move
from ddlnb.engines.transports.peers import ON_CPUS, connect_to_peers, group_or_default
from ddlnb.engines.transports.pending import Pending
from ddlnb.engines.transports.stream import Frame, Stream
from ddlnb.engines.transports.wire import to_bytes
from ddlnb.errors import InputError, MissingPart

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
