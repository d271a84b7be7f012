"""Gossip: workers on a graph send to their neighbours, and take a weighted mean of what they get.

Graphs have mixing weights, which say how fast they mix. The algorithms (D-PSGD, DCD-PSGD, ECD-PSGD,
CHOCO-SGD) differ in what they send and in what they do with the mean. Their papers let every worker
keep a replica of each neighbour. The replicas are used in one weighted sum only and change
linearly, so a worker here keeps that sum instead: one vector, whatever the degree (arXiv
1902.00340, memory-efficient version in the appendix). Workers start from equal parameters, as with
any method, and so do replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddlnb.compression.base import Compressor, as_bytes
from ddlnb.errors import InputError, require, require_known, require_whole
from ddlnb.plans.requests import Flow, Messages
from ddlnb.registry import one_of
from ddlnb.training.synchronisation import Synchronisation
from ddlnb.training.worker import NextGradient, StepDone, Worker

Neighbours = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Graph:
    """An undirected graph; ``neighbours`` are those of every rank, in order and without itself.

    >>> make_graph("ring", 4).neighbours
    ((1, 3), (0, 2), (1, 3), (0, 2))
    """

    name: str
    neighbours: Neighbours

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.neighbours)

    def degree(self, rank: int) -> int:
        """Return the number of a worker's neighbours; each gets a message in every round."""
        return len(self.neighbours[rank])

    def weight(self, rank: int, other: int) -> float:
        """Return the weight of ``other`` in the mean that ``rank`` takes.

        These are Metropolis weights, 1 / (larger degree + 1) for neighbours (Xiao, Boyd and Lall
        2005), hence 1 / (degree + 1) if all degrees are equal: symmetric, every row sums to one.
        """
        if other == rank:
            return 1 - sum(self.weight(rank, near) for near in self.neighbours[rank])
        if other not in self.neighbours[rank]:
            return 0.0
        return 1 / (1 + max(self.degree(rank), self.degree(other)))

    @property
    def weights(self) -> NDArray[np.float64]:
        """The mixing matrix, workers by workers."""
        ranks = range(self.workers)
        return np.array([[self.weight(rank, other) for other in ranks] for rank in ranks])

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, workers={self.workers})"


def spectral_gap(graph: Graph) -> float:
    """Return one minus the second largest |eigenvalue| of the weights: 1 mixes at once, 0 never.

    Every round of gossip multiplies the squared consensus distance by at most (1 - gap)^2.

    >>> round(spectral_gap(make_graph("ring", 8)), 3)
    0.195
    """
    if graph.workers == 1:
        return 1.0
    sizes = np.sort(np.abs(np.linalg.eigvalsh(graph.weights)))
    return float(1 - sizes[-2])


def _ring(workers: int) -> Neighbours:
    """The worker before and the one after: two messages for any number of workers."""
    return _torus_of(1, workers)


