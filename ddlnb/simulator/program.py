"""A plan on a cluster, as numbers: what one worker computes, and the way of every message.

All workers are alike, so one of them stands for all: what the others send over a shared link is
counted in the work of that link. Both simulators, the plain one and the fast one, play a program;
neither knows methods, plans or clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.errors import InputError
from ddlnb.plans.plan import Gate, Launch, Message, Order, Plan
from ddlnb.workloads.workload import Workload


# A key for caches: large frozen values, told apart by which objects they are.
class Identity:
    """Hashes and compares its parts by identity, because hashing all of them takes too long.

    >>> first, second = [1], [1]
    >>> Identity((first,)) == Identity((first,)), Identity((first,)) == Identity((second,))
    (True, False)
    """

    def __init__(self, parts: tuple[Any, ...]):
        self.parts = parts
        self._key = tuple(map(id, parts))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._key == other._key


Numbers = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """One step of the computation: it waits for messages, takes time, and makes messages ready."""

    kind: str
    name: str
    waits_for: tuple[int, ...] = ()
    readies: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One stage of the way of all messages; arrays hold a value for every message.

    The resource serves one message at a time, in the order in which they ask for it: ``delay``
    passes before they ask, ``latency`` while they hold it, then ``work``; while the worker computes
    they slow down to ``latency_share`` and ``share``. A stage that ``streams`` asks as soon as the
    stage before, which has no latency, has begun, and ends no sooner than that one; others ask
    when it has ended.
    """

    name: str
    resource: Indices
    delay: float
    latency: Numbers
    work: Numbers
    share: float
    latency_share: float = 1.0
    streams: bool = False


@dataclass(frozen=True)
class Program:
    """Tasks of one iteration, the stages of its messages, and the rules of the queue.

    ``task_seconds`` and ``message_bytes`` hold a number for every task and message. ``released``
    is the stage whose end gives credit back. ``drains`` when no message is under way at the end of
    an iteration, so that all iterations are alike.
    """

    tasks: Tasks
    task_seconds: Numbers
    stages: tuple[Stage, ...]
    resources: tuple[str, ...]
    messages: tuple[Message, ...]
    message_bytes: Indices
    priority: Indices
    by_priority: bool
    credit_bytes: float
    released: int
    drains: bool
    compute_share: float

    @property
    def step_seconds(self) -> Numbers:
        """Seconds of every step of the tasks."""
        return np.add.reduceat(self.task_seconds, [step.start for step in self.tasks.steps])

    @property
    def compute_seconds(self) -> float:
        """Seconds of computation in one iteration."""
        return float(self.task_seconds.sum())


def lower(workload: Workload, cluster: Cluster, plan: Plan) -> Program:
    """The program of a plan for this workload on this cluster.

    Raises InputError when the cluster lacks what the plan needs, or the plan is of other gradients.
    """
    if plan.gradients != workload.gradients:
        raise InputError(f"plan {plan.method!r} was not made for workload {workload.model!r}")
    tasks = _tasks(Identity((workload, plan)))
    size = tasks.message_bytes
    software = _software(plan, cluster, tasks)
    way = _all_reduce if plan.exchange == "all_reduce" else _push_pull
    stages, resources, released = way(plan, cluster, size, software)
    return Program(
        tasks=tasks,
        task_seconds=tasks.seconds(cluster.effects),
        stages=tuple(stages),
        resources=resources,
        messages=plan.messages,
        message_bytes=size,
        priority=tasks.priority,
        by_priority=plan.order is Order.PRIORITY,
        credit_bytes=math.inf if plan.credit_bytes is None else float(plan.credit_bytes),
        released=released,
        drains=plan.gate is Gate.ALL_LAYERS,
        compute_share=cluster.effects.compute_share,
    )


