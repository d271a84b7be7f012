"""Parameter servers of our own: workers push shares and pull sums over ZeroMQ.

One two-way connection joins a worker and a server. The server's loop knows nothing of
synchronisation: a rule (`ddlnb.plans.server_rules`) decides what a push does and when a pull may be
answered. Servers and workers find one another by the store of the run, and who does not know the
token that rank 0 drew for the run is not heard.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import Any

import torch
import zmq

from ddlnb.engines.base import Callback, Handle, Pending, ThreadedTransport
from ddlnb.launch.rank import RankContext
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import Rule

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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=dtype)


def connect_to_servers(
    context: RankContext, store: Any, servers: int, placement: Sequence[int]
) -> PushPullTransport:
    """Return this worker's connection to the servers; message i goes to placement[i]."""
    if context.rank == 0:
        store.set("token", secrets.token_hex(8))
    token = store.get("token").decode()
    addresses = [store.get(f"server {server}").decode() for server in range(servers)]
    return PushPullTransport(addresses, placement, context.rank, token, context.timeout_seconds)


class _Push(Pending):
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
        self.released = released
        # On a GPU the tensor is complete only when the kernels launched so far have run.
        self._written = torch.cuda.Event() if tensor.is_cuda else None
        if self._written is not None:
            self._written.record()

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
        elif self._written is None:
            self.tensor.copy_(total)
        else:
            stream = torch.cuda.Stream(self.tensor.device)
            with torch.cuda.stream(stream):
                self.tensor.copy_(total)
            stream.synchronize()


class PushPullTransport(ThreadedTransport[_Push]):
    """Pushes shares and pulls sums; message i goes to server ``placement[i]``.

    ZeroMQ sockets belong to one thread, so the transport's thread sends, receives and copies the
    sums back. ``bytes_sent`` counts payload and headers. To close is to say goodbye to the servers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        placement: Sequence[int],
        rank: int,
        token: str,
        timeout_seconds: float,
    ):
        super().__init__("push-pull", timeout_seconds)
        self._addresses, self._placement = list(addresses), list(placement)
        self._identity = f"{token}:{rank}".encode()
        self._clock = [0] * len(placement)
        self._context, self._sockets = zmq.Context(), list[zmq.Socket]()
        self._poller = zmq.Poller()
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
        server = self._addresses[self._placement[message]]
        push = _Push(message, request.tensor, released, answered, server, self._timeout)
        self._put(push)
        return push

    def _connect(self) -> None:
        self._poller.register(self._woken, zmq.POLLIN)
        for address in self._addresses:
            socket = self._context.socket(zmq.DEALER)
            socket.set_hwm(0)
            socket.setsockopt(zmq.IDENTITY, self._identity)
            socket.connect(address)
            self._poller.register(socket, zmq.POLLIN)
            self._sockets.append(socket)

    def _turn(self) -> bool:
        events = dict(self._poller.poll())
        for socket in self._sockets:
            if socket in events:
                self._receive(socket)
        if self._woken in events:
            os.read(self._woken, 4096)
            for push in self._taken():
                if push is None:
                    for socket in self._sockets:
                        socket.send(Header(Kind.BYE).pack())
                    return False
                self._pending[push.message] = push
                self._send(push)
        return True

    def _send(self, push: _Push) -> None:
        clock = self._clock[push.message]
        self._clock[push.message] += 1
        kind = Kind.PUSH | Kind.PULL | (Kind.ACK if push.released else Kind(0))
        data = to_bytes(push.on_host())
        self.bytes_sent += HEADER_BYTES + data.nbytes
        header = Header(kind, push.message, clock, push.tensor.dtype)
        socket = self._sockets[self._placement[push.message]]
        socket.send_multipart([header.pack(), data], copy=False)

    def _receive(self, socket: zmq.Socket) -> None:
        while socket.poll(0):
            head, *payload = socket.recv_multipart(copy=False)
            header = Header.unpack(head.bytes)
            push = self._pending[header.key]
            if payload:
                push.fill(from_bytes(payload[0].buffer, header.dtype))
                push.finish()
                del self._pending[header.key]  # not before: if a callback fails, the waiter hears
            elif push.released is not None:
                push.released()

    def _disconnect(self) -> None:
        for socket in self._sockets:
            socket.close(linger=int(1000 * self._timeout))
        self._context.term()


class Server:
    """Serves one rule on one ROUTER socket until every worker has said goodbye."""

    def __init__(self, socket: zmq.Socket, workers: int, rule: Rule, token: str, timeout: float):
        self._socket, self._rule, self._timeout = socket, rule, timeout
        self._rank_of = {f"{token}:{rank}".encode(): rank for rank in range(workers)}
        self._waiting: dict[int, list[tuple[bytes, int, Header]]] = defaultdict(list)
        self.bytes_received = 0

    def serve(self) -> int:
        """Serve, and return the payload bytes received. Raises TimeoutError on a long silence."""
        present = set(self._rank_of.values())
        while present:
            if not self._socket.poll(int(self._timeout * 1000)):
                raise TimeoutError(
                    f"server received nothing for {self._timeout} s; "
                    f"workers {sorted(present)} have not said goodbye"
                )
            identity, head, *payload = self._socket.recv_multipart(copy=False)
            worker = self._rank_of.get(identity.bytes)
            if worker is None:
                continue  # not one of ours: only workers know the token
            header = Header.unpack(head.bytes)
            if header.kind & Kind.BYE:
                present.discard(worker)
                continue
            if header.kind & Kind.PUSH:
                self.bytes_received += len(payload[0])
                value = from_bytes(payload[0].buffer, header.dtype)
                self._rule.push(worker, header.key, header.clock, value, time.monotonic())
            if header.kind & Kind.ACK:
                answer = Header(Kind.ACK, header.key, header.clock)
                self._socket.send_multipart([identity.bytes, answer.pack()])
            if header.kind & Kind.PULL:
                self._waiting[header.key].append((identity.bytes, worker, header))
            self._answer(header.key)
        return self.bytes_received

    def _answer(self, key: int) -> None:
        still_waiting = []
        for identity, worker, header in self._waiting[key]:
            value = self._rule.pull(worker, key, header.clock)
            if value is None:
                still_waiting.append((identity, worker, header))
            else:
                answer = replace(header, dtype=value.dtype)  # a compressed push has another one
                reply: list[bytes | memoryview] = [identity, answer.pack(), to_bytes(value)]
                self._socket.send_multipart(reply, copy=False)
        self._waiting[key] = still_waiting


def open_server(host: str, zmq_context: zmq.Context) -> tuple[zmq.Socket, str]:
    """Return a bound ROUTER socket and its address, on a free port of the host's address."""
    socket = zmq_context.socket(zmq.ROUTER)
    socket.set_hwm(0)
    socket.bind(f"tcp://{host}:*")
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def serve_workers(context: RankContext, store: Any, workers: int, rule: Rule) -> None:
    """Serve a rule on this rank, one beyond the workers, until all of them have said goodbye.

    The workers find it with `connect_to_servers`.
    """
    token = store.get("token").decode()
    zmq_context = zmq.Context()
    try:
        socket, address = open_server(context.host, zmq_context)
        store.set(f"server {context.rank - workers}", address)
        Server(socket, workers, rule, token, context.timeout_seconds).serve()
        socket.close(linger=0)
    finally:
        zmq_context.destroy(linger=0)
