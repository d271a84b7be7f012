"""Channels between two processes of a machine: TCP, Unix sockets, shared memory.

A channel sends from the caller's memory and receives into memory of its own. Data that goes through
a socket is copied twice, into the kernel and out of it; data in shared memory is copied once, by
the sender, to where the receiver reads it, and the kernel has no part in it. That resembles RDMA,
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
_FLAG_BYTES = 64  # Each counter has a cache line of its own.
_LOOKS = 1000  # at the counter between two looks at the clock


class Channel(Protocol):
    """One end of a two-way channel between two processes."""

    def send(self, data: memoryview) -> None:
        """Send the data, and return when its memory may be written to again."""

    def receive(self, size: int) -> memoryview:
        """Return the next message, of this size; read it before the next call."""

    def close(self) -> None:
        """Close this end."""


class SocketChannel:
    """A connected socket, TCP or Unix."""

    def __init__(self, connected: socket.socket, most_bytes: int):
        self._socket = connected
        self._room = memoryview(bytearray(most_bytes))

    def send(self, data: memoryview) -> None:
        """See `Channel`; the data is in the kernel then."""
        self._socket.sendall(data)

    def receive(self, size: int) -> memoryview:
        """See `Channel`. Raises ConnectionError if the other end has gone."""
        left = self._room[:size]
        while left:
            if not (count := self._socket.recv_into(left)):
                raise ConnectionError("the other process closed its socket")
            left = left[count:]
        return self._room[:size]

    def close(self) -> None:
        """See `Channel`."""
        self._socket.close()


class SharedMemoryChannel:
    """A slot for each direction in shared memory, and two counters for each: filled and emptied.

    The receiver is woken by a byte through a socket, the bell; without one it polls the counter
    until that changes, and yields its core between two looks. Polling relies on stores becoming
    visible in their order, as they do on x86.
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
        self._slots = [inside[start + i * most_bytes :][:most_bytes] for i in range(2)]
        flags = [inside[i * _FLAG_BYTES :][:8].cast("Q") for i in range(4)]
        self._filled, self._emptied = flags[:2], flags[2:]
        self._mine, self._other = rank, 1 - rank
        self._sent = self._received = 0
        self._shown = memoryview(b"")

    def send(self, data: memoryview) -> None:
        """See `Channel`; the data is in the other's slot then."""
        self._emptied[self._other][0] = self._received
        self._until(self._emptied[self._mine], self._sent)
        self._slots[self._mine][: len(data)] = data
        self._sent += 1
        self._filled[self._mine][0] = self._sent
        if self._bell is not None:
            self._bell.sendall(b"!")

    def receive(self, size: int) -> memoryview:
        """See `Channel`. Raises ConnectionError or TimeoutError if the other end has gone."""
        self._emptied[self._other][0] = self._received
        self._received += 1
        if self._bell is not None and not self._bell.recv(1):
            raise ConnectionError("the other process closed its bell")
        self._until(self._filled[self._other], self._received)
        self._shown = self._slots[self._other][:size]
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
        """See `Channel`; what was received is gone with it."""
        for view in (self._shown, *self._slots, *self._filled, *self._emptied):
            view.release()
        self._memory.close()
        if self._bell is not None:
            self._bell.close()


def connect(context: RankContext, kind: str, most_bytes: int) -> Channel:
    """Return this rank's end of a channel of this kind between ranks 0 and 1.

    No message may be larger than ``most_bytes``.
    """
    store = context.store()
    if kind in (TCP, UNIX):
        return SocketChannel(_connected(context, store, kind), most_bytes)
    bell = _connected(context, store, UNIX) if kind == BELL else None
    memory = _shared(context, store, 4 * _FLAG_BYTES + 2 * most_bytes)
    return SharedMemoryChannel(memory, context.rank, most_bytes, bell, context.timeout_seconds)


def _connected(context: RankContext, store: Any, kind: str) -> socket.socket:
    family = socket.AF_INET if kind == TCP else socket.AF_UNIX
    connected = socket.socket(family)
    if context.rank == 0:
        with tempfile.TemporaryDirectory(prefix="ddlnb-") as folder, connected as listener:
            listener.settimeout(context.timeout_seconds)
            listener.bind((context.host, 0) if kind == TCP else str(Path(folder, "channel")))
            listener.listen()
            port = listener.getsockname()[1] if kind == TCP else 0
            store.set(
                "address", f"{context.host} {port}" if kind == TCP else listener.getsockname()
            )
            connected, _ = listener.accept()
    else:
        address = store.get("address").decode()
        host, _, port = address.partition(" ")
        connected.connect((host, int(port)) if kind == TCP else address)
    connected.settimeout(context.timeout_seconds)
    if kind == TCP:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _shared(context: RankContext, store: Any, size: int) -> SharedMemory:
    """Return memory that loses its name once both ranks have it, so that nothing stays behind."""
    if context.rank == 0:
        memory = SharedMemory(create=True, size=size)
        try:
            store.set("memory", memory.name)
            store.wait(["memory attached"])
        finally:
            memory.unlink()
    else:
        memory = SharedMemory(name=store.get("memory").decode())
        # Python before 3.13 would remove the memory when this process ends.
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
        store.set("memory attached", "")
    return memory
