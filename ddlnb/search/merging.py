"""The best merging of neighbours by dynamic programming, under overlap with the backward pass.

A message may start when its last gradient is ready and the one before it has arrived. Whoever is
finished earlier with the first gradients is finished no later with all, so it is enough to know,
for every number of first gradients, how early they can have arrived (MG-WFBP's problem: Shi, Chu
and Li, INFOCOM 2019, solved here for any seconds of messages, and with the rates that computation
leaves the network).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.search.space import Cost
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


@njit(cache=True)
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
