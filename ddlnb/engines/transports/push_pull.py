"""The protocol of workers and parameter servers: a header, and a tensor if there is one.

Answers PushPull from parameter servers, over one two-way ZeroMQ connection per server.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntFlag

import torch
import zmq

from ddlnb.engines.base import Callback, Handle, Pending
from ddlnb.plans.requests import PushPull

_HEADER = struct.Struct("<BBIQ")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8)


class Kind(IntFlag):
    """The kinds of a request; a push and a pull usually travel together.

    With ACK the server confirms at once that the push has arrived, in a header without payload.
    """

    PUSH = 1
    PULL = 2
    ACK = 4
    BYE = 8


@dataclass(frozen=True)
class Header:
    """``key`` is the number of the message in the plan, ``clock`` the worker's iteration."""

    kind: Kind
    key: int = 0
    clock: int = 0
    dtype: torch.dtype = torch.float32

    def pack(self) -> bytes:
        """Return the header in its 14 bytes."""
        return _HEADER.pack(self.kind, _DTYPES.index(self.dtype), self.key, self.clock)

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Return the header that `pack` made."""
        kind, dtype, key, clock = _HEADER.unpack(data)
        return cls(Kind(kind), key, clock, _DTYPES[dtype])


HEADER_BYTES = _HEADER.size


def to_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, not copied."""
    return memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy 2


def from_bytes(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor on the received memory, not copied; it must not be written to."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=dtype)


class PushPullTransport:
    """Pushes shares and pulls sums; message i goes to server ``placement[i]``.

    ZeroMQ sockets belong to one thread, so a thread of their own sends, receives and copies the
    sums back, while the training loop computes. ``bytes_sent`` counts payload and headers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        placement: Sequence[int],
        rank: int,
        token: str,
        timeout_seconds: float,
    ):
        self.bytes_sent = 0.0
        self._addresses, self._placement = list(addresses), list(placement)
        self._identity = f"{token}:{rank}".encode()
        self._timeout = timeout_seconds
        self._clock = [0] * len(placement)
        self._outbox: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="push-pull", daemon=True)
        self._thread.start()

    def start(
        self,
        message: int,
        request: PushPull,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Push the request's tensor; it holds the sum once the handle's wait returns it.

        It is released when the server has it. Holding on until the answer would deadlock: two
        workers that spend their credit on different messages would wait for each other for ever.
        """
        if self._failure is not None:
            raise self._failure
        server = self._addresses[self._placement[message]]
        pending = _Request(message, request.tensor, released, answered, server, self._timeout)
        self._put(pending)
        return pending

    def close(self) -> None:
        """Say goodbye to the servers and end the thread; safe to call twice."""
        if self._closed:
            return
        self._put(None)
        self._thread.join(self._timeout)
        self._closed = True
        if self._thread.is_alive():
            raise TimeoutError(f"servers {self._addresses} took no goodbye in {self._timeout} s")
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _put(self, item: _Request | None) -> None:
        self._outbox.put(item)
        with suppress(BlockingIOError):  # a full pipe wakes the thread just as well
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        context = zmq.Context()
        sockets = []
        pending: dict[int, _Request] = {}
        try:
            poller = zmq.Poller()
            poller.register(self._wake_read, zmq.POLLIN)
            for address in self._addresses:
                socket = context.socket(zmq.DEALER)
                socket.set_hwm(0)
                socket.setsockopt(zmq.IDENTITY, self._identity)
                socket.connect(address)
                poller.register(socket, zmq.POLLIN)
                sockets.append(socket)
            while self._turn(dict(poller.poll()), sockets, pending):
                pass
        except Exception as error:
            self._failure = error
            while not self._outbox.empty():
                if (request := self._outbox.get()) is not None:
                    pending[request.message] = request
            for request in pending.values():
                request.finish(error)
        finally:
            for socket in sockets:
                socket.close(linger=int(1000 * self._timeout))
            context.term()

    def _turn(self, events: dict, sockets: list, pending: dict[int, _Request]) -> bool:
        for socket in sockets:
            if socket in events:
                self._receive(socket, pending)
        if self._wake_read in events:
            os.read(self._wake_read, 4096)
            while not self._outbox.empty():
                request = self._outbox.get()
                if request is None:
                    for socket in sockets:
                        socket.send(Header(Kind.BYE).pack())
                    return False
                self._send(sockets[self._placement[request.message]], request)
                pending[request.message] = request
        return True

    def _send(self, socket: zmq.Socket, request: _Request) -> None:
        clock = self._clock[request.message]
        self._clock[request.message] += 1
        kind = Kind.PUSH | Kind.PULL | (Kind.ACK if request.wants_release else Kind(0))
        header = Header(kind, request.message, clock, request.tensor.dtype)
        data = to_bytes(request.on_host())
        self.bytes_sent += HEADER_BYTES + data.nbytes
        socket.send_multipart([header.pack(), data], copy=False)

    def _receive(self, socket: zmq.Socket, pending: dict[int, _Request]) -> None:
        while socket.poll(0):
            head, *payload = socket.recv_multipart(copy=False)
            header = Header.unpack(head.bytes)
            if header.kind & Kind.ACK and not payload:
                pending[header.key].release()
                continue
            request = pending[header.key]
            request.fill(from_bytes(payload[0].buffer, header.dtype))
            request.finish()
            del pending[header.key]  # not before: if a callback fails, the waiter hears of it


class _Request(Pending):
    """A push whose pull is on its way; ``released`` is called when the server has the push."""

    def __init__(
        self,
        message: int,
        tensor: torch.Tensor,
        released: Callback,
        answered: Callback,
        server: str,
        timeout_seconds: float,
    ):
        super().__init__(message, tensor, (answered,), f"server {server}", timeout_seconds)
        self._released = released
        # On a GPU the tensor is complete only when the kernels launched so far have run.
        self._written = torch.cuda.Event() if tensor.is_cuda else None
        if self._written is not None:
            self._written.record()

    @property
    def wants_release(self) -> bool:
        return self._released is not None

    def release(self) -> None:
        if self._released is not None:
            self._released()

    def on_host(self) -> torch.Tensor:
        """Return the tensor in the memory of the host, once it has been computed."""
        if self._written is None:
            return self.tensor
        with torch.cuda.stream(torch.cuda.Stream(self.tensor.device)):
            self._written.synchronize()
            return self.tensor.cpu()

    def fill(self, total: torch.Tensor) -> None:
        """Overwrite the tensor with the sum; on a GPU, without waiting for other kernels.

        An answer of another dtype or size, to a compressed push, becomes a new tensor.
        """
        if total.dtype != self.tensor.dtype or total.numel() != self.tensor.numel():
            self.tensor = total.to(self.tensor.device, copy=True)
            return
        if self._written is None:
            self.tensor.copy_(total)
            return
        stream = torch.cuda.Stream(self.tensor.device)
        with torch.cuda.stream(stream):
            self.tensor.copy_(total)
        stream.synchronize()
