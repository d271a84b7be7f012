"""Bytes that a lossy method sends: by closed form, and compared with the dense ring.

A dense iteration sends 2 (n-1) / n M bytes from every worker in a ring of n. A compressor's
all-reduce is such a ring of fewer bytes; its all-gather sends every payload to all others, so that
it grows with n: top-k saves D / (n k) and stops saving at a density of 1 / n.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ddlnb.clusters.all_reduce import ring
from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.base import Compressor, Traffic
from ddlnb.errors import InputError, require_whole
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.requests import AllGather, AllReduce, Messages
from ddlnb.training.executors.clock import Link
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


Shape = tuple[int, ...]


def bytes_sent(traffic: Traffic, workers: int) -> float:
    """Bytes that one worker sends for one request of a compressor; of Messages the busiest one.

    >>> bytes_sent(Traffic(AllReduce, 1000), 4), bytes_sent(Traffic(AllGather, 1000), 4)
    (1500.0, 3000)
    """
    if traffic.request is AllReduce:
        return ring_bytes_sent(traffic.bytes, workers)
    if traffic.request is AllGather:
        return (workers - 1) * traffic.bytes
    if traffic.request is Messages:
        return traffic.bytes
    raise InputError(f"a compressor cannot ask for {traffic.request.__name__}")


def link_bytes(traffic: Traffic, workers: int) -> float:
    """Bytes that pass the link of one worker for one request, both ways; of Messages a busiest one.

    What is reduced or gathered is received as often as sent. A message is sent by one worker and
    received by another.

    >>> link_bytes(Traffic(AllReduce, 1000), 4), link_bytes(Traffic(Messages, 1000), 4)
    (3000.0, 1000)
    """
    both = 1 if traffic.request is Messages else 2
    return both * bytes_sent(traffic, workers)


def tensor_shapes(workload: Workload) -> dict[str, Shape]:
    """The shape of every gradient, by name: those of the built-in model that the workload is of.

    In the order of the model's parameters, as workers have them. A workload that is of no built-in
    model keeps neither order nor shapes: its tensors count as vectors, in the order in which they
    become ready. Raises InputError when a built-in model of that name has other tensors.
    """
    sizes = {gradient.name: gradient.elements for gradient in workload.gradients}
    if not is_built_in(workload):
        return {name: (size,) for name, size in sizes.items()}
    shapes = _shapes_of_model(workload.model)
    if {name: math.prod(shape) for name, shape in shapes.items()} != sizes:
        raise InputError(
            f"workload {workload.model!r} has other tensors than the model of that name; "
            f"profile it again, or give it a name of its own"
        )
    return shapes


def is_built_in(workload: Workload) -> bool:
    """Whether it is of a model whose parameters are known here, in order and with their shapes."""
    from ddlnb.training.tasks.catalogue import LEARNING_TASKS
    from ddlnb.workloads.tasks import TASKS

    return workload.model in TASKS or workload.model in LEARNING_TASKS


def pieces(workload: Workload, whole_model: bool) -> list[Shape]:
    """What is compressed on its own: every tensor, or all of them as one vector."""
    return [(workload.parameters,)] if whole_model else list(tensor_shapes(workload).values())


def requests(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> list[Traffic]:
    """All requests that averaging tensors of these shapes makes, in order."""
    return [
        request
        for one, shape in compressed_pieces(compressor, shapes)
        for request in one.traffic(shape, workers)
    ]


def compressed_pieces(
    compressor: Compressor, shapes: Iterable[Shape]
) -> list[tuple[Compressor, Shape]]:
    """Every piece of a model, with the compressor that it gets."""
    shapes = list(shapes)
    return list(zip(compressor.for_pieces(len(shapes)), shapes, strict=True))


def compressed_bytes(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> float:
    """Bytes that one worker sends to average tensors of these shapes once.

    Messages count by the busiest worker of each request, one after the other, as they take time:
    along a tree that is not always the same one, and no single worker sends them all.
    """
    require_whole(workers=workers)
    return sum(bytes_sent(one, workers) for one in requests(compressor, shapes, workers))


def compression_ratio(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> float:
    """Bytes of the dense ring, in float32, over those of the compressor.

    >>> from ddlnb.compression.top_k import TopK
    >>> compression_ratio(TopK(0.001), [(1_000_000,)], workers=32)
    31.25
    """
    shapes = list(shapes)
    dense = ring_bytes_sent(4 * sum(math.prod(shape) for shape in shapes), workers)
    sent = compressed_bytes(compressor, shapes, workers)
    return dense / sent if sent else math.inf


def traffic_table(
    workload: Workload,
    compressors: Mapping[str, Compressor],
    workers: Iterable[int],
    whole_model: bool = False,
) -> pd.DataFrame:
    """One row per compressor and number of workers: bytes per worker and iteration, and the ratio.

    Columns: model, compressor, workers, bytes, ratio, source. The dense ring is there as "none".
    """
    import pandas as pd

    shapes = pieces(workload, whole_model)
    rows = []
    for count in workers:
        dense = ring_bytes_sent(4 * workload.parameters, count)
        rows.append(("none", count, dense, 1.0))
        for name, compressor in compressors.items():
            sent = compressed_bytes(compressor, shapes, count)
            rows.append((name, count, sent, dense / sent if sent else math.inf))
    frame = pd.DataFrame(rows, columns=["compressor", "workers", "bytes", "ratio"])
    return frame.assign(model=workload.model, source="closed form")


def _shapes_of_model(name: str) -> dict[str, Shape]:
    import torch

    from ddlnb.training.tasks.catalogue import get_learning_task
    from ddlnb.workloads.tasks import TASKS

    with torch.device("meta"):
        module = TASKS[name].build() if name in TASKS else get_learning_task(name).build(0)
    return {key: tuple(p.shape) for key, p in module.named_parameters() if p.requires_grad}


# Seconds of the requests of `ddlnb.plans.requests` on a cluster: what compressed messages cost.
# An all-reduce costs what the cluster says. Payloads are gathered along a ring, whatever the
# all-reduce is: n - 1 hops, (n-1) B bytes through every link (Thakur et al. 2005). A message is
# an operation of one hop. Those of compressors go to one worker at a time, as along a tree,
# which has one pair per node at most, and are all priced as if they left the node. Where
# workers send several at once, as in gossip, they share the links of `message_link`.
class Cost(NamedTuple):
    """Seconds before bytes flow, and those in which they do, on links that nothing else slows."""

    latency: float
    work: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.latency + self.work


def request_cost(cluster: Cluster, request: type, size: float) -> Cost:
    """The cost of a request of so many bytes, counted as `ddlnb.compression.base.Traffic` does.

    Raises InputError for a request that is none of AllReduce, AllGather and Messages.
    """
    if cluster.workers == 1:
        return Cost(0.0, 0.0)
    if request is AllReduce:
        latency, per_byte, _ = cluster.all_reduce_seconds
        return Cost(latency, per_byte * size)
    if request is AllGather:
        return _gathered(cluster, size)
    if request is Messages:
        return _sent(cluster, size)
    raise InputError(f"no cost is known for {request.__name__} on cluster {cluster.name!r}")


def requests_cost(cluster: Cluster, requests: Iterable[Traffic]) -> Cost:
    """The cost of requests one after the other."""
    costs = [request_cost(cluster, one.request, one.bytes) for one in requests]
    return Cost(sum(cost.latency for cost in costs), sum(cost.work for cost in costs))


def _gathered(cluster: Cluster, size: float) -> Cost:
    effects, workers = cluster.effects, cluster.workers
    links = ring(cluster.nodes_in_use, cluster.workers_per_node)  # twice what a gather takes
    hops = effects.inside_latency * links.inside_hops + effects.between_latency * links.between_hops
    inside = links.inside_bytes / effects.inside_bandwidth
    between = links.between_bytes / effects.between_bandwidth
    software = effects.operation_latency + effects.rank_latency * workers
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
    return Cost(link.latency, size * link.seconds_per_byte)


def _link(cluster: Cluster, name: Hashable, *, leaves: bool) -> Link:
    effects = cluster.effects
    if leaves:
        hop, bandwidth = effects.between_latency, effects.between_bandwidth
    else:
        hop, bandwidth = effects.inside_latency, effects.inside_bandwidth
    return Link(name, effects.operation_latency + hop, 1 / bandwidth)
