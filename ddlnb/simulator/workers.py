"""Who is simulated: workers that do the same at the same time are a class, and one stands for all.

A class is what a worker computes and is delayed by, on a node of a class: the same link, the same
workers. Where all workers are alike there is one class; one slow worker among a thousand makes
three. The classes of a node stand next to each other, so that whoever has an instance of a stage, a
worker, a node or the cluster, is a range of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require, require_whole
from ddlnb.simulator.path import Each, Shape
from ddlnb.simulator.tasks import Indices, Numbers

Slowness = Callable[[int, int, int], float]  # a factor by rank, iteration and number of workers
DRAWN_ITERATIONS = 64  # played where workers are delayed at random


class WorkerClass(NamedTuple):
    """So many ``workers`` that are alike, of which ``rank`` is the lowest, on nodes of a class."""

    rank: int
    node: int
    workers: int


class NodeClass(NamedTuple):
    """So many ``nodes`` that are alike; seconds per byte of their ``link`` over those of others."""

    nodes: int
    link: float


@dataclass(frozen=True)
class Workers:
    """The workers of a cluster in use, by class.

    ``factor`` multiplies the seconds that a class computes, and ``delay`` is how many seconds later
    it begins: a row for every class, a column for every iteration, or one for all iterations.
    """

    classes: tuple[WorkerClass, ...]
    nodes: tuple[NodeClass, ...]
    factor: Numbers
    delay: Numbers

    @cached_property
    def shares(self) -> Numbers:
        """The share of all workers that each class has."""
        counts = np.array([float(one.workers) for one in self.classes])
        shares: Numbers = counts / counts.sum()
        return shares

    @property
    def iterations(self) -> int | None:
        """How many iterations to play, or None to play until they are alike."""
        columns = self.factor.shape[1]
        return columns if columns > 1 else None


def workers_of(
    cluster: Cluster,
    slower: Slowness | None = None,
    iterations: int = DRAWN_ITERATIONS,
    warm_up: bool = True,
) -> Workers:
    """Return the workers of a cluster in use, by class.

    ``slower(rank, iteration, workers)`` multiplies the seconds that a worker computes, on top of
    what the cluster says. Where that or a random delay changes from one iteration to the next, so
    many ``iterations`` are played, and with ``warm_up`` the first one twice.
    """
    require_whole(iterations=iterations)
    given, workers, per_node = cluster.heterogeneity, cluster.workers, cluster.workers_per_node
    if slower is None and cluster.is_homogeneous:
        return _homogeneous(workers, cluster.nodes_in_use)
    columns = 1 if slower is None and given.delay is None else iterations
    factor = np.array([[given.compute_factor(rank)] * columns for rank in range(workers)])
    delay = np.zeros_like(factor)
    for rank in range(workers):
        if slower is not None:
            factor[rank] *= [slower(rank, step, workers) for step in range(columns)]
        if given.delay is not None:
            delay[rank] = given.delay.seconds(rank, columns)
    require(
        bool(((factor > 0) & (factor < np.inf)).all()),
        "slower must return finite factors above 0: 2 is a worker that is twice as slow",
    )
    if given.delay is None and (factor == factor[:, :1]).all():
        factor, delay = factor[:, :1], delay[:, :1]
    elif warm_up:
        factor, delay = (np.concatenate([one[:, :1], one], axis=1) for one in (factor, delay))
    paces = [(factor[rank].tobytes(), delay[rank].tobytes()) for rank in range(workers)]
    nodes: dict[tuple[float, tuple[tuple[bytes, bytes], ...]], list[int]] = {}
    for node in range(cluster.nodes_in_use):
        inside = tuple(sorted(paces[node * per_node : (node + 1) * per_node]))
        link = given.link_factor(node) if cluster.nodes_in_use > 1 else 1.0
        nodes.setdefault((link, inside), []).append(node)
    class_of = {node: number for number, alike in enumerate(nodes.values()) for node in alike}
    ranks_of: dict[tuple[int, object], list[int]] = {}
    for rank in range(workers):
        ranks_of.setdefault((class_of[rank // per_node], paces[rank]), []).append(rank)
    first = [ranks[0] for ranks in ranks_of.values()]
    return Workers(
        classes=tuple(
            WorkerClass(ranks[0], node, len(ranks)) for (node, _), ranks in ranks_of.items()
        ),
        nodes=tuple(NodeClass(len(alike), link) for (link, _), alike in nodes.items()),
        factor=factor[first],
        delay=delay[first],
    )


@lru_cache(maxsize=64)
def _homogeneous(workers: int, nodes: int) -> Workers:
    one = np.ones((1, 1))
    return Workers((WorkerClass(0, 0, workers),), (NodeClass(nodes, 1.0),), one, 0.0 * one)


class Wiring(NamedTuple):
    """Instances of stages, and the edges between them, over which messages come.

    Every instance: its ``stage``, its classes from ``low`` to below ``high``, the ``unit`` that has
    it (with resources of its own) and the factor of its ``link``. ``instance`` are those of every
    stage and class. ``into_edge[into[i] : into[i + 1]]`` are the edges that lead into instance i,
    ``out[i]`` to below ``out[i + 1]`` those out of it.

    Whoever has an instance of the first stage is a sender: it starts messages when all its classes
    have made them ready, in one order, as BytePS does for the workers of a node. The first edges
    come from the senders, one to each instance of the first stage. Every edge: the instance it
    leads ``to``, the ``weight`` of what it carries, and the senders that it comes from. A sender's
    message is through a stage that takes parts when it is through ``needed`` instances of it.
    """

    stage: Indices
    low: Indices
    high: Indices
    unit: Indices
    link: Numbers
    instance: Indices
    into: Indices
    into_edge: Indices
    out: Indices
    to: Indices
    weight: Numbers
    sender_low: Indices
    sender_high: Indices
    needed: Indices
    units: int


@lru_cache(maxsize=64)
def wiring_of(
    shapes: tuple[Shape, ...],
    released: int,
    classes: tuple[WorkerClass, ...],
    nodes: tuple[NodeClass, ...],
) -> Wiring:
    """Return the instances of stages of these shapes for these workers, and their edges."""
    node_of = np.array([one.node for one in classes])
    alone, whole = np.arange(len(classes)), np.zeros(1, np.int64)
    # From which class to below which one each has it.
    ranges: dict[Each, tuple[Indices, Indices]] = {
        Each.WORKER: (alone, alone + 1),
        Each.NODE: (
            np.searchsorted(node_of, range(len(nodes)), "left"),
            np.searchsorted(node_of, range(len(nodes)), "right"),
        ),
        Each.CLUSTER: (whole, whole + len(classes)),
    }
    low, high = (np.concatenate([ranges[one.each][end] for one in shapes]) for end in range(2))
    counts = [len(ranges[one.each][0]) for one in shapes]
    first = np.cumsum([0, *counts])
    workers_below = np.cumsum([0.0, *(one.workers for one in classes)])
    units = {pair: number for number, pair in enumerate(dict.fromkeys(zip(low, high, strict=True)))}
    links = [nodes[node_of[start]].link for start in low]
    to, weight, sender_low, sender_high, leaving = [], [], [], [], []
    source_low, source_high = senders_low, senders_high = ranges[shapes[0].each]
    for number, shape in enumerate(shapes):
        target_low, target_high = ranges[shape.each]
        meets = (source_low[:, None] < target_high) & (target_low < source_high[:, None])
        if shape.parts or (number and shapes[number - 1].spreads):
            meets[:] = True
        source, target = np.nonzero(meets)
        to.append(first[number] + target)
        start, stop = source_low[source], source_high[source]
        share = (workers_below[stop] - workers_below[start]) / workers_below[-1]
        weight.append(share if shape.parts else np.ones(len(source)))
        sender_low.append(np.searchsorted(senders_high, start, "right"))
        sender_high.append(np.searchsorted(senders_low, stop, "left"))
        leaving.append(meets.sum(axis=1))
        if number == released:
            comes_from = [
                range(*ends) for ends in zip(sender_low[-1], sender_high[-1], strict=True)
            ]
            needed = np.bincount([one for senders in comes_from for one in senders])
        source_low, source_high = target_low, target_high
    joined_to = np.concatenate(to)
    none_leave = np.zeros(counts[-1], np.int64)
    return Wiring(
        stage=np.repeat(np.arange(len(shapes)), counts),
        low=low,
        high=high,
        unit=np.array([units[pair] for pair in zip(low, high, strict=True)]),
        link=np.where(
            [shapes[number].on_link for number in np.repeat(np.arange(len(shapes)), counts)],
            links,
            1.0,
        ),
        instance=np.stack(
            [
                first[number] + np.searchsorted(ranges[one.each][1], alone, "right")
                for number, one in enumerate(shapes)
            ]
        ),
        into=np.searchsorted(np.sort(joined_to), range(first[-1] + 1)),
        into_edge=np.argsort(joined_to, kind="stable"),
        out=counts[0] + np.cumsum(np.concatenate([[0], *leaving[1:], none_leave])),
        to=joined_to,
        weight=np.concatenate(weight),
        sender_low=np.concatenate(sender_low),
        sender_high=np.concatenate(sender_high),
        needed=needed,
        units=len(units),
    )
