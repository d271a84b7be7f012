"""Seconds of a request on a cluster: what an all-reduce, a gather or a message costs there.

An all-reduce costs what the cluster says. Payloads are gathered along a ring, whatever the
all-reduce is: n - 1 hops, with (n-1) B bytes through every link (Thakur et al. 2005). A message is
an operation of one hop. Messages of compressors go to one worker at a time, as along a tree, which
has at most one pair per node, and are all priced as if they left the node. Where workers send
several at once, as in gossip, they share the links of `message_link`. A push and a pull cost what
BSP-PS makes of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.base import Traffic
from ddlnb.errors import InputError, require
from ddlnb.plans.methods import METHODS
from ddlnb.plans.requests import AllGather, AllReduce, Messages
from ddlnb.simulator.fast_player import play_fast
from ddlnb.simulator.identity import Identity
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.unlike.fast_player import play_unlike_fast
from ddlnb.simulator.unlike.program import with_team
from ddlnb.simulator.unlike.team import team_of
from ddlnb.training.executors.links import Link
from ddlnb.workloads.workload import Workload


class RequestCost(NamedTuple):
    """Seconds before bytes flow (``latency``) and while they do (``work``), on idle links.

    ``copies`` are those into a message that several tensors share, and out of it.
    """

    latency: float
    work: float
    copies: float = 0.0

    @property
    def seconds(self) -> float:
        """All together."""
        return self.latency + self.work + self.copies


FREE = RequestCost(0.0, 0.0)


def request_cost(
    cluster: Cluster, request: type, size: float, is_merged: bool = False
) -> RequestCost:
    """Return the cost of a request of ``size`` bytes, as `ddlnb.compression.base.Traffic` counts.

    Tensors that are merged into it are copied. Raises InputError for a request that is none of
    AllReduce, AllGather and Messages.
    """
    if cluster.workers == 1:
        return FREE
    copies = 2 * size / cluster.effects.copy_bandwidth if is_merged else 0.0
    if request is AllReduce:
        latency, per_byte, _ = cluster.all_reduce_seconds
        return RequestCost(latency, per_byte * size, copies)
    if request is AllGather:
        return _gathered(cluster, size)._replace(copies=copies)
    if request is Messages:
        slowest = cluster.unlike.slowest_link(cluster.nodes_in_use)
        link = _link(cluster, None, slowest, leaves=cluster.nodes_in_use > 1)
        return RequestCost(link.latency, size * link.seconds_per_byte)
    raise InputError(
        f"the cost of {request.__name__} on cluster {cluster.name!r} is not known; ask for one of "
        f"AllReduce, AllGather and Messages"
    )


def requests_cost(
    cluster: Cluster, requests: Iterable[Traffic], is_merged: bool = False
) -> RequestCost:
    """Return the cost of requests one after the other."""
    costs = [request_cost(cluster, one.request, one.bytes, is_merged) for one in requests]
    return RequestCost(*(sum(parts) for parts in zip(*costs, strict=True))) if costs else FREE


def _gathered(cluster: Cluster, size: float) -> RequestCost:
    latency, per_byte = cluster.gather_seconds()
    return RequestCost(latency, per_byte * size)


def push_pull_seconds(
    workload: Workload, cluster: Cluster, size: int, overlap: bool = False
) -> float:
    """Return the seconds of a push and a pull of ``size`` bytes by all nodes at once, as in BSP-PS.

    Tensors share the bytes in the proportions of the workload, so that servers get their keys. With
    ``overlap`` they are pushed during the backward pass, as in WFBP-PS, and the seconds are those
    that it does not hide.
    """
    return _push_pull_seconds(
        Identity((workload,)), cluster, size, "WFBP-PS" if overlap else "BSP-PS"
    )


@lru_cache(maxsize=4096)
def _push_pull_seconds(of: Identity, cluster: Cluster, size: int, method: str) -> float:
    workload: Workload = of.parts[0]
    if cluster.workers == 1:
        return 0.0
    share = size / workload.gradient_bytes
    gradients = tuple(
        replace(one, elements=max(1, round(one.bytes * share)), bytes_per_element=1, shape=None)
        for one in workload.gradients
    )
    resized = replace(workload, gradients=gradients)
    plan = plan_on(cluster, resized, METHODS[method])
    program = lower(resized, cluster, plan)
    if cluster.is_alike:
        return play_fast(program).exposed_seconds
    return play_unlike_fast(with_team(program, team_of(cluster))).exposed_seconds


def require_one_switch(cluster: Cluster, what: str) -> None:
    """Raise InputError on a topology, where the cost of ``what`` is not known."""
    require(
        not (cluster.topology or cluster.changes),
        f"the cost of {what} is not known on {cluster.label!r}; leave the topology and its changes "
        f"out, or choose a method with all-reduces",
    )


def message_link(cluster: Cluster, sender: int, receiver: int) -> Link:
    """Return what carries messages from one worker to another, by their ranks.

    The workers of a node share its link to the network, and the slower of two nodes' links decides;
    inside the node each has its own link. Raises InputError on a topology, where it is not known.
    """
    require_one_switch(cluster, "messages from worker to worker")
    nodes = [rank // cluster.workers_per_node for rank in (sender, receiver)]
    if nodes[0] == nodes[1]:
        return _link(cluster, ("worker", sender), 1.0, leaves=False)
    slower = max(map(cluster.unlike.link_factor, nodes))
    return _link(cluster, ("node", nodes[0]), slower, leaves=True)


def _link(cluster: Cluster, name: Hashable, factor: float, *, leaves: bool) -> Link:
    effects = cluster.effects
    if leaves:
        hop, bandwidth = effects.between_latency, effects.between_bandwidth / factor
    else:
        hop, bandwidth = effects.inside_latency, effects.inside_bandwidth
    return Link(name, effects.operation_latency + hop, 1 / bandwidth)
