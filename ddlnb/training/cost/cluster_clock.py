"""The clock of a cluster: what a gradient and a request take there, for runs in lockstep.

Requests cost what the simulator says of one message after the backward pass, since nothing overlaps
in lockstep. With equal workers a BSP run therefore takes as long as BSP-A2A and BSP-PS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import BulkSynchronous
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.training.cost.requests import message_link, push_pull_seconds, request_cost
from ddlnb.training.executors.clock import Clock
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.workloads.workload import Workload

Slowness = Callable[[int, int, int], float]  # a factor by rank, step and number of workers


def cluster_clock(
    workload: Workload,
    cluster: str | Cluster,
    method: str | TrainingMethod = "bsp",
    slower: Slowness | None = None,
    workers: int | None = None,
) -> Clock:
    """Return the clock of this method there; ``slower`` multiplies seconds of computation.

    Workers of a node that push at the same time, as a bulk-synchronous rule makes them do, sum
    inside the node first. Those of other rules share the link of their node, which is taken to be
    either free or never idle, so that an iteration lasts max(c + t(M), t(g M)) with c seconds of
    computation, g workers on a node and t(M) for a push and a pull. Raises InputError for servers
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
            return alone / 2  # the clock is asked for the push, and again for the pull
        shared = push_pull_seconds(workload, cluster, size * cluster.workers_per_node)
        return max(alone, shared - compute) / 2

    return Clock(computing, communicating, partial(message_link, cluster))


def compute_seconds(workload: Workload, cluster: Cluster) -> float:
    """Return the seconds that a worker computes in one iteration, its update included."""
    plan = plan_on(cluster, workload, "BSP-A2A")
    return lower(workload, cluster, plan).compute_seconds
