"""Connections between all workers of a run, one for each two, and the frames that travel on them.

A frame is a header and the bytes of a tensor. No connection ever blocks, and the kernel is asked to
wake the reader when the rest of a frame is there, or 16 KiB of it, not for every packet.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from ddlnb.errors import MissingPart
from ddlnb.units import KIB

_TOKEN_BYTES, _RANK_BYTES, _CARD_BYTES = 16, 4, 128
_HELLO_BYTES = _TOKEN_BYTES + _RANK_BYTES
_STRANGERS = 64  # who may stand in line beside the ranks, so that none of these has to call again

ON_CPUS = (
    "a topology or collective of ours works on CPUs; leave both options out on GPUs, where NCCL's "
    "is taken"
)

Address = tuple[str, int]


def group_or_default(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group, or the default one that `process_group` makes."""
    found = group if group is not None else dist.group.WORLD
    assert found is not None
    return found


def connect_to_peers(
    host: str, timeout_seconds: float, group: dist.ProcessGroup
) -> dict[int, socket.socket]:
    """Return this rank's connection to every other rank of the process group, by rank.

    Every rank listens on a free port of its machine's address ``host`` for the ranks above it. Who
    does not know the token that rank 0 drew for this run is turned away, and keeps nobody waiting.
    Raises ConnectionError for a rank that is not reached, TimeoutError for one that does not call,
    MissingPart if the group can only reach GPUs.
    """
    if group.name() == "nccl":
        raise MissingPart(ON_CPUS)
    rank, workers = group.rank(), group.size()
    found: dict[int, socket.socket] = {}
    try:
        with socket.create_server((host, 0), backlog=workers + _STRANGERS) as listener:
            cards = _all_cards(secrets.token_bytes(_TOKEN_BYTES), listener.getsockname(), group)
            token = cards[0][0]
            for other, (_, address) in enumerate(cards[:rank]):
                found[other] = _call(other, address, timeout_seconds)
                found[other].sendall(token + rank.to_bytes(_RANK_BYTES, "little"))
            for other, caller in _calls(listener, token, range(rank + 1, workers), timeout_seconds):
                found[other] = caller
        for connection in found.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return found


def _all_cards(token: bytes, own: Address, group: dist.ProcessGroup) -> list[tuple[bytes, Address]]:
    """Return token and address of every rank."""
    card = token + f"{own[0]} {own[1]}".encode().ljust(_CARD_BYTES - len(token))
    cards = [torch.empty(_CARD_BYTES, dtype=torch.uint8) for _ in range(group.size())]
    group.allgather([cards], [torch.frombuffer(bytearray(card), dtype=torch.uint8)]).wait()
    found = []
    for one in cards:
        said = bytes(one.tolist())
        host, port = said[_TOKEN_BYTES:].decode().split()
        found.append((said[:_TOKEN_BYTES], (host, int(port))))
    return found


def _call(other: int, address: Address, timeout_seconds: float) -> socket.socket:
    """Return a connection to another rank."""
    try:
        return socket.create_connection(address, timeout_seconds)
    except OSError as error:
        raise ConnectionError(
            f"rank {other} is not reached at {address[0]}:{address[1]} ({error}); its machine must "
            f"let the other ranks in at ports that the system chooses"
        ) from error


def _calls(
    listener: socket.socket, token: bytes, ranks: range, timeout_seconds: float
) -> Iterator[tuple[int, socket.socket]]:
    """Yield these ranks with their connections as they call, and hang up on everybody else.

    All callers are heard at once: one that says nothing does not keep those behind it waiting.
    """
    give_up = time.monotonic() + timeout_seconds
    missing = set(ranks)
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while missing:
                left = give_up - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"ranks {sorted(missing)} did not connect within {timeout_seconds} s"
                    )
                for key, _ in selector.select(left):
                    if key.data is None:
                        _welcome(listener, selector)
                        continue
                    caller, hello = cast(socket.socket, key.fileobj), key.data
                    more = _heard(caller, _HELLO_BYTES - len(hello))
                    hello += more
                    if more and len(hello) < _HELLO_BYTES:
                        continue
                    selector.unregister(caller)
                    other = int.from_bytes(hello[_TOKEN_BYTES:], "little")
                    if hmac.compare_digest(hello[:_TOKEN_BYTES], token) and other in missing:
                        missing.discard(other)
                        yield other, caller
                    else:
                        caller.close()
        finally:
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    cast(socket.socket, key.fileobj).close()


def _welcome(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    """Have the selector watch a new caller, with what it has said so far."""
    with suppress(BlockingIOError, ConnectionError):  # it has hung up already
        caller, _ = listener.accept()
        caller.setblocking(False)
        selector.register(caller, selectors.EVENT_READ, bytearray())


def _heard(caller: socket.socket, most: int) -> bytes:
    """Return what a caller says, nothing if it has hung up."""
    try:
        return caller.recv(most)
    except OSError:
        return b""


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