@dataclass(frozen=True)
class Tasks:
    """The tasks of one iteration, and what of their seconds does not depend on the cluster.

    Arrays hold a number for every task: its own seconds, the messages it makes ready, the tensors
    and bytes that it updates; those of messages one for every message.
    """

    listed: tuple[Task, ...]
    own_seconds: Numbers
    readied: Numbers
    updated_tensors: Numbers
    updated_bytes: Numbers
    message_bytes: Indices
    message_pieces: Indices
    priority: Indices

    @cached_property
    def steps(self) -> tuple[range, ...]:
        """The tasks in runs in which nothing is waited for and no message becomes ready.

        Only the first of a run may wait, only the last may make messages ready.
        """
        first = [
            number
            for number, task in enumerate(self.listed)
            if number == 0 or task.waits_for or self.listed[number - 1].readies
        ]
        return tuple(map(range, first, [*first[1:], len(self.listed)]))

    def seconds(self, effects: Effects) -> Numbers:
        """Seconds of every task."""
        return (
            self.own_seconds * effects.compute_factor
            + self.readied * effects.message_compute
            + self.updated_tensors * effects.update_latency
            + self.updated_bytes / effects.update_bandwidth
        )


@lru_cache(maxsize=512)
def _tasks(of: Identity) -> Tasks:
    """Forward by layer, backward by gradient, updates where the plan's gate puts them."""
    workload, plan = of.parts
    positions_of: dict[str, list[int]] = {}
    for position, gradient in enumerate(plan.gradients):
        positions_of.setdefault(gradient.layer, []).append(position)
    own = plan.gate is Gate.OWN_LAYER
    # Task, own seconds, positions of the gradients that it updates.
    rows: list[tuple[Task, float, list[int]]] = []
    for layer in workload.layers:
        if own and layer.name in positions_of:
            waits_for = plan.messages_of_layer[layer.name]
            rows.append((Task("update", layer.name, waits_for), 0.0, positions_of[layer.name]))
        rows.append((Task("forward", layer.name), layer.forward_seconds, []))
    last = len(workload.gradients) - 1
    ready: list[list[int]] = [[] for _ in workload.gradients]
    for message, positions in enumerate(plan.gradients_of):
        ready[last if plan.launch is Launch.AFTER_BACKWARD else max(positions)].append(message)
    for gradient, messages in zip(workload.gradients, ready, strict=True):
        task = Task("backward", gradient.name, readies=tuple(messages))
        rows.append((task, gradient.backward_seconds, []))
    if not own:
        everything = tuple(range(len(plan.messages)))
        rows.append((Task("update", "all layers", everything), 0.0, list(range(last + 1))))
    sizes = [gradient.bytes for gradient in plan.gradients]
    return Tasks(
        listed=tuple(task for task, _, _ in rows),
        own_seconds=np.array([seconds for _, seconds, _ in rows]),
        readied=np.array([float(len(task.readies)) for task, _, _ in rows]),
        updated_tensors=np.array([float(len(positions)) for _, _, positions in rows]),
        updated_bytes=np.array([float(sum(sizes[i] for i in updated)) for _, _, updated in rows]),
        message_bytes=np.array(plan.message_bytes, dtype=np.int64),
        message_pieces=np.array([len(message.pieces) for message in plan.messages]),
        priority=np.array([message.priority for message in plan.messages], dtype=np.int64),
    )


Way = tuple[list[Stage], tuple[str, ...], int]


def _all_reduce(plan: Plan, cluster: Cluster, size: Indices, software: Numbers) -> Way:
    """One stage on one resource: all ranks take part in one all-reduce at a time."""
    latency, per_byte, share = cluster.all_reduce_seconds
    if cluster.workers == 1:
        latency = per_byte = 0.0
    one = np.zeros(len(size), dtype=np.int64)
    stage = Stage(
        "all-reduce",
        one,
        0.0,
        latency + software,
        per_byte * size,
        share,
        cluster.effects.latency_share,
    )
    return [stage], ("network",), 0


