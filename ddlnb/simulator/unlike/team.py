"""Who must be simulated: workers of a kind do the same at the same time, so one stands for them.

A kind is what a worker computes and is delayed by, on a node of a kind: the same link, the same
workers. So one slow worker among a thousand costs no more than one among four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require_whole
from ddlnb.simulator.computation import Numbers

Slowness = Callable[[int, int, int], float]  # a factor by rank, iteration and number of workers
DRAWN_ITERATIONS = 64  # played where workers are delayed at random


@dataclass(frozen=True)
class Lane:
    """A worker that stands for all of its kind: the one of the lowest ``rank`` among ``count``.

    ``node`` is the kind of its node.
    """

    rank: int
    node: int
    count: int


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a kind: how many, and the seconds per byte of their link over those of others."""

    count: int
    link: float


@dataclass(frozen=True)
class Team:
    """The workers that are simulated.

    ``factor`` multiplies the seconds that a lane computes, and ``delay`` is how many seconds later
    it begins: a row for every lane, a column for every iteration, or one for all iterations.
    """

    lanes: tuple[Lane, ...]
    nodes: tuple[NodeKind, ...]
    factor: Numbers
    delay: Numbers

    @property
    def counts(self) -> Numbers:
        """How many workers each lane stands for."""
        return np.array([float(lane.count) for lane in self.lanes])

    @property
    def iterations(self) -> int | None:
        """How many iterations to play, or None to play until they are alike."""
        columns = self.factor.shape[1]
        return columns if columns > 1 else None


def team_of(
    cluster: Cluster,
    slower: Slowness | None = None,
    iterations: int = DRAWN_ITERATIONS,
    warm_up: bool = True,
) -> Team:
    """Return the workers of a cluster in use, by kind.

    ``slower(rank, iteration, workers)`` multiplies the seconds that a worker computes, on top of
    what the cluster says. Where that or a random delay changes from one iteration to the next, so
    many ``iterations`` are played, and with ``warm_up`` the first one twice.
    """
    require_whole(iterations=iterations)
    unlike, workers, per_node = cluster.unlike, cluster.workers, cluster.workers_per_node
    columns = 1 if slower is None and unlike.delay is None else iterations
    factor = np.array([[unlike.compute_factor(rank)] * columns for rank in range(workers)])
    delay = np.zeros_like(factor)
    for rank in range(workers):
        if slower is not None:
            factor[rank] *= [slower(rank, step, workers) for step in range(columns)]
        if unlike.delay is not None:
            delay[rank] = unlike.delay.seconds(rank, columns)
    if unlike.delay is None and (factor == factor[:, :1]).all():
        factor, delay = factor[:, :1], delay[:, :1]
    elif warm_up:
        factor, delay = (np.concatenate([one[:, :1], one], axis=1) for one in (factor, delay))
    kind_of = [(factor[rank].tobytes(), delay[rank].tobytes()) for rank in range(workers)]
    nodes: dict[object, list[int]] = {}
    for node in range(cluster.nodes_in_use):
        inside = sorted(kind_of[node * per_node : (node + 1) * per_node])
        link = unlike.link_factor(node) if cluster.nodes_in_use > 1 else 1.0
        nodes.setdefault((link, *inside), []).append(node)
    number_of = {node: kind for kind, alike in enumerate(nodes.values()) for node in alike}
    lanes: dict[object, list[int]] = {}
    for rank in range(workers):
        lanes.setdefault((number_of[rank // per_node], kind_of[rank]), []).append(rank)
    first = [ranks[0] for ranks in lanes.values()]
    return Team(
        lanes=tuple(
            Lane(ranks[0], number_of[ranks[0] // per_node], len(ranks)) for ranks in lanes.values()
        ),
        nodes=tuple(
            NodeKind(len(alike), unlike.link_factor(alike[0]) if len(number_of) > 1 else 1.0)
            for alike in nodes.values()
        ),
        factor=factor[first],
        delay=delay[first],
    )
