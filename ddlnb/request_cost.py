"""Seconds of the requests of `ddlnb.plans.requests` on a cluster: what compressed messages cost.

An all-reduce costs what the cluster says. Payloads are gathered along a ring, whatever the
all-reduce is: n - 1 hops, (n-1) B bytes through every link (Thakur et al. 2005). A message is an
operation of one hop. Those of compressors go to one worker at a time, as along a tree, which has
one pair per node at most, and are all priced as if they left the node. Where workers send several
at once, as in gossip, they share the links of `message_link`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from ddlnb.clusters.all_reduce import ring
from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.base import Traffic
from ddlnb.errors import InputError
from ddlnb.plans.requests import AllGather, AllReduce, Messages
from ddlnb.training.links import Link


class Cost(NamedTuple):
    """Seconds before bytes flow, and those in which they do, on links that nothing else slows."""

    startup: float
    work: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.startup + self.work


def request_cost(cluster: Cluster, request: type, size: float) -> Cost:
    """The cost of a request of so many bytes, counted as `ddlnb.compression.base.Traffic` does.

    Raises InputError for a request that is none of AllReduce, AllGather and Messages.
    """
    if cluster.workers == 1:
        return Cost(0.0, 0.0)
    if request is AllReduce:
        startup, per_byte, _ = cluster.all_reduce_seconds
        return Cost(startup, per_byte * size)
    if request is AllGather:
        return _gathered(cluster, size)
    if request is Messages:
        return _sent(cluster, size)
    raise InputError(f"no cost is known for {request.__name__} on cluster {cluster.name!r}")


def requests_cost(cluster: Cluster, requests: Iterable[Traffic]) -> Cost:
    """The cost of requests one after the other."""
    costs = [request_cost(cluster, one.request, one.bytes) for one in requests]
    return Cost(sum(cost.startup for cost in costs), sum(cost.work for cost in costs))


def _gathered(cluster: Cluster, size: float) -> Cost:
    effects, workers = cluster.effects, cluster.workers
    links = ring(cluster.nodes_in_use, cluster.workers_per_node)  # twice what a gather takes
    hops = effects.inside_startup * links.inside_hops + effects.between_startup * links.between_hops
    inside = links.inside_bytes / effects.inside_bandwidth
    between = links.between_bytes / effects.between_bandwidth
    software = effects.operation_startup + effects.rank_startup * workers
    return Cost(software + hops / 2, max(inside, between) / 2 * workers * size)


def message_link(cluster: Cluster, sender: int, receiver: int) -> Link:
    """What carries messages from one worker to another, by their ranks.

    The workers of a node share its link to the network; inside it everyone has a link of its own.
    """
    per_node = cluster.workers_per_node
    node = sender // per_node
    if receiver // per_node == node:
        return _link(cluster, ("worker", sender), leaves=False)
    return _link(cluster, ("node", node), leaves=True)


def _sent(cluster: Cluster, size: float) -> Cost:
    link = _link(cluster, None, leaves=cluster.nodes_in_use > 1)
    return Cost(link.startup, size * link.seconds_per_byte)


def _link(cluster: Cluster, name: Hashable, *, leaves: bool) -> Link:
    effects = cluster.effects
    if leaves:
        hop, bandwidth = effects.between_startup, effects.between_bandwidth
    else:
        hop, bandwidth = effects.inside_startup, effects.inside_bandwidth
    return Link(name, effects.operation_startup + hop, 1 / bandwidth)
