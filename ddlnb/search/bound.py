"""A lower bound of the seconds of an iteration, whatever the plan, and the merging that comes near.

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

The best merging of neighbours under overlap is found by dynamic programming. A message may start
when its last gradient is ready and the one before it has arrived. Whoever is finished earlier with
the first gradients is finished no later with all, so it is enough to know, for every number of
first gradients, how early they can have arrived (MG-WFBP's problem: Shi, Chu and Li, INFOCOM 2019,
solved here for any seconds of messages, and with the rates that computation leaves the network).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.compiling import compiled
from ddlnb.search.space import Cost, all_reduce_costs
from ddlnb.workloads.workload import Workload

Numbers = NDArray[np.float64]
MOST_GRADIENTS = 1500  # a table of so many squared: 54 MB


def best_merging(workload: Workload, cluster: Cluster, costs: list[Cost]) -> tuple[int, ...] | None:
    """Return the ends of the groups that have all arrived first; each takes its quickest cost.

    None for more than MOST_GRADIENTS gradients.
    """
    sizes = np.array([gradient.bytes for gradient in workload.gradients], dtype=np.int64)
    if len(sizes) > MOST_GRADIENTS:
        return None
    first, last = groups(len(sizes))
    bytes_of = in_groups(sizes)
    merged = (last > first) * (2 * bytes_of / cluster.effects.copy_bandwidth)
    choices = [cost.parts(bytes_of) for cost in costs]
    latencies, works, shares = map(np.stack, zip(*choices, strict=True))
    quick = np.argmin(latencies + works, axis=0), np.arange(len(bytes_of))
    latency = cluster.effects.occupied_share * latencies[quick] + merged  # the rest all have alike
    ready = ready_seconds(workload, cluster)
    return earliest_ends(ready, latency, works[quick], shares[quick], cluster.effects.latency_share)


def groups(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last gradient of every group of neighbours, by the first."""
    first, last = np.triu_indices(count)
    return first, last


def in_groups(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of the gradients' values in every group, in the order of `groups`."""
    total = np.concatenate([[0], values.cumsum()])
    first, last = groups(len(values))
    found: NDArray[Any] = total[last + 1] - total[first]
    return found


def earliest_ends(
    ready: Numbers, latency: Numbers, work: Numbers, share: Numbers, latency_share: float
) -> tuple[int, ...]:
    """Return the ends of the groups that have all arrived first.

    ``ready`` has a number for every gradient; latency, work and its share one for every group.
    """
    count = len(ready)
    start = np.concatenate([[0], np.cumsum(np.arange(count, 0, -1))])[:-1] - np.arange(count)
    return tuple(_ends(ready, start, latency, work, share, latency_share).tolist())


def ready_seconds(workload: Workload, cluster: Cluster) -> Numbers:
    """Return when each gradient is ready after the start of backward, if nobody disturbs it."""
    factors = cluster.effects.terms("task factor", cluster.workers)
    return np.asarray(np.array(workload.ready_seconds) * math.prod(factors))


@compiled()
def _ends(
    ready: Numbers,
    start: NDArray[np.int64],
    latency: Numbers,
    work: Numbers,
    share: Numbers,
    latency_share: float,
) -> Any:
    """Groups i..j have their values at start[i] + j."""
    count = len(ready)
    quiet = ready[-1]
    arrived = np.full(count + 1, np.inf)
    arrived[0] = 0.0
    before = np.zeros(count + 1, np.int64)
    for j in range(count):
        for i in range(j + 1):
            at = start[i] + j
            now = max(ready[j], arrived[i])
            left, todo = latency[at], work[at]
            if now < quiet:
                part = min(quiet - now, left / latency_share)
                left -= part * latency_share
                now += part
                part = min(quiet - now, todo / share[at])
                todo -= part * share[at]
                now += part
            now += left + todo
            if now < arrived[j + 1]:
                arrived[j + 1], before[j + 1] = now, i
    ends = []
    at = count
    while at > 0:
        ends.append(at)
        at = before[at]
    return np.array(ends[::-1])


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
