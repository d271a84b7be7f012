"""What messages cost on a cluster, as the simulator counts it: seconds against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.clusters.cluster import Cluster
from ddlnb.networks.transfers import Primitive

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective on a quiet machine, and its shares while the workers compute."""

    cluster: Cluster
    primitive: Primitive = "all-reduce"

    def parts(self, sizes: NDArray[Any]) -> tuple[float, Numbers, float]:
        """Return latency seconds, seconds of work of messages of these bytes, and their share."""
        if self.cluster.workers == 1:
            return 0.0, np.zeros(len(sizes)), 1.0
        if self.primitive == "all-reduce":
            latency, work, share = self.cluster.all_reduce_work(sizes)
        else:
            latency, work, share = self.cluster.half_work(self.primitive, sizes)
        return latency, np.asarray(work, np.float64), share

    def seconds(self, sizes: NDArray[Any]) -> Numbers:
        """Return the seconds of messages of these bytes."""
        latency, work, _ = self.parts(sizes)
        return latency + work


def all_reduce_costs(cluster: Cluster, names: Sequence[str]) -> list[Cost]:
    """Return the cost of every collective by name, "" for the cluster's own."""
    return [Cost(replace(cluster, all_reduce=name) if name else cluster) for name in names]
