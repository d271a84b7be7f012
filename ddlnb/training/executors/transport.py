"""Answers one request of a worker after the other over the network: gloo, and parameter servers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddlnb.engines.base import Transport
from ddlnb.engines.transports.all_reduce import AllReduceTransport
from ddlnb.errors import DdlnbError
from ddlnb.plans.requests import AllGather, AllReduce, Messages, PushPull

UNREAD_MESSAGES = 4  # to the same worker, before the sender waits until one is taken


class BlockingTransport:
    """The requests of `ddlnb.plans.requests`, each answered before the next is made, on CPUs.

    Works on the default process group; ``servers`` leads to the parameter server if there is one.
    """

    def __init__(self, servers: Transport | None = None):
        self._servers = servers
        self._all_reduce = AllReduceTransport()
        self._workers = dist.get_world_size()
        self._sent = self._received = 0  # but by all-reduces, and to servers
        self._sending: dict[int, deque[tuple[dist.Work, Tensor]]] = defaultdict(deque)

    @property
    def bytes_sent(self) -> float:
        """By this worker so far. All-reduces count as rings, pushes as their transport does."""
        pushed = self._servers.bytes_sent if self._servers is not None else 0.0
        return self._all_reduce.bytes_sent + self._sent + pushed

    @property
    def bytes_received(self) -> float:
        """By this worker so far; of what servers answer the tensors, without headers."""
        return self._all_reduce.bytes_sent + self._received

    def answer(self, request: Any) -> Any:
        """The answer, once it is there. Raises DdlnbError for what no executor knows."""
        if isinstance(request, AllReduce):
            return self._all_reduce.start(0, AllReduce(request.tensor.contiguous())).wait()
        if isinstance(request, AllGather):
            return self._gather(request.payload.contiguous())
        if isinstance(request, Messages):
            return self._exchange(request.outgoing, request.incoming)
        if isinstance(request, PushPull):
            if self._servers is None:
                raise DdlnbError("a worker pushes, and there is no parameter server")
            answer = self._servers.start(0, PushPull(request.tensor.contiguous())).wait()
            self._received += answer.nbytes
            return answer
        raise DdlnbError(f"a worker asked for {request!r}, which no executor knows")

    def close(self) -> None:
        """Say goodbye to the server, when all workers have their answers."""
        if self._servers is not None:
            self._servers.close()
        dist.barrier()  # a message that is still wanted must not be lost with its sender

    def _gather(self, payload: Tensor) -> list[Tensor]:
        self._sent += (self._workers - 1) * payload.nbytes
        self._received += (self._workers - 1) * payload.nbytes
        gathered = [torch.empty_like(payload) for _ in range(self._workers)]
        dist.all_gather(gathered, payload)
        return gathered

    def _exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Receives are posted before anything is sent, and only they are awaited.

        So workers may send before others are ready to take it, in any order, without deadlock.
        Messages without bytes are not sent: both ends know that they have none.
        """
        received = {
            sender: torch.empty(size, dtype=torch.uint8) for sender, size in incoming.items()
        }
        receiving = [dist.irecv(into, peer) for peer, into in received.items() if len(into)]
        for peer, payload in outgoing.items():
            self._sent += payload.nbytes
            if len(payload):
                self._send(peer, payload.contiguous())
        for work in receiving:
            assert work is not None
            work.wait()
        self._received += sum(incoming.values())
        return received

    def _send(self, peer: int, payload: Tensor) -> None:
        under_way = self._sending[peer]
        work = dist.isend(payload, peer)
        assert work is not None
        under_way.append((work, payload))  # the payload must outlive the sending
        if len(under_way) > UNREAD_MESSAGES:
            under_way.popleft()[0].wait()
