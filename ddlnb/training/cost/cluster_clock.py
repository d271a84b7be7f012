"""The clock of a cluster: what a gradient and a request take there, for lockstep runs in its time.

Requests cost what the simulators say of one message after the backward pass: in lockstep nothing
overlaps. With equal workers a BSP run therefore takes what BSP-A2A and BSP-PS take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import BulkSynchronous
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.program import Identity, lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.training.cost.traffic import message_link, request_cost
from ddlnb.training.executors.clock import Clock
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.workloads.workload import Gradient, Workload

Slowness = Callable[[int, int, int], float]  # by rank, step and number of workers


def cluster_clock(
    workload: Workload,
    cluster: str | Cluster,
    method: str | TrainingMethod = "bsp",
    slower: Slowness | None = None,
    workers: int | None = None,
) -> Clock:
    """The clock of this method there. ``slower`` gives factors on the seconds of computation.

    Workers of a node that push at the same time, as a bulk-synchronous rule makes them do, sum
    inside the node first. Those of other rules share the link of their node: it is taken to be
    either free or never idle, so that an iteration lasts max(c + t(M), t(g M)) with c seconds of
    computation, g workers on a node and t(M) of a push and a pull. Raises InputError for servers
    that the cluster lacks.
    """
    cluster, method = get_cluster(cluster, workers), training_method(method)
    compute = compute_seconds(workload, cluster)
    joined = isinstance(method.synchronisation.rule(cluster.workers), BulkSynchronous)

    def computing(rank: int, step: int, workers: int) -> float:
        return compute * (slower(rank, step, workers) if slower else 1.0)

    def communicating(kind: type, size: int, _: int) -> float:
        if kind is not PushPull:
            return request_cost(cluster, kind, size).seconds
        alone = push_pull_seconds(workload, cluster, size)
        if joined:
            return alone / 2  # asked for the way up, and again for the way down
        shared = push_pull_seconds(workload, cluster, size * cluster.workers_per_node)
        return max(alone, shared - compute) / 2

    return Clock(computing, communicating, partial(message_link, cluster))


def compute_seconds(workload: Workload, cluster: Cluster) -> float:
    """Seconds that a worker computes in one iteration, its update included."""
    plan = plan_on(cluster, workload, "BSP-A2A")
    return lower(workload, cluster, plan).compute_seconds


def push_pull_seconds(workload: Workload, cluster: Cluster, size: int) -> float:
    """Seconds of a push and a pull of so many bytes, by all nodes at once, as BSP-PS makes them.

    Tensors share the bytes in the proportions of the workload, so that servers get their keys.
    """
    return _push_pull_seconds(Identity((workload,)), cluster, size)


@lru_cache(maxsize=4096)
def _push_pull_seconds(of: Identity, cluster: Cluster, size: int) -> float:
    workload: Workload = of.parts[0]
    if cluster.workers == 1:
        return 0.0
    share = size / workload.gradient_bytes
    gradients = tuple(
        Gradient(one.name, one.layer, max(1, round(one.bytes * share)), bytes_per_element=1)
        for one in workload.gradients
    )
    resized = replace(workload, gradients=gradients)
    plan = plan_on(cluster, resized, METHODS["BSP-PS"])
    return play_fast(lower(resized, cluster, plan)).exposed_seconds
