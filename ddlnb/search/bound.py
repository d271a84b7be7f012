"""A lower bound of the seconds of an iteration, whatever the plan.

In every iteration the worker computes, and the network carries all gradients, one message after the
other. It cannot carry gradients before backward has made them, nor after the forward pass of their
layer has begun. So for the gradients from j on, and of them those that the layers up to l need, an
iteration lasts at least as long as

    backward until j is ready + one latency + their bytes over the bandwidth + forward from l on

(head, work and tail of one machine; Carlier 1982). Where computation leaves the network only a
share of its rate, the computation that lies between head and tail makes the work longer. The bound
is the largest of these and of the computation alone.

Of gradients that are compressed, a message leaves after one of them at least has been compressed,
and the forward pass goes on after one at least has been decompressed; all of that is computation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.search.merging import ready_seconds
from ddlnb.search.space import Cost, all_reduce_costs
from ddlnb.workloads.workload import Workload

Numbers = NDArray[np.float64]
BETWEEN_PROBES = 0.999  # a curve may bend between the sizes that are looked at
MOST_PAIRS = 4_000_000  # of first gradients and last layers


@dataclass(frozen=True)
class Bound:
    """The least seconds of an iteration, and of what: each term is a bound by itself.

    ``compute_seconds`` are those of one worker, ``bytes_seconds`` those of all bytes over the
    bandwidth with what one latency occupies, ``path_seconds`` the largest sum of head, work and
    tail.
    """

    compute_seconds: float
    bytes_seconds: float
    path_seconds: float

    @property
    def seconds(self) -> float:
        """The largest term."""
        return max(self.compute_seconds, self.bytes_seconds, self.path_seconds)

    @property
    def limit(self) -> str:
        """What the largest term is of."""
        terms = {
            "computation": self.compute_seconds,
            "bytes over bandwidth": self.bytes_seconds,
            "first gradient, bytes, last layers": self.path_seconds,
        }
        return max(terms, key=lambda name: terms[name])


@dataclass(frozen=True)
class LeastTime:
    """The least that gradients take: latency, seconds of each, the share of both beside compute."""

    latency: float
    work: Numbers
    share: float

    def or_else(self, other: LeastTime) -> LeastTime:
        """Return the least of messages of which each takes one or the other."""
        return LeastTime(
            min(self.latency, other.latency),
            np.minimum(self.work, other.work),
            max(self.share, other.share),
        )


@dataclass(frozen=True)
class Coding:
    """Seconds of a worker for every gradient, before it is sent and after it has come back."""

    encode: Numbers
    decode: Numbers


def lower_bound(
    workload: Workload, cluster: Cluster, names: tuple[str, ...] = (), *, servers: bool = False
) -> Bound:
    """Return the bound of all plans on this cluster.

    Messages may take the cluster's own all-reduce, those of these names, or go in halves; with
    ``servers`` they may also go through parameter servers, one for every node in use.
    """
    ways = [least_of_all_reduces(workload, cluster, names)]
    if servers:
        ways.append(least_of_servers(workload, cluster))
    bounds = [bound_of(workload, cluster, least) for least in ways]
    return min(bounds, key=lambda bound: bound.seconds)


def bound_of(
    workload: Workload, cluster: Cluster, least: LeastTime, coding: Coding | None = None
) -> Bound:
    """Return the bound of plans whose gradients take at least this, with the coding of all."""
    ready, forward, of_layer = _computation(workload, cluster)
    count = len(workload.gradients)
    coding = coding or Coding(np.zeros(count), np.zeros(count))
    compute = float(ready[-1] + forward.sum() + coding.encode.sum() + coding.decode.sum())
    work = cluster.effects.occupied_share * least.latency + least.work.sum()
    share = least.share
    tail = np.cumsum(forward[::-1])[::-1]  # from each layer on
    # Work from gradient j on (rows) that layers up to l need (columns), on a grid of both.
    rows = _thinned(count, len(forward))
    columns = np.unique(of_layer)
    needed = np.zeros((count, len(forward)))
    needed[np.arange(count), of_layer] = least.work
    from_on = np.cumsum(needed[::-1], axis=0)[::-1][rows]
    carried = np.cumsum(from_on, axis=1)[:, columns]
    # Some gradient from j on is compressed before, one of the layers up to l decompressed after.
    encoded = np.minimum.accumulate(coding.encode[::-1])[::-1]
    decoded = np.full(len(forward), np.inf)
    np.minimum.at(decoded, of_layer, coding.decode)
    head = (ready + encoded)[rows][:, None]
    behind = (tail + np.minimum.accumulate(decoded))[columns][None, :]
    between = np.maximum(compute - head - behind, 0.0)
    seconds = least.latency + carried
    paths = head + seconds + (1 - share) * between + behind
    paths = np.where((carried > 0) & (seconds > 0), paths, 0.0)
    # With computation between of c seconds the network does at most share * c beside it; where that
    # is more than there is to do, it does not make the iteration longer.
    paths = np.where(seconds > share * between, paths, 0.0)
    return Bound(compute, float(work), float(paths.max()))


def _thinned(gradients: int, layers: int) -> NDArray[np.int64]:
    """Return which first gradients are looked at: all, or so many that the table stays small."""
    most = max(1, min(gradients, MOST_PAIRS // layers))
    return np.unique(np.linspace(0, gradients - 1, most).astype(np.int64))


def _computation(
    workload: Workload, cluster: Cluster
) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
    """Return when gradients are ready, seconds of update and forward by layer, and their layers.

    Those of a plan of one message; where workers differ, of the fastest.
    """
    effects = cluster.effects
    factors = dict(cluster.heterogeneity.compute)
    quickest = min(factors.get(rank, 1.0) for rank in range(cluster.workers))
    factor = math.prod(effects.terms("task factor", cluster.workers)) * quickest
    ready = ready_seconds(workload, cluster) * quickest
    ready[-1] += min(1.0, quickest) * effects.message_compute  # a message is made ready by then
    forward = np.array([layer.forward_seconds for layer in workload.layers]) * factor
    of_layer = np.array(
        [workload.layer_position[gradient.layer] for gradient in workload.gradients]
    )
    update = effects.update_latency + _sizes(workload) / effects.update_bandwidth
    np.add.at(forward, of_layer, update * min(1.0, quickest))
    return ready, forward, of_layer


def least_of_all_reduces(workload: Workload, cluster: Cluster, names: tuple[str, ...]) -> LeastTime:
    """Return the least of all-reduces: the cluster's own, those of these names, or halves."""
    if cluster.workers == 1:
        return LeastTime(0.0, 0.0 * _sizes(workload), 1.0)
    # From one element to all bytes: of a straight line every one says the same.
    least = workload.gradients[0].bytes_per_element
    sizes = np.geomspace(least, max(workload.gradient_bytes, least + 1), 256)
    # Latencies fall towards the largest message of each algorithm.
    sizes = np.union1d(sizes, np.clip(cluster.tree_threshold, *sizes[[0, -1]]))
    found = [cost.parts(sizes) for cost in all_reduce_costs(cluster, ["", *names])]
    first, second = (Cost(cluster, half).parts(sizes) for half in ("reduce-scatter", "all-gather"))
    found.append((first[0] + second[0], first[1] + second[1], np.maximum(first[2], second[2])))
    latencies, works, shares = map(np.stack, zip(*found, strict=True))
    per_byte = float((works / sizes).min())  # a curve may bend
    if not cluster.has_closed_form:
        per_byte *= BETWEEN_PROBES
    share = min(1.0, max(float(shares.max()), cluster.effects.latency_share))
    return LeastTime(float(latencies.min()), per_byte * _sizes(workload), share)


def _sizes(workload: Workload) -> Numbers:
    return np.array([gradient.bytes for gradient in workload.gradients], float)


def least_of_servers(workload: Workload, cluster: Cluster) -> LeastTime:
    """Return the least of a push: over the busier of a node's link, its GPUs and the servers."""
    effects, nodes, per_node = cluster.effects, cluster.nodes_in_use, cluster.workers_per_node
    inside = (per_node - 1) / per_node / (effects.inside_bandwidth * effects.closed_ring_share)
    per_byte, share = 2 * inside, effects.inside_share
    if nodes > 1:
        k = cluster.default_servers
        beside = cluster.server_place == "workers' nodes"
        quickest = min([1.0, *dict(cluster.heterogeneity.link).values()])
        link = (1 - 1 / k if beside else 1.0) / effects.between_bandwidth * quickest
        if cluster.topology or cluster.changes:
            link = 0.0  # some links may be wider than the effects say
        summing = nodes / k / effects.sum_bandwidth
        per_byte = max(per_byte, link, summing)
        share = 1.0
    share = min(1.0, max(share, effects.latency_share))
    return LeastTime(0.0, per_byte * _sizes(workload), share)
