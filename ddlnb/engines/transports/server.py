"""A parameter server: receives pushes, applies a rule, answers pulls.

The loop knows nothing of synchronisation. A rule (`ddlnb.plans.server_rules`) decides what a push
does and when a pull may be answered.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from typing import Any

import zmq

from ddlnb.engines.transports.push_pull import Header, Kind, from_bytes, to_bytes
from ddlnb.launch.rank import RankContext
from ddlnb.plans.server_rules import Rule


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

    The workers find it with `ddlnb.engines.transports.connect.connect_to_servers`.
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
