"""Frames over one connection that never blocks: a header, and the bytes of a tensor.

The kernel is asked to wake the reader when the rest of a frame is there, or 16 KiB of it, not for
every packet.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from ddlnb.units import KIB

_HEADER = struct.Struct("<IIIIQ")  # message, repeat, block, step, bytes
_MOST_AWAITED = 16 * KIB  # bytes that are awaited at once
_TOGETHER = 16  # buffers that are given to the kernel in one call


class Frame(NamedTuple):
    """What travels: numbers of a message, of its repetition, of a block and a step, and bytes."""

    message: int
    repeat: int
    block: int
    step: int
    data: memoryview


class Stream:
    """One end of a connection, on which both ends send and receive frames.

    ``room`` returns memory for so many bytes, into which a frame is to go.
    """

    def __init__(self, connection: socket.socket, room: Callable[[int], memoryview]):
        connection.setblocking(False)
        self.connection = connection
        self._room = room
        self._leaving: deque[tuple[memoryview, Any]] = deque()
        self._header = memoryview(bytearray(_HEADER.size))
        self._frame: Frame | None = None  # that is arriving, once its header is here
        self._read = 0  # bytes of its data, or of the header before
        self._awaited = 1

    def put(self, frame: Frame, name: Any) -> None:
        """Queue a frame, which `send` will call by this name."""
        *numbers, data = frame
        self._leaving.append((memoryview(_HEADER.pack(*numbers, data.nbytes)), None))
        self._leaving.append((data, name))

    @property
    def is_idle(self) -> bool:
        """Whether the kernel has taken all frames."""
        return not self._leaving

    def send(self) -> list[Any]:
        """Hand the kernel what it takes; return the names of the frames that it now has whole."""
        gone = []
        while self._leaving:
            try:
                buffers = [one for one, _ in islice(self._leaving, _TOGETHER)]
                count = self.connection.sendmsg(buffers)
            except BlockingIOError:
                break
            while self._leaving and count >= self._leaving[0][0].nbytes:
                data, name = self._leaving.popleft()
                count -= data.nbytes
                if name is not None:
                    gone.append(name)
            if count:
                data, name = self._leaving[0]
                self._leaving[0] = data[count:], name
        return gone

    def receive(self) -> list[Frame]:
        """Return the frames that are complete. Raises EOFError when the other end has closed."""
        found: list[Frame] = []
        while True:
            data = self._frame.data[self._read :] if self._frame else memoryview(b"")
            header = self._header if self._frame else self._header[self._read :]
            try:
                count = self.connection.recvmsg_into([data, header] if data else [header])[0]
            except BlockingIOError:
                break
            if not count:
                raise EOFError
            self._read += count
            self._complete(found)
            if self._frame is None and not self._read:
                break
        self._await()
        return found

    def _complete(self, found: list[Frame]) -> None:
        """Take the frame and the header that are complete with the bytes just read."""
        if self._frame is not None and self._read >= self._frame.data.nbytes:
            found.append(self._frame)
            self._read -= self._frame.data.nbytes
            self._frame = None
        if self._frame is None and self._read == _HEADER.size:
            message, repeat, block, step, size = _HEADER.unpack(self._header)
            self._frame = Frame(message, repeat, block, step, self._room(size))
            self._read = 0
            if not size:
                self._complete(found)

    def _await(self) -> None:
        """Have the kernel call this end readable when the header, or the data, is there."""
        whole = self._frame.data.nbytes if self._frame else _HEADER.size
        awaited = min(whole - self._read, _MOST_AWAITED)
        if awaited != self._awaited:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)
            self._awaited = awaited
