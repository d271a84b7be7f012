"""The path of every message through the network, stage by stage.

Where all workers are alike one of them stands for all: what the others send over a shared link is
counted in the work of that link. Stages also say what is needed where workers differ
(`ddlnb.simulator.workers`): of whom each has the stage for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.fabric import ServerLoads
from ddlnb.plans.plan import Plan
from ddlnb.plans.transfers import Primitive
from ddlnb.simulator.tasks import Indices, Numbers, Tasks

ALL_REDUCE = "all-reduce"  # the stage in which a message has the network for itself


class Each(Enum):
    """Of whom each has a stage for itself."""

    WORKER = "worker"
    NODE = "node"
    CLUSTER = "cluster"


class Shape(NamedTuple):
    """What of a stage matters where workers differ; see `Stage`."""

    each: Each
    parts: bool
    spreads: bool
    on_link: bool


@dataclass(frozen=True)
class Stage:
    """One stage of the path of all messages; arrays hold a value for every message.

    The resource serves one message at a time, in the order in which they ask for it: ``delay``
    passes before they ask, ``latency`` while they hold it, then ``work``; while the worker computes
    both slow down to ``latency_share`` and ``share``, which is one for all messages or one for
    each. A stage that ``streams`` asks as soon as the stage before it, which has no latency, has
    begun, and ends no sooner than that one. Any other stage asks when the one before it has ended,
    without delay.

    ``each`` is of whom each has this stage for itself, with a resource of its own. It begins when
    all whom it is for have come; with ``parts`` it is for all of the cluster, and serves the part
    of each as it comes. What ``spreads`` goes on to all of the cluster when it has come from all.
    ``on_link`` says that the work is on a node's link.
    """

    name: str
    resource: Indices
    delay: float | Numbers
    latency: Numbers
    work: Numbers
    share: float | Numbers
    latency_share: float | Numbers = 1.0
    streams: bool = False
    each: Each = Each.CLUSTER
    parts: bool = False
    spreads: bool = False
    on_link: bool = False

    def __post_init__(self) -> None:
        assert self.streams or not (self.delay or self.parts), self.name

    @property
    def shape(self) -> Shape:
        """What of the stage matters where workers differ."""
        return Shape(self.each, self.parts, self.spreads, self.on_link)

    @property
    def shares(self) -> Numbers:
        """The share of every message."""
        return np.broadcast_to(np.asarray(self.share, float), self.work.shape)


@dataclass
class Path:
    """Stages in the order in which messages go through them, and the names of their resources.

    Resources are numbered as they are first named. ``released`` is the stage whose end gives a
    message's credit back.
    """

    messages: int
    latency_share: float
    stages: list[Stage] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)
    released: int = 0

    def add(
        self,
        name: str,
        resource: str,
        delay: float | Numbers,
        latency: Numbers,
        work: Numbers,
        share: float | Numbers,
        server: Indices | None = None,
        streams: bool = False,
        releases: bool = False,
        **where: Any,
    ) -> None:
        """Add a stage; ``where`` are its each, parts, spreads and on_link.

        With ``{}`` in the name of its resource every server has one of its own.
        """
        if server is None or "{}" not in resource:
            number = np.full(self.messages, self._number(resource))
        else:
            of_server = [self._number(resource.format(s)) for s in range(int(server.max()) + 1)]
            number = np.array(of_server)[server]
        if releases:
            self.released = len(self.stages)
        self.stages.append(
            Stage(name, number, delay, latency, work, share, self.latency_share, streams, **where)
        )

    def _number(self, resource: str) -> int:
        return self.resources.setdefault(resource, len(self.resources))


class Messages(NamedTuple):
    """What the formulas of effects read: the messages of a plan (its legs) on a cluster."""

    plan: Plan
    cluster: Cluster
    bytes: Indices
    pieces: Indices


class Added(NamedTuple):
    """What effects add to every message: seconds before its bytes, and seconds beside theirs.

    ``share`` is what they leave of the links' rate while the worker computes.
    """

    latency: Numbers | float
    work: Numbers | float
    share: Numbers | float


def path_of(plan: Plan, cluster: Cluster, tasks: Tasks) -> Path:
    """Return the path of a plan's messages on a cluster.

    Raises InputError if the plan needs parameter servers and the cluster has none.
    """
    path = Path(len(plan.legs), cluster.effects.latency_share)
    messages = Messages(plan, cluster, tasks.message_bytes, tasks.message_pieces)
    add = _push_pull if plan.exchange == "push_pull" else _all_reduce
    add(path, messages, _added(messages))
    return path


def _added(messages: Messages) -> Added:
    """Return what effects add to messages; where there is nobody to send to, nothing."""
    if messages.cluster.workers == 1:
        return Added(0.0, 0.0, 1.0)
    terms = partial(messages.cluster.effects.terms, of=messages)
    return Added(
        sum(terms("message latency"), 0.0),
        sum(terms("message work"), 0.0),
        math.prod(terms("message share")),
    )


def _all_reduce(path: Path, messages: Messages, added: Added) -> None:
    """Add one stage on one resource: all ranks take part in one all-reduce at a time.

    Of its latency only the occupied share holds up the next one; during the rest parts of it are on
    their way, or wait for a rank, and the next may use the links (the gap and the latency of LogP:
    Culler et al., PPoPP 1993). Halves of one all-reduce need one another, so they occupy all.

    The thread of a scheduler, where there is one, starts every message before and sees its end
    afterwards, one thing at a time, while the network and the worker go on.
    """
    plan, cluster, size = messages.plan, messages.cluster, messages.bytes
    latency, work, share = _collective_work(plan, cluster, size)
    turn = cluster.effects.scheduler_latency / 2 + 0.0 * size
    has_scheduler = bool(turn.any()) and plan.credit_bytes is not None and cluster.workers > 1
    if has_scheduler:
        path.add("start", "scheduler", 0.0, turn, 0.0 * size, 1.0, each=Each.WORKER)
    occupied = 1.0 if plan.is_split else cluster.effects.occupied_share
    gap = occupied * latency + added.latency
    path.add(ALL_REDUCE, "network", 0.0, gap, work + added.work, share * added.share, releases=True)
    if np.any(occupied < 1) and cluster.workers > 1:
        own, rest = np.arange(path.messages), (1 - occupied) * latency
        path.add("on its way", "on its way {}", 0.0, rest, 0.0 * size, 1.0, own, releases=True)
    if has_scheduler:
        path.add("end", "scheduler", 0.0, turn, 0.0 * size, 1.0, each=Each.WORKER)


def _collective_work(
    plan: Plan, cluster: Cluster, size: Indices
) -> tuple[Numbers, Numbers, float | Numbers]:
    """Return latency and work of every leg, and the share of the work that goes on beside compute.

    Halves of all-reduces go round a ring.
    """
    none: Numbers = 0.0 * size
    if cluster.workers == 1:
        return none, none, 1.0
    ways: dict[str, Callable[[Indices], tuple[Any, Any, Any]]]
    if plan.is_split:
        names = [leg.primitive for leg in plan.legs]
        halves: tuple[Primitive, ...] = ("reduce-scatter", "all-gather")
        ways = {primitive: partial(cluster.half_work, primitive) for primitive in halves}
    else:
        names = list(plan.collectives) or [""] * len(plan.legs)
        ways = {
            name: (replace(cluster, all_reduce=name) if name else cluster).all_reduce_work
            for name in sorted(set(names))
        }
    found: Any = none, none, none
    for name, work_of in ways.items():
        legs = np.array([one == name for one in names])
        found = [np.where(legs, *pair) for pair in zip(work_of(size), found, strict=True)]
    latency, work, share = found
    return latency, work, share


def _push_pull(path: Path, messages: Messages, added: Added) -> None:
    """Add the stages: reduce in the node, push to a server, sum there, pull, spread in the node.

    Within one node there is nobody to sum with outside, and no server takes part (as in BytePS).
    """
    cluster, size = messages.cluster, messages.bytes
    effects, nodes, per_node = cluster.effects, cluster.nodes_in_use, cluster.workers_per_node
    # Reduce-scatter before, all-gather after; each of them uses both directions of the links.
    share, hops = effects.inside_share * added.share, effects.inside_latency * (per_node - 1)
    bandwidth = effects.inside_bandwidth * effects.closed_ring_share
    inside = (per_node - 1) / per_node * size / bandwidth
    node: dict[str, Any] = {"each": Each.NODE}
    latency, work = added.latency + hops + 0.0 * size, inside + added.work
    path.add("reduce in node", "inside", 0.0, latency, work, share, releases=True, **node)
    if nodes > 1:
        _through_servers(path, messages, effects.between_share * added.share)
    if per_node > 1:
        path.add("spread in node", "inside", 0.0, hops + 0 * size, inside, share, **node)


def _through_servers(path: Path, messages: Messages, share: float | Numbers) -> None:
    plan, cluster, size, _ = messages
    cluster.require_servers(plan.method)
    effects, nodes = cluster.effects, cluster.nodes_in_use
    server = np.array(plan.placement, dtype=np.int64)
    link, connection = size / effects.between_bandwidth, size / effects.connection_bandwidth
    server_bandwidth = np.minimum(effects.server_bandwidth, effects.between_bandwidth)
    into, duplex = nodes * size / server_bandwidth, size / effects.duplex_bandwidth
    latency = effects.between_latency
    up, down, at_server, from_server = "uplink", "downlink", "server {} in", "server {} out"
    loads = cluster.server_loads(plan.servers) if cluster.topology or cluster.changes else None
    if loads is not None:
        link = np.array([one.uplink for one in loads])[server] * size
        arriving: Numbers = np.array([one.into for one in loads])[server] * size
        if cluster.server_place == "workers' nodes":
            arriving *= nodes / (nodes - 1)  # what a node sends itself is taken off below
        into = np.maximum(arriving, nodes * size / effects.server_bandwidth)
    if cluster.server_place == "workers' nodes":
        # A node's link carries its own messages and those of the server beside it; the k servers
        # take turns, so an average node stands for them, weighted by how uneven their load is.
        k = min(plan.servers, nodes)
        link, connection = link * (1 - 1 / k), connection * (1 - 1 / k)
        duplex = duplex * (1 - 1 / k)
        load = np.bincount(server, weights=size, minlength=plan.servers)
        into = into * (1 - 1 / nodes) / k * load[server] / load.mean()
        up, down, at_server, from_server = "node out", "node in", "node in", "node out"
    none = 0.0 * size
    has_duplex, has_cap = (
        np.any(np.isfinite(one)) for one in (effects.duplex_bandwidth, effects.connection_bandwidth)
    )
    node: dict[str, Any] = {"each": Each.NODE}
    on_link = {**node, "on_link": True}
    beside = on_link if cluster.server_place == "workers' nodes" else {}
    path.add("uplink", up, 0.0, none, link, share, **on_link)
    if has_duplex:
        path.add("duplex", "duplex", 0.0, none, duplex, share, streams=True, **on_link)
    if has_cap:
        path.add("connection", "to {}", 0.0, none, connection, share, server, True, **node)
    _between_switches(path, loads, server, size, share, "to link {}")
    path.add(
        "into server", at_server, latency, none, into, 1.0, server, True, True, parts=True, **beside
    )
    summing = effects.server_latency * nodes + nodes * size / effects.sum_bandwidth
    path.add("sum", "server {}", 0.0, none, summing, 1.0, server)
    path.add("out of server", from_server, 0.0, none, into, 1.0, server, spreads=True, **beside)
    _between_switches(path, loads, server, size, share, "from link {}")
    if has_cap:
        path.add("connection", "from {}", 0.0, none, connection, share, server, True, **node)
    if has_duplex:
        path.add("duplex", "duplex", 0.0, none, duplex, share, streams=True, **on_link)
    path.add("downlink", down, latency, none, link, share, streams=True, **on_link)


def _between_switches(
    path: Path,
    loads: list[ServerLoads] | None,
    server: Indices,
    size: Indices,
    share: float | Numbers,
    resource: str,
) -> None:
    """Add the busiest link that messages to a server share on their way, if a topology has one.

    Where workers differ it carries a message when it has come from all: an upper bound.
    """
    if loads is None or not any(one.fabric for one in loads):
        return
    busiest = np.array([one.fabric for one in loads])
    known = {link: i for i, link in enumerate(sorted({one.link for one in loads}))}
    link = np.array([known[one.link] for one in loads])
    none = 0.0 * size
    path.add("fabric", resource, 0.0, none, busiest[server] * size, share, link[server], True)
