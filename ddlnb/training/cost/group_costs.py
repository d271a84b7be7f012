"""What every group of neighbouring gradients costs when it is compressed, all groups at once.

Requests of tensors that travel together are joined, so that a group has the latency of each of its
requests once, and the bytes of all its tensors; both are sums over neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.search.merging import groups, in_groups
from ddlnb.training.cost.requests import request_cost
from ddlnb.training.cost.tensors import CompressedPiece

Numbers = NDArray[np.float64]


class GroupCosts(NamedTuple):
    """Seconds of every group, in the order of `ddlnb.search.merging.groups`.

    ``latency`` holds the copies into a message of several tensors and out of it.
    """

    latency: Numbers
    work: Numbers


def group_costs(cluster: Cluster, pieces: Sequence[CompressedPiece]) -> GroupCosts:
    """Return the costs of the groups of these tensors, as of `requests_cost` for each."""
    first, last = groups(len(pieces))
    bytes_of: dict[tuple[int, type], Numbers] = {}
    asks: dict[tuple[int, type], NDArray[np.int64]] = {}
    for position, (compressor, shape) in enumerate(pieces):
        for key in enumerate(compressor.traffic(shape, cluster.workers)):
            number, (request, size) = key
            at = number, request
            bytes_of.setdefault(at, np.zeros(len(pieces)))[position] = size
            asks.setdefault(at, np.zeros(len(pieces), np.int64))[position] = 1
    latency, work = np.zeros(len(first)), np.zeros(len(first))
    for at, sizes in bytes_of.items():
        _, request = at
        empty = request_cost(cluster, request, 0.0)
        one = request_cost(cluster, request, 1.0, is_merged=True)
        summed = in_groups(sizes)
        latency += np.where(in_groups(asks[at]) > 0, empty.latency, 0.0)
        latency += np.where(last > first, one.copies * summed, 0.0)
        work += one.work * summed
    return GroupCosts(latency, work)
