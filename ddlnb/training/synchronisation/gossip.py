"""What gossip algorithms share: a round of messages with the neighbours, and its weighted mean.

The algorithms (`d_psgd`, `dcd_psgd`, `ecd_psgd`, `choco`) differ in what they send and in what they
do with the mean. Their papers let every worker keep a replica of each neighbour. The replicas are
used in one weighted sum only and change linearly, so a worker here keeps that sum instead: one
vector, whatever the degree (arXiv 1902.00340, memory-efficient version in the appendix). Workers
start from equal parameters, as with any method, and so do replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ddlnb.choices import one_of
from ddlnb.compression.base import as_bytes
from ddlnb.plans.requests import Flow, Messages
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.synchronisation.graphs import GRAPHS, Graph, known_graph
from ddlnb.training.worker import Worker


@dataclass(frozen=True)
class Gossip(Synchronisation):
    """Workers on a ``graph`` send to their neighbours and wait for them."""

    graph: str = one_of("ring", GRAPHS)

    architectures = ("gossip",)

    def __post_init__(self) -> None:
        known_graph(self.graph)

    @property
    def topology(self) -> str:
        return self.graph


class Mixed(NamedTuple):
    """What this worker's payload stands for, and the weighted mean with its neighbours.

    Both are flat float32 vectors. Without compression ``own`` is the vector that was sent.
    """

    own: Tensor
    mean: Tensor


def mix(worker: Worker, graph: Graph, vector: Tensor) -> Flow:
    """Send the vector to all neighbours, encoded if the worker has a codec, and return `Mixed`.

    The vector is as long as the worker's parameters and must not be written to afterwards. Terms
    are added in rank order, so that on a complete graph all workers get the same bits.
    """
    neighbours = graph.neighbours[worker.rank]
    if worker.compression is None:
        payload, length = as_bytes(vector), vector.nbytes
        decode: Callable[[Tensor], Tensor] = _as_floats
    else:
        payloads = worker.payloads()
        payload, length, decode = worker.encoded(vector), payloads.payload_bytes, payloads.decode
    received = yield Messages(dict.fromkeys(neighbours, payload), dict.fromkeys(neighbours, length))
    mean, own = torch.zeros_like(vector), decode(payload)
    for rank in sorted([worker.rank, *neighbours]):
        theirs = own if rank == worker.rank else decode(received[rank])
        mean.add_(theirs, alpha=graph.weight(worker.rank, rank))
    return Mixed(own, mean)


def consensus_distance(vectors: Sequence[Tensor]) -> float:
    """Return the squared distance of the workers' vectors from their mean, on average."""
    stacked = torch.stack(list(vectors)).double()
    return float((stacked - stacked.mean(0)).square().sum() / len(stacked))


def _as_floats(payload: Tensor) -> Tensor:
    return payload.view(torch.float32)
