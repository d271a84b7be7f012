"""Who gossips with whom: graphs of workers, their mixing weights and how fast they mix."""

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
    """Undirected; ``neighbours`` lists those of every rank, in order and without the rank itself.

    >>> make_graph("ring", 4).neighbours
    ((1, 3), (0, 2), (1, 3), (0, 2))
    """

    name: str
    neighbours: Neighbours

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self.neighbours)

    def degree(self, rank: int) -> int:
        """How many neighbours a worker has, which is how many messages it sends in a round."""
        return len(self.neighbours[rank])

    def weight(self, rank: int, other: int) -> float:
        """What ``other`` counts in the mean that ``rank`` takes of its neighbours and itself.

        1 / (degree + 1) where all workers have equally many neighbours, and Metropolis weights
        1 / (larger degree + 1) elsewhere (Xiao and Boyd 2004): symmetric, every row sums to one.
        """
        if other == rank:
            return 1 - sum(self.weight(rank, near) for near in self.neighbours[rank])
        if other not in self.neighbours[rank]:
            return 0.0
        return 1 / (1 + max(self.degree(rank), self.degree(other)))

    @property
    def weights(self) -> NDArray[np.float64]:
        """The mixing matrix, workers x workers."""
        ranks = range(self.workers)
        return np.array([[self.weight(rank, other) for other in ranks] for rank in ranks])

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, workers={self.workers})"


def spectral_gap(graph: Graph) -> float:
    """One minus the second largest |eigenvalue| of the weights: 1 mixes at once, 0 never.

    Every round of gossip multiplies the squared consensus distance by (1 - gap)^2 at most.

    >>> round(spectral_gap(make_graph("ring", 8)), 3)
    0.195
    """
    if graph.workers == 1:
        return 1.0
    sizes = np.sort(np.abs(np.linalg.eigvalsh(graph.weights)))
    return float(1 - sizes[-2])


def _ring(workers: int) -> Neighbours:
    """The worker before and the one after: two messages, however many workers."""
    return _torus_of(1, workers)


def _torus(workers: int) -> Neighbours:
    """A grid that is closed both ways: four messages; of a prime number of workers a ring."""
    rows = next(side for side in range(isqrt(workers), 0, -1) if workers % side == 0)
    return _torus_of(rows, workers // rows)


def _torus_of(rows: int, columns: int) -> Neighbours:
    found = []
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        near = {((row + step) % rows) * columns + column for step in (-1, 1)}
        near |= {row * columns + (column + step) % columns for step in (-1, 1)}
        # Both ways round a side of two lead to the same worker, which counts once.
        found.append(tuple(sorted(near - {rank})))
    return tuple(found)


def _complete(workers: int) -> Neighbours:
    """Everybody with everybody: a message to every other worker."""
    return tuple(tuple(o for o in range(workers) if o != rank) for rank in range(workers))


GRAPHS: dict[str, Callable[[int], Neighbours]] = {
    "ring": _ring,
    "torus": _torus,
    "complete": _complete,
}


@cache
def make_graph(name: str, workers: int) -> Graph:
    """The graph of that name. A torus is as square as can be; of a prime number it is a ring.

    Raises UnknownName, and InputError for a number of workers that is no whole number above zero.
    """
    require_whole(workers=workers)
    return Graph(name, GRAPHS[known_graph(name)](workers))


def known_graph(name: str) -> str:
    """The name itself; raises UnknownName if there is no such graph."""
    if name not in GRAPHS:
        raise UnknownName("graph", name, GRAPHS)
    return name
