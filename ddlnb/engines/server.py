"""A parameter server: receives pushes, applies a rule, answers pulls.

The loop knows nothing of synchronisation. A rule decides what a push does and when a pull may be
answered; bulk-synchronous training is the rule below, bounded staleness would be another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import torch
import zmq

from ddlnb.engines.wire import Header, Kind, from_bytes, to_bytes


class Rule(Protocol):
    """When is a pull answered, and with what?"""

    def push(self, worker: int, key: int, clock: int, value: torch.Tensor) -> None:
        """Take in a worker's value for a key. The tensor may be kept but not written to."""

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """The answer for this worker, or None while it must wait. Never written to afterwards."""


@dataclass
class _Sum:
    """The sum of one key in one iteration, taken in rank order so that it is reproducible."""

    total: torch.Tensor | None = None
    summed: int = 0
    early: dict[int, torch.Tensor] = field(default_factory=dict)
    pulled: int = 0

    def add(self, worker: int, value: torch.Tensor) -> None:
        self.early[worker] = value
        while self.summed in self.early:
            part = self.early.pop(self.summed)
            # A fresh tensor per iteration: the last one's may still be on its way to a slow worker.
            self.total = part.clone() if self.total is None else self.total.add_(part)
            self.summed += 1


class BulkSynchronous:
    """Answer when every worker has pushed, with the sum (BSP)."""

    def __init__(self, workers: int):
        self.workers = workers
        self._sums: dict[tuple[int, int], _Sum] = defaultdict(_Sum)

    def push(self, worker: int, key: int, clock: int, value: torch.Tensor) -> None:
        """Add the value to the sum of this key and iteration."""
        self._sums[key, clock].add(worker, value)

    def pull(self, worker: int, key: int, clock: int) -> torch.Tensor | None:
        """The sum over all workers, or None while a push is missing."""
        entry = self._sums[key, clock]
        if entry.summed < self.workers:
            return None
        entry.pulled += 1
        if entry.pulled == self.workers:
            del self._sums[key, clock]
        return entry.total


class Server:
    """Serves one rule on one ROUTER socket until every worker has said goodbye."""

    def __init__(self, socket: zmq.Socket, workers: int, rule: Rule, token: str, timeout: float):
        self._socket, self._rule, self._timeout = socket, rule, timeout
        self._rank_of = {f"{token}:{rank}".encode(): rank for rank in range(workers)}
        self._waiting: dict[int, list[tuple[bytes, int, Header]]] = defaultdict(list)
        self.bytes_received = 0

    def serve(self) -> int:
        """Payload bytes received. Raises TimeoutError, naming the workers, on a long silence."""
        present = set(self._rank_of.values())
        while present:
            if not self._socket.poll(int(self._timeout * 1000)):
                raise TimeoutError(
                    f"server heard nothing for {self._timeout} s; "
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
                self._rule.push(worker, header.key, header.clock, value)
            if header.kind & Kind.ACK:
                self._socket.send_multipart(
                    [
                        identity.bytes,
                        Header(Kind.ACK, header.key, header.clock).pack(),
                    ]
                )
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
                reply: list[bytes | memoryview] = [identity, header.pack(), to_bytes(value)]
                self._socket.send_multipart(reply, copy=False)
        self._waiting[key] = still_waiting


def open_server(host: str, context: zmq.Context) -> tuple[zmq.Socket, str]:
    """A bound ROUTER socket and its address, on a free port of the host's address."""
    socket = context.socket(zmq.ROUTER)
    socket.set_hwm(0)
    socket.bind(f"tcp://{host}:*")
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)
