"""What a compressor asks for: the tensors that it sees, the bytes that are sent, and their seconds.

A dense iteration sends 2 (n-1) / n M bytes from every worker in a ring of n. A compressor's
all-reduce is such a ring of fewer bytes; its all-gather sends every payload to all others, so that
it grows with n: top-k saves a factor of D / (n k) for k of D entries, and nothing from a density of
1 / n on.

On a cluster an all-reduce costs what the cluster says. Payloads are gathered along a ring, whatever
the all-reduce is: n - 1 hops, with (n-1) B bytes through every link (Thakur et al. 2005). A message
is an operation of one hop. Messages of compressors go to one worker at a time, as along a tree,
which has at most one pair per node, and are all priced as if they left the node. Where workers send
several at once, as in gossip, they share the links of `message_link`. A push and a pull cost what
BSP-PS makes of them. What a worker spends on compressing comes from a profile of compressors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ddlnb.clusters.cluster import Cluster
from ddlnb.compression.base import Compressor, Traffic
from ddlnb.compression.profile import CompressionProfile
from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.methods import METHODS
from ddlnb.plans.requests import AllGather, AllReduce, Messages
from ddlnb.registry import CACHES
from ddlnb.simulator.events import play
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import plan_on
from ddlnb.simulator.tasks import Identity
from ddlnb.training.executors.clock import Link
from ddlnb.workloads.memory import kept_model
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    from ddlnb.clusters.fabric import Numbers


Shape = tuple[int, ...]
CompressedPiece = tuple[Compressor, Shape]


def tensor_shapes(workload: Workload) -> dict[str, Shape]:
    """Return the shape of every gradient by name, in the order of the model's parameters.

    Shapes and order are those of the built-in model that the workload describes. Of any other model
    the shapes are those that its profile kept, vectors where it kept none, in the order in which
    gradients become ready. Raises InputError when a built-in model of that name has other tensors.
    """
    if not is_built_in(workload):
        return {one.name: one.shape or (one.elements,) for one in workload.gradients}
    sizes = {gradient.name: gradient.elements for gradient in workload.gradients}
    shapes = _shapes_of_model(workload.model)
    require(
        {name: math.prod(shape) for name, shape in shapes.items()} == sizes,
        f"workload {workload.model!r} has other tensors than the model of that name; "
        f"profile it again, or give it a name of its own",
    )
    return dict(shapes)


def require_shapes(workload: Workload, compressor: Compressor) -> None:
    """Raise InputError if the compressor needs shapes of tensors, and nobody kept them.

    Profiles of earlier editions have none.
    """
    require(
        not compressor.needs_shapes
        or is_built_in(workload)
        or all(one.shape is not None for one in workload.gradients),
        f"{compressor} sends a matrix as two thin ones, and the profile of {workload.model!r} does "
        f"not have the shapes of its tensors; profile it again (ddlnb.profile keeps them), or "
        f"choose another compressor",
    )


def is_built_in(workload: Workload) -> bool:
    """Return whether the workload is of a built-in model, whose parameters are known."""
    from ddlnb.training.tasks.catalogue import LEARNING_TASKS
    from ddlnb.workloads.models import TASKS

    return workload.model in TASKS or workload.model in LEARNING_TASKS


def pieces(workload: Workload, whole_model: bool) -> list[Shape]:
    """Return the shapes that are compressed on their own: all tensors, or one vector of them."""
    return [(workload.parameters,)] if whole_model else list(tensor_shapes(workload).values())


def compressed_pieces(compressor: Compressor, shapes: Iterable[Shape]) -> list[CompressedPiece]:
    """Pair every shape with the compressor that it gets: layer-wise choices give each its own."""
    shapes = list(shapes)
    return list(zip(compressor.of_pieces(len(shapes)), shapes, strict=True))


@cache  # a large model takes a quarter of a second to build, even without values
def _shapes_of_model(name: str) -> dict[str, Shape]:
    if kept := kept_model(name):
        return kept.shapes
    import torch

    from ddlnb.training.tasks.catalogue import get_learning_task
    from ddlnb.workloads.models import TASKS

    with torch.device("meta"):
        module = TASKS[name].build() if name in TASKS else get_learning_task(name).build(0)
    return {key: tuple(p.shape) for key, p in module.named_parameters() if p.requires_grad}


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
    latency, work = request_seconds(cluster, request, np.array([size]))
    is_copied = is_merged and request is not Messages
    copies = 2 * size / cluster.effects.copy_bandwidth if is_copied else 0.0
    return RequestCost(float(np.sum(latency)), float(work[0]), copies)


def request_seconds(
    cluster: Cluster, request: type, sizes: Numbers
) -> tuple[float | Numbers, Numbers]:
    """Return seconds of latency and of work of requests of these bytes, as `request_cost`."""
    if request is AllReduce:
        latency, work, _ = cluster.all_reduce_work(sizes)
        return latency, work
    if request is AllGather:
        return cluster.gather_work(sizes)
    if request is Messages:
        slowest = cluster.heterogeneity.slowest_link(cluster.nodes_in_use)
        link = _link(cluster, None, slowest, leaves=cluster.nodes_in_use > 1)
        return link.latency, link.seconds_per_byte * sizes
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
    return play(lower(resized, cluster, plan)).exposed_seconds


CACHES.append(_push_pull_seconds.cache_clear)


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
    slower = max(map(cluster.heterogeneity.link_factor, nodes))
    return _link(cluster, ("node", nodes[0]), slower, leaves=True)


def _link(cluster: Cluster, name: Hashable, factor: float, *, leaves: bool) -> Link:
    effects = cluster.effects
    if leaves:
        rate = min(effects.between_bandwidth, effects.stream_bandwidth)
        hop, bandwidth = effects.between_latency, rate / factor
    else:
        hop, bandwidth = effects.inside_latency, effects.inside_bandwidth
    return Link(name, effects.operation_latency + hop, 1 / bandwidth)


MANY = 8  # workers: enough for a compressor to make the requests that it makes among many


def bytes_sent(traffic: Traffic, workers: int) -> float:
    """Return the bytes that one worker sends for a request; for Messages, the busiest worker.

    >>> bytes_sent(Traffic(AllReduce, 1000), 4), bytes_sent(Traffic(AllGather, 1000), 4)
    (1500.0, 3000)
    """
    if traffic.request is AllReduce:
        return ring_bytes_sent(traffic.bytes, workers)
    if traffic.request is AllGather:
        return (workers - 1) * traffic.bytes
    if traffic.request is Messages:
        return traffic.bytes
    raise InputError(
        f"the bytes of {traffic.request.__name__} are not known; a compressor may ask for "
        f"AllReduce, AllGather and Messages"
    )


def link_bytes(traffic: Traffic, workers: int) -> float:
    """Return the bytes that a request moves over the link of one worker, both ways.

    What is reduced or gathered is received as often as it is sent. A message is sent by one worker
    and received by another, so that the busiest link carries it once.

    >>> link_bytes(Traffic(AllReduce, 1000), 4), link_bytes(Traffic(Messages, 1000), 4)
    (3000.0, 1000)
    """
    both = 1 if traffic.request is Messages else 2
    return both * bytes_sent(traffic, workers)


def requests(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> list[Traffic]:
    """Return all requests that averaging tensors of these shapes makes, in order."""
    return [
        request
        for one, shape in compressed_pieces(compressor, shapes)
        for request in one.declared_traffic(shape, workers)
    ]


def fused(lists: Sequence[Sequence[Traffic]]) -> list[Traffic]:
    """Return the requests of tensors that travel together, equal ones joined as tensor fusion does.

    >>> [one.bytes for one in fused([[Traffic(AllGather, 8)], [Traffic(AllGather, 4)]])]
    [12]
    """
    found: dict[tuple[int, str], Traffic] = {}
    for requests in lists:
        for number, (request, size) in enumerate(requests):
            key = number, request.__name__
            before = found[key].bytes if key in found else 0
            found[key] = Traffic(request, before + size)
    return [found[key] for key in sorted(found)]


def gathers(group: Sequence[CompressedPiece]) -> bool:
    """Return whether payloads of these pieces go to all workers, by an all-gather."""
    return any(
        request.request is AllGather
        for compressor, shape in group
        for request in compressor.declared_traffic(shape, MANY)
    )


def compressed_bytes(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> float:
    """Return the bytes that one worker sends to average tensors of these shapes once.

    Messages count by the busiest worker of each request, one after the other, as they take time:
    along a tree that is not always the same worker, and no single one sends them all.
    """
    require_whole(workers=workers)
    return sum(bytes_sent(one, workers) for one in requests(compressor, shapes, workers))


def compression_ratio(compressor: Compressor, shapes: Iterable[Shape], workers: int) -> float:
    """Return the bytes of the dense ring, in float32, over those of the compressor.

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
) -> pd.DataFrame:
    """Return one row per compressor and number of workers: bytes per worker and iteration.

    Columns: model, compressor, workers, bytes, ratio, source. ``ratio`` is the bytes of the dense
    ring, which is there as "none", over those of the row.
    """
    for compressor in compressors.values():
        require_shapes(workload, compressor)
    shapes = pieces(workload, whole_model=False)
    rows = []
    for count in workers:
        rows.append(("none", count, ring_bytes_sent(4 * workload.parameters, count), 1.0))
        for name, compressor in compressors.items():
            sent = compressed_bytes(compressor, shapes, count)
            rows.append((name, count, sent, compression_ratio(compressor, shapes, count)))
    frame = pd.DataFrame(rows, columns=["compressor", "workers", "bytes", "ratio"])
    return frame.assign(model=workload.model, source="closed form")


def coding_seconds(
    group: Sequence[CompressedPiece],
    profile: CompressionProfile,
    workers: int,
    feedback: bool = False,
) -> tuple[float, float]:
    """Return the seconds of one worker before and after the requests for these pieces.

    ``workers`` is the number of payloads that it decodes. Raises InputError for a compressor that
    the profile lacks.
    """
    before, after = 0.0, 0.0
    for (compressor, shape), count in Counter(group).items():  # layers repeat
        if not compressor.codes(shape):
            continue
        seconds, size = profile.of(compressor), math.prod(shape)
        own = profile.feedback.seconds(size) if feedback else 0.0
        before += count * (seconds.before(size) + own)
        after += count * seconds.after(size, workers)
    return before, after


def coding_source(group: Sequence[CompressedPiece], profile: CompressionProfile) -> str:
    """Return where the seconds of these pieces come from, and how far they are extrapolated."""
    return profile.source_for(max((math.prod(shape) for _, shape in group), default=0))
