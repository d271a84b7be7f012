"""Graphs of workers that gossip, their mixing weights, and how fast they mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import UnknownName, require_whole

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

        These are Metropolis weights, 1 / (larger degree + 1) for neighbours (Xiao and Boyd 2004),
        hence 1 / (degree + 1) if all degrees are equal: symmetric, every row sums to one.
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
    if name not in GRAPHS:
        raise UnknownName("graph", name, GRAPHS)
    return name