def _torus(workers: int) -> Neighbours:
    """A grid closed in both directions: four messages; a ring if the number of workers is prime."""
    rows = next(side for side in range(isqrt(workers), 0, -1) if workers % side == 0)
    return _torus_of(rows, workers // rows)


def _torus_of(rows: int, columns: int) -> Neighbours:
    found = []
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        near = {((row + step) % rows) * columns + column for step in (-1, 1)}
        near |= {row * columns + (column + step) % columns for step in (-1, 1)}
        # On a side of two, both directions lead to the same worker, which counts once.
        found.append(tuple(sorted(near - {rank})))
    return tuple(found)


def _complete(workers: int) -> Neighbours:
    """All workers with all others: a message to every other worker."""
    return tuple(tuple(o for o in range(workers) if o != rank) for rank in range(workers))


GRAPHS: dict[str, Callable[[int], Neighbours]] = {
    "ring": _ring,
    "torus": _torus,
    "complete": _complete,
}


@cache
def make_graph(name: str, workers: int) -> Graph:
    """Return the graph of that name. A torus is as square as possible; of a prime number, a ring.

    Raises UnknownName, and InputError unless ``workers`` is a whole number above zero.
    """
    require_whole(workers=workers)
    return Graph(name, GRAPHS[known_graph(name)](workers))


def known_graph(name: str) -> str:
    """Return the name itself; raises UnknownName if there is no such graph."""
    require_known("graph", name, GRAPHS)
    return name


# The algorithms.


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
        payload, decode = worker.encoded(vector), worker.payloads.decode
        length = worker.payloads.payload_bytes
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


ORDERS = ("after", "before")


@dataclass(frozen=True)
class DPSGD(Gossip):
    """D-PSGD: every worker takes its own step and averages its model with its neighbours.

    Source: Lian et al. 2017 (arXiv 1705.09056).

    With mixing weights w, learning rate r and gradients g_i at x_i, workers i on a ``graph``:

    ``mixing`` is after the step, x_i <- sum_j w_ij (x_j - r g_j), or before it as in the paper's
    listing, x_i <- sum_j w_ij x_j - r g_i. Mixing before, messages can travel while the gradient is
    computed, and workers differ by their last gradients even on a complete graph. Mixing after,
    they are equal there, and the method is BSP. Rates of convergence are the same.
    """

    mixing: str = one_of("after", ORDERS)

    name = "d-psgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("mixing", self.mixing, ORDERS)

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise InputError, since this method sends parameters."""
        raise InputError(
            f"{self} sends its parameters, and {compressor} would lose a share of them, not of "
            f"their change, in every round; use dcd-psgd, ecd-psgd or choco, or no compression"
        )

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        while True:
            gradient = yield NextGradient()
            start = worker.parameters.clone()
            worker.apply(gradient)
            if self.mixing == "after":
                mixed: Mixed = yield from mix(worker, graph, worker.parameters.clone())
                worker.parameters.copy_(mixed.mean)
            else:
                mixed = yield from mix(worker, graph, start)
                worker.parameters.add_(mixed.mean - start)
            yield StepDone()


@dataclass(frozen=True)
class DCDPSGD(Gossip):
    """DCD-PSGD: gossip on compressed differences of the models.

    Source: Tang et al. 2018 (arXiv 1803.06443), difference compression.

    With mixing weights w, learning rate r, gradients g_i at x_i and compression C:

    z_i = sum_j w_ij x_j - r g_i - x_i; a worker sends C(z_i), and x_i <- x_i + C(z_i), so that
    neighbours know x_i exactly. What C loses is lost from the model itself: the method converges if
    C loses little, and diverges otherwise. Without compression it is D-PSGD that mixes before the
    step. ``r g`` stands for what the worker's optimizer does.
    """

    name = "dcd-psgd"

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        around = worker.parameters.clone()  # sum_j w_ij x_j
        while True:
            gradient = yield NextGradient()
            start = worker.parameters.clone()
            worker.apply(gradient)
            step = worker.parameters - start
            mixed: Mixed = yield from mix(worker, graph, around + step - start)
            around += mixed.mean
            worker.parameters.copy_(start + mixed.own)
            yield StepDone()


@dataclass(frozen=True)
class ECDPSGD(Gossip):
    """ECD-PSGD: gossip on compressed extrapolations of the models.

    Source: Tang et al. 2018 (arXiv 1803.06443), extrapolation compression.

    With mixing weights w, learning rate r, gradients g_i at x_i, compression C, t = 1, 2, ...:

    x_i' = sum_j w_ij y_j - r g_i; a worker sends C(z_i) of z_i = (1 - t/2) x_i + t/2 x_i', and all
    keep the estimate y_i <- (1 - 2/t) y_i + 2/t C(z_i) of x_i'. Errors of an unbiased C average out
    as 1/t if they are bounded; but z grows as t times the step, and errors proportional to z make
    the method diverge. Without compression y = x, and it is D-PSGD that mixes before the step.
    ``r g`` stands for what the worker's optimizer does.
    """

    name = "ecd-psgd"

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        around = worker.parameters.clone()  # sum_j w_ij y_j
        for t in count(1):
            gradient = yield NextGradient()
            start = worker.parameters.clone()
            worker.apply(gradient)
            new = around + (worker.parameters - start)
            worker.parameters.copy_(new)
            mixed: Mixed = yield from mix(worker, graph, (1 - t / 2) * start + t / 2 * new)
            around = (1 - 2 / t) * around + 2 / t * mixed.mean
            yield StepDone()


@dataclass(frozen=True)
class Choco(Gossip):
    """CHOCO-SGD: gossip on public replicas that follow the models by compressed differences.

    Source: Koloskova et al. 2019 (arXiv 1902.00340), for deep networks arXiv 1907.09356.

    With mixing weights w, learning rate r, gradients g_i at x_i, compression Q, replicas y:

    x_i <- x_i - r g_i; a worker sends Q(x_i - y_i); all that know y_i add it,
    y_i <- y_i + Q(x_i - y_i); and x_i <- x_i + gamma sum_j w_ij (y_j - y_i). What Q loses stays in
    x_i - y_i and is sent later, so any contraction converges if ``gamma`` is small enough: the more
    Q loses, the smaller. An unbiased Q with an error of u |v|^2 is no contraction if u is one or
    more: it has to be multiplied by a ``scale`` of 1 / (1 + u).

    Without compression and with gamma = 1 this is D-PSGD that mixes after the step. ``r g`` stands
    for what the worker's optimizer does. Replicas start at the common initial model, which all
    workers know, where the paper has zero.
    """

    gamma: float = 0.1
    scale: float = 1.0

    name = "choco"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in {"gamma": self.gamma, "scale": self.scale}.items():
            require(0 < value <= 1, f"{name} {value!r} must be above 0 and at most 1")

    def loop(self, worker: Worker) -> Flow:
        graph = make_graph(self.graph, worker.workers)
        replica = worker.parameters.clone()
        around = worker.parameters.clone()  # sum_j w_ij y_j
        while True:
            gradient = yield NextGradient()
            worker.apply(gradient)
            mixed: Mixed = yield from mix(worker, graph, worker.parameters - replica)
            replica.add_(mixed.own, alpha=self.scale)
            around.add_(mixed.mean, alpha=self.scale)
            worker.parameters.add_(around - replica, alpha=self.gamma)
            yield StepDone()
