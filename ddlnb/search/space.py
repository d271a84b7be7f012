"""What a search chooses from: the space of plans, one choice in it, and what messages cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require
from ddlnb.networks.collectives import catalogue
from ddlnb.networks.collectives.catalogue import get_algorithm, get_collective, why_not
from ddlnb.networks.fabric import CHOICES
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import by_priority, message_of, partitioned
from ddlnb.plans.plan import Gate, Launch, Message, Order, Plan
from ddlnb.plans.requests import SPLIT
from ddlnb.plans.transfers import Primitive
from ddlnb.registry import several
from ddlnb.workloads.workload import Workload

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective on a quiet machine, and its shares while the workers compute."""

    cluster: Cluster
    primitive: Primitive = "all-reduce"

    def parts(self, sizes: NDArray[Any]) -> tuple[Numbers, Numbers, Numbers]:
        """Return latency seconds, seconds of work and its share, of messages of these bytes."""
        none = np.zeros(len(sizes))
        if self.cluster.workers == 1:
            return none, none, none + 1.0
        if self.primitive == "all-reduce":
            latency, work, share = self.cluster.all_reduce_work(sizes)
        else:
            latency, work, share = self.cluster.half_work(self.primitive, sizes)
        return none + latency, none + work, none + share

    def seconds(self, sizes: NDArray[Any]) -> Numbers:
        """Return the seconds of messages of these bytes."""
        latency, work, _ = self.parts(sizes)
        return latency + work


def all_reduce_costs(cluster: Cluster, names: Sequence[str]) -> list[Cost]:
    """Return the cost of every collective by name, "" for the cluster's own."""
    return [Cost(replace(cluster, all_reduce=name) if name else cluster) for name in names]


SEARCHED = "searched"  # the name of plans that are found
# All-reduces that a message may take, if they run among the workers.
COLLECTIVES = ("ring", "tree", "double-tree", "halving-doubling", "hierarchical")
MOST_PARTS = 1200  # messages of a plan that is tried: more take long to try, and each has a latency


@dataclass(frozen=True)
class Space:
    """What plans may do; everything by default.

    ``partition`` says whether tensors may be cut, ``gates`` what forward passes may wait for,
    ``orders`` whether messages start as backward makes them ready ("ready") or by the layer that
    needs them ("priority"), ``split`` whether all-reduces may go in halves. ``collectives`` are the
    names that every message may choose from; "auto" are those of COLLECTIVES, and registered ones,
    that run among the workers, none leaves every message to the cluster's own. ``servers`` says
    whether plans of parameter servers count, where the cluster has a place for them, and
    ``methods`` whether those of the methods do, which any result is then at least as fast as.
    Raises InputError for a space that holds nothing, UnknownName for a collective that there is
    not.

    >>> import ddlnb
    >>> from ddlnb.plans.plan import Gate
    >>> from ddlnb.search.space import Space
    >>> plain = Space(gates=(Gate.ALL_LAYERS,), split=False, collectives=(), servers=False)
    >>> plain.orders
    ('ready', 'priority')
    """

    partition: bool = True
    gates: tuple[Gate, ...] = (Gate.ALL_LAYERS, Gate.OWN_LAYER)
    orders: tuple[str, ...] = ("ready", "priority")
    split: bool = True
    collectives: str | tuple[str, ...] = "auto"
    servers: bool = True
    methods: bool = True

    def __post_init__(self) -> None:
        require(bool(self.gates), "a space without gates holds no plan; give at least one")
        require(
            bool(self.orders) and set(self.orders) <= {"ready", "priority"},
            f"orders {self.orders!r} must be of 'ready' and 'priority'",
        )

    def collectives_on(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the names of collectives that a message may take instead of the cluster's own."""
        is_free = self.collectives == "auto"
        own = (name for name, kind in catalogue.COLLECTIVES.items() if kind not in catalogue.OURS)
        names = (*COLLECTIVES, *own) if is_free else tuple(several(self.collectives))
        if is_free and (cluster.workers == 1 or cluster.heterogeneity.link):
            return ()  # what is played on a graph has no factors of links
        workers, per_node = cluster.workers, cluster.workers_per_node
        if is_free:  # the others, of those that are made for so many workers
            able = (n for n in names if not why_not(get_algorithm(n), workers, per_node))
            own_too = {cluster.all_reduce, *CHOICES.get(cluster.all_reduce, ())}
            names = tuple(name for name in able if name not in own_too)
        for name in names:
            get_collective(name, workers, per_node=per_node)
        return names


@dataclass(frozen=True)
class Candidate:
    """One choice of all-reduces: groups of neighbours in backward order, and how they travel.

    ``ends`` are the positions behind the last gradient of every group; ``partition`` is the most
    bytes of a message, None for no limit; ``chooses`` says whether every message takes the quickest
    collective, rather than the cluster's own. Where gradients are compressed, the groups with the
    ends in ``dense`` are not.
    """

    ends: tuple[int, ...]
    gate: Gate = Gate.ALL_LAYERS
    prioritised: bool = False
    split: bool = False
    partition: int | None = None
    chooses: bool = False
    dense: frozenset[int] = frozenset()

    def plan(
        self,
        workload: Workload,
        cluster: Cluster,
        names: Sequence[str],
        cost: AlphaBeta | None = None,
    ) -> Plan | None:
        """Return the plan, None for one of more messages than are tried.

        Priorities are played with this cost of a message, by default the cluster's all-reduce.
        """
        listed = workload.gradients
        messages = [message_of(workload, listed[a:b]) for a, b in pairwise((0, *self.ends))]
        if self.partition is not None:
            size = listed[0].bytes_per_element
            limit = max(size, self.partition)
            if sum(message.elements * size // limit + 1 for message in messages) > MOST_PARTS:
                return None
            messages = partitioned(messages, size, limit)
        if self.prioritised:
            messages = by_priority(messages, workload, cost or cluster.cost, 1)
        return Plan(
            method=SEARCHED,
            gradients=listed,
            messages=tuple(messages),
            exchange=SPLIT if self.split else "all_reduce",
            launch=Launch.WHEN_READY,
            order=Order.LISTED,
            gate=self.gate,
            collectives=self._collectives(workload, messages, cluster, names),
        )

    def _collectives(
        self,
        workload: Workload,
        messages: Sequence[Message],
        cluster: Cluster,
        names: Sequence[str],
    ) -> tuple[str, ...]:
        if not self.chooses or self.split or not names:
            return ()
        sizes = np.array([message.elements for message in messages], dtype=np.int64)
        return quickest(cluster, names, sizes * workload.gradients[0].bytes_per_element)


def quickest(
    cluster: Cluster, names: Sequence[str], sizes: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[str, ...]:
    """Return the quickest collective for a message of each size, "" for the cluster's own."""
    listed = ["", *names]
    seconds = [cost.seconds(sizes) for cost in all_reduce_costs(cluster, listed)]
    return tuple(listed[i] for i in np.argmin(np.stack(seconds), axis=0))