def _push_pull(plan: Plan, cluster: Cluster, size: Indices, software: Numbers) -> Way:
    """Reduce inside the node, push to a server, sum there, pull, spread inside the node.

    Within one node there is nobody to sum with outside, and no server takes part (as in BytePS).
    """
    effects, nodes, per_node = cluster.effects, cluster.nodes_in_use, cluster.workers_per_node
    build = _Way(len(size), effects.latency_share)
    # Reduce-scatter before, all-gather after; each of them uses both directions of the links.
    share_inside = (per_node - 1) / per_node
    hops = effects.inside_latency * (per_node - 1)
    inside = share_inside * size / effects.inside_bandwidth
    build.add("reduce in node", "inside", 0.0, software + hops, inside, effects.inside_share)
    if nodes > 1:
        _require_servers(plan, cluster)
        _through_servers(build, plan, cluster, size, nodes)
    if per_node > 1:
        build.add("spread in node", "inside", 0.0, hops + 0 * size, inside, effects.inside_share)
    released = max(i for i, stage in enumerate(build.stages) if stage.name in _PUSHED)
    return build.stages, tuple(build.resources), released


_PUSHED = ("reduce in node", "into server")


def _require_servers(plan: Plan, cluster: Cluster) -> None:
    if cluster.server_place is None:
        raise InputError(
            f"method {plan.method!r} needs parameter servers, and cluster {cluster.name!r} has "
            f"none; add server_place to it, or choose an all-to-all method"
        )


def _through_servers(build: _Way, plan: Plan, cluster: Cluster, size: Indices, nodes: int) -> None:
    effects = cluster.effects
    server = np.array(plan.placement, dtype=np.int64)
    link, connection = size / effects.between_bandwidth, size / effects.connection_bandwidth
    server_bandwidth = min(effects.server_bandwidth, effects.between_bandwidth)
    into, duplex = nodes * size / server_bandwidth, size / effects.duplex_bandwidth
    share, latency = effects.between_share, effects.between_latency
    up, down, at_server, from_server = "uplink", "downlink", "server {} in", "server {} out"
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
    build.add("uplink", up, 0.0, none, link, share)
    if math.isfinite(effects.duplex_bandwidth):
        build.add("duplex", "duplex", 0.0, none, duplex, share, streams=True)
    if math.isfinite(effects.connection_bandwidth):
        build.add("connection", "to {}", 0.0, none, connection, share, server, streams=True)
    build.add("into server", at_server, latency, none, into, 1.0, server, streams=True)
    summing = effects.server_latency * nodes + nodes * size / effects.sum_bandwidth
    build.add("sum", "server {}", 0.0, none, summing, 1.0, server)
    build.add("out of server", from_server, 0.0, none, into, 1.0, server)
    if math.isfinite(effects.connection_bandwidth):
        build.add("connection", "from {}", 0.0, none, connection, share, server, streams=True)
    if math.isfinite(effects.duplex_bandwidth):
        build.add("duplex", "duplex", 0.0, none, duplex, share, streams=True)
    build.add("downlink", down, latency, none, link, share, streams=True)


class _Way:
    """Stages in the making; resources get their numbers when they are first named."""

    def __init__(self, messages: int, latency_share: float):
        self._latency_share = latency_share
        self.stages: list[Stage] = []
        self.resources: dict[str, int] = {}
        self._messages = messages

    def add(
        self,
        name: str,
        resource: str,
        delay: float,
        latency: Numbers,
        work: Numbers,
        share: float,
        server: Indices | None = None,
        streams: bool = False,
    ) -> None:
        if server is None or "{}" not in resource:
            number = np.full(self._messages, self._number(resource))
        else:
            of_server = [self._number(resource.format(s)) for s in range(int(server.max()) + 1)]
            number = np.array(of_server)[server]
        self.stages.append(
            Stage(name, number, delay, latency, work, share, self._latency_share, streams)
        )

    def _number(self, resource: str) -> int:
        return self.resources.setdefault(resource, len(self.resources))


def _software(plan: Plan, cluster: Cluster, tasks: Tasks) -> Numbers:
    """Latency seconds of every message that are not the links'."""
    effects = cluster.effects
    seconds = np.zeros(len(plan.messages))
    if cluster.workers == 1:
        return seconds  # nobody to send to
    if plan.exchange == "push_pull":
        seconds += effects.operation_latency
    if plan.order is Order.PRIORITY or plan.credit_bytes is not None:
        seconds += effects.priority_latency
    is_merged = tasks.message_pieces > 1
    seconds += is_merged * (2 * tasks.message_bytes / effects.copy_bandwidth)
    return seconds
