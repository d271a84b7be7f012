"""Ways for two processes of a machine to exchange messages: TCP, Unix sockets, shared memory.

A line sends from and receives into the caller's memory. Data that goes through a socket is copied
twice, into the kernel and out of it; data in shared memory once, by the sender, into the place from
which the receiver reads it, and the kernel has no part in it. That is the local likeness of RDMA,
where a card makes that one copy from machine to machine (survey, section 3.3.1).
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Protocol

from ddlnb.launch.rank import RankContext

TCP, UNIX = "TCP", "Unix socket"
BELL, POLLED = "shared memory, bell", "shared memory, polled"
KINDS = (TCP, UNIX, BELL, POLLED)
_FLAG_BYTES = 64  # a cache line of its own for each counter
_LOOKS = 1000  # between two looks at the clock


class Line(Protocol):
    """One end of a two-way line between two processes."""

    def send(self, data: memoryview) -> None:
        """Return when the data may be written to again."""

    def receive(self, size: int) -> memoryview:
        """The next message, which has this size; to be read before the next call."""

    def close(self) -> None:
        """End this end."""


class StreamLine:
    """A connected socket of either kind."""

    def __init__(self, connected: socket.socket, most_bytes: int):
        self._socket = connected
        self._room = memoryview(bytearray(most_bytes))

    def send(self, data: memoryview) -> None:
        """See `Line`; the data is in the kernel then."""
        self._socket.sendall(data)

    def receive(self, size: int) -> memoryview:
        """See `Line`. Raises ConnectionError if the other end has gone."""
        left = self._room[:size]
        while left:
            if not (count := self._socket.recv_into(left)):
                raise ConnectionError("the other process closed its socket")
            left = left[count:]
        return self._room[:size]

    def close(self) -> None:
        """See `Line`."""
        self._socket.close()


class SharedLine:
    """A box for each direction in shared memory, and two counters for each: filled, and emptied.

    The receiver is woken by a byte through the bell, a socket; without one it looks at the counter
    until that changes, and offers its core to others between two looks. Looking relies on stores
    becoming visible in their order, as they do on x86.
    """

    def __init__(
        self,
        memory: SharedMemory,
        rank: int,
        most_bytes: int,
        bell: socket.socket | None,
        timeout_seconds: float,
    ):
        self._memory, self._bell, self._timeout = memory, bell, timeout_seconds
        start, inside = 4 * _FLAG_BYTES, memory.buf
        assert inside is not None
        self._boxes = [inside[start + i * most_bytes :][:most_bytes] for i in range(2)]
        flags = [inside[i * _FLAG_BYTES :][:8].cast("Q") for i in range(4)]
        self._filled, self._emptied = flags[:2], flags[2:]
        self._mine, self._other = rank, 1 - rank
        self._sent = self._received = 0
        self._shown = memoryview(b"")

    def send(self, data: memoryview) -> None:
        """See `Line`; the data is in the other's box then."""
        self._emptied[self._other][0] = self._received
        self._until(self._emptied[self._mine], self._sent)
        self._boxes[self._mine][: len(data)] = data
        self._sent += 1
        self._filled[self._mine][0] = self._sent
        if self._bell is not None:
            self._bell.sendall(b"!")

    def receive(self, size: int) -> memoryview:
        """See `Line`. Raises ConnectionError or TimeoutError if the other end has gone."""
        self._emptied[self._other][0] = self._received
        self._received += 1
        if self._bell is not None and not self._bell.recv(1):
            raise ConnectionError("the other process closed its bell")
        self._until(self._filled[self._other], self._received)
        self._shown = self._boxes[self._other][:size]
        return self._shown

    def _until(self, counter: memoryview, value: int) -> None:
        looks, deadline = 0, 0.0
        while counter[0] < value:
            os.sched_yield()
            looks += 1
            if looks % _LOOKS == 0:
                now = time.monotonic()
                deadline = deadline or now + self._timeout
                if now > deadline:
                    raise TimeoutError(f"the other process was silent for {self._timeout} s")

    def close(self) -> None:
        """See `Line`; what was received is gone with it."""
        for view in (self._shown, *self._boxes, *self._filled, *self._emptied):
            view.release()
        self._memory.close()
        if self._bell is not None:
            self._bell.close()


def connect(context: RankContext, kind: str, most_bytes: int) -> Line:
    """This rank's end of a line of that kind between ranks 0 and 1, for messages up to a size."""
    store = context.store()
    if kind in (TCP, UNIX):
        return StreamLine(_connected(context, store, kind), most_bytes)
    bell = _connected(context, store, UNIX) if kind == BELL else None
    memory = _shared(context, store, 4 * _FLAG_BYTES + 2 * most_bytes)
    return SharedLine(memory, context.rank, most_bytes, bell, context.timeout_seconds)


def _connected(context: RankContext, store: Any, kind: str) -> socket.socket:
    family = socket.AF_INET if kind == TCP else socket.AF_UNIX
    connected = socket.socket(family)
    if context.rank == 0:
        with tempfile.TemporaryDirectory(prefix="ddlnb-") as folder, connected as listener:
            listener.settimeout(context.timeout_seconds)
            listener.bind((context.host, 0) if kind == TCP else str(Path(folder, "line")))
            listener.listen()
            port = listener.getsockname()[1] if kind == TCP else 0
            store.set("line", f"{context.host} {port}" if kind == TCP else listener.getsockname())
            connected, _ = listener.accept()
    else:
        told = store.get("line").decode()
        host, _, port = told.partition(" ")
        connected.connect((host, int(port)) if kind == TCP else told)
    connected.settimeout(context.timeout_seconds)
    if kind == TCP:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _shared(context: RankContext, store: Any, size: int) -> SharedMemory:
    """Memory that has no name any more once both have it, so that nothing of it can stay behind."""
    if context.rank == 0:
        memory = SharedMemory(create=True, size=size)
        try:
            store.set("memory", memory.name)
            store.wait(["memory attached"])
        finally:
            memory.unlink()
    else:
        memory = SharedMemory(name=store.get("memory").decode())
        # Python before 3.13 notes it down, to remove it when this process ends.
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
        store.set("memory attached", "")
    return memory
