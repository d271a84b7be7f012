"""When everything can happen at the earliest: longest paths in a graph of dependencies.

A node is an instant. It comes after each of its predecessors by the edge's lag, and after that by
its own delay; a node without predecessors comes at its own delay. All nodes whose predecessors are
known are computed at once, for any number of scenarios side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, require

Indices = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Dependencies:
    """Edges between ``nodes`` nodes, from ``before`` to ``after``, with a lag in seconds each."""

    nodes: int
    before: Indices
    after: Indices
    lag: Seconds

    def __post_init__(self) -> None:
        require(
            len(self.before) == len(self.after) == len(self.lag),
            "every edge needs a node before, a node after and a lag",
        )


class Cyclic(InputError):
    """Dependencies that wait for one another; ``nodes`` are those that can never come."""

    def __init__(self, nodes: Indices):
        self.nodes = nodes
        super().__init__(f"{len(nodes)} instants wait for one another in a circle")


class EarliestTimes:
    """The player of one graph: made once, called with the delays of any number of scenarios."""

    def __init__(self, graph: Dependencies):
        """Put the nodes into levels. Raises Cyclic if the graph has a circle."""
        self.graph = graph
        level = _levels(graph)
        order = np.lexsort((graph.after, level[graph.after]))
        self._before, self._after = graph.before[order], graph.after[order]
        self._lag = graph.lag[order]
        self._steps = _slices(level[self._after])

    def __call__(self, delays: Seconds, lags: float = 1.0) -> Seconds:
        """Return the instant of every node; ``delays`` is per node, or scenarios by nodes.

        ``lags`` is a factor of those of the graph.
        """
        at = np.array(delays, dtype=np.float64, copy=True)
        lag = lags * self._lag
        for part in self._steps:
            after = self._after[part]
            first = np.flatnonzero(np.r_[True, after[1:] != after[:-1]])
            arrives = at[..., self._before[part]] + lag[part]
            at[..., after[first]] += np.maximum.reduceat(arrives, first, axis=-1)
        return at


def critical_path(graph: Dependencies, at: Seconds, delays: Seconds) -> list[int]:
    """Return the nodes that the last one waited for, from the first to the last.

    ``at`` are the instants of one scenario, ``delays`` what they were computed from.
    """
    order = np.argsort(graph.after, kind="stable")
    bounds = np.searchsorted(graph.after[order], np.arange(graph.nodes + 1))
    path = [int(np.argmax(at))]
    while bounds[path[-1]] < bounds[path[-1] + 1]:
        edges = order[bounds[path[-1]] : bounds[path[-1] + 1]]
        arrives = at[graph.before[edges]] + graph.lag[edges]
        path.append(int(graph.before[edges[np.argmax(arrives)]]))
    return path[::-1]


def _levels(graph: Dependencies) -> Indices:
    """Return for every node how many edges the longest chain before it has."""
    waiting = np.bincount(graph.after, minlength=graph.nodes)
    order = np.argsort(graph.before, kind="stable")
    follower = graph.after[order]
    bounds = np.searchsorted(graph.before[order], np.arange(graph.nodes + 1))
    level = np.zeros(graph.nodes, dtype=np.int64)
    ready = np.flatnonzero(waiting == 0)
    number = 0
    while len(ready):
        level[ready] = number
        freed = follower[_ranges(bounds[ready], bounds[ready + 1])]
        nodes, edges = np.unique(freed, return_counts=True)
        waiting[nodes] -= edges
        ready = nodes[waiting[nodes] == 0]
        number += 1
    stuck = np.flatnonzero(waiting > 0)
    if len(stuck):
        raise Cyclic(stuck)
    return level


def _ranges(start: Any, stop: Any) -> Indices:
    """Return the numbers of all ranges, one after the other.

    >>> _ranges(np.array([3, 7]), np.array([5, 8])).tolist()
    [3, 4, 7]
    """
    length = stop - start
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    numbers: Indices = np.arange(total) + np.repeat(start - ends + length, length)
    return numbers


def _slices(groups: Indices) -> list[slice]:
    """Return the runs of equal numbers in a sorted array."""
    if len(groups) == 0:
        return []
    changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    return [slice(int(a), int(b)) for a, b in pairwise([0, *changes, len(groups)])]
