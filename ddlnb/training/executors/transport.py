"""Answer a worker's requests over the network, one after the other: gloo and parameter servers."""

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

UNREAD_MESSAGES = 4  # to one worker, before the sender waits until one is received


class BlockingTransport:
    """Answers the requests of `ddlnb.plans.requests` on CPUs, each before the next is made.

    It uses the default process group; ``servers`` leads to the parameter server if there is one.
    """

    def __init__(self, servers: Transport | None = None):
        self._servers = servers
        self._all_reduce = AllReduceTransport()
        self._workers = dist.get_world_size()
        self._sent = self._received = 0  # without all-reduces, and without what servers receive
        self._sending: dict[int, deque[tuple[dist.Work, Tensor]]] = defaultdict(deque)

    @property
    def bytes_sent(self) -> float:
        """Bytes that this worker has sent; all-reduces count as rings."""
        pushed = self._servers.bytes_sent if self._servers is not None else 0.0
        return self._all_reduce.bytes_sent + self._sent + pushed

    @property
    def bytes_received(self) -> float:
        """Bytes that this worker has received; servers' answers count without headers."""
        return self._all_reduce.bytes_sent + self._received

    def answer(self, request: Any) -> Any:
        """Return the answer once it has arrived. Raises DdlnbError for an unknown request."""
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
        """Take leave of the server, once all workers have their answers."""
        if self._servers is not None:
            self._servers.close()
        dist.barrier()  # a message on its way must not be lost with its sender

    def _gather(self, payload: Tensor) -> list[Tensor]:
        self._sent += (self._workers - 1) * payload.nbytes
        self._received += (self._workers - 1) * payload.nbytes
        gathered = [torch.empty_like(payload) for _ in range(self._workers)]
        dist.all_gather(gathered, payload)
        return gathered

    def _exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Post all receives before anything is sent, and wait for the receives only.

        So workers may send in any order, before others are ready to receive, without deadlock.
        Messages without bytes are not sent: both ends know that they are empty.
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
