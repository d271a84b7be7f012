"""What a method is given to run on: machines for parameter servers, and plans made for the cluster.

Costs are compared on equal terms: a method that needs more machines with one that may use as many,
and plans that believe in the same cost of an all-reduce.
"""

from __future__ import annotations

from dataclasses import replace

from ddlnb.clusters.cluster import Cluster


def server_machines(cluster: Cluster, architecture: str) -> int:
    """Return how many machines parameter servers take beside those of the workers.

    None within a node, where no servers take part, and none where they run on workers' nodes.

    >>> import ddlnb
    >>> cluster = ddlnb.get_cluster("survey-10GbE", workers=16)
    >>> server_machines(cluster, "PS"), server_machines(cluster, "A2A")
    (4, 0)
    """
    apart = cluster.nodes_in_use > 1 and cluster.server_place == "extra machines"
    return cluster.default_servers if apart and architecture == "PS" else 0


def with_own_plans(cluster: Cluster) -> Cluster:
    """Return the cluster on which methods merge gradients by its own cost of an all-reduce.

    A cluster may say that methods were run with another cost in mind; who chooses a method today
    can give it the right one.
    """
    return replace(cluster, planning=None)
