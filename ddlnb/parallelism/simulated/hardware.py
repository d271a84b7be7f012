"""Networks of named hardware for iterations that are played: GPUs, nodes, what joins them."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.clusters.named import usual_network
from ddlnb.errors import require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.hardware.nodes import link_inside
from ddlnb.networks.islands import with_islands
from ddlnb.networks.network import Network
from ddlnb.networks.topologies import Star, get_topology
from ddlnb.networks.topology import Topology
from ddlnb.parallelism.forecast.machines import sustained_share


@dataclass(frozen=True, eq=False)
class Machines:
    """GPUs in nodes on a network: what `play_iteration` needs of them.

    ``flops`` is what one GPU sustains in large matrices, per second.
    """

    gpu: Gpu
    network: Network
    flops: float


def machines_of(
    gpu: str | Gpu,
    nodes: int,
    *,
    gpus_per_node: int = 8,
    network: str | Interconnect | None = None,
    topology: str | Topology | None = None,
    precision: str = "bf16",
) -> Machines:
    """Return nodes of a GPU, joined by a network: by default the ports that it is sold with.

    ``topology`` joins the nodes, by default one switch; further hosts of it stay idle. Bandwidths
    and latencies are those of the hardware's files: what large messages get, not the data sheet.
    Raises UnknownName and InputError for hardware that is not known, or a topology of fewer hosts.

    >>> machines = machines_of("H100", 4)
    >>> machines.network.ranks, round(machines.flops / 1e12)
    (32, 712)
    """
    require_whole(nodes=nodes, gpus_per_node=gpus_per_node)
    gpu = get_gpu(gpu)
    if network is None:
        network = usual_network(gpu, gpus_per_node)
    join = get_interconnect(network)
    shape = Star(max(2, nodes)) if topology is None else get_topology(topology)
    # A hop between nodes has at least two links: their latencies add up to that of the hop.
    hosts = shape.network(join.bandwidth.value, join.latency.value / 2)
    require(
        hosts.ranks >= nodes,
        f"topology {hosts.name!r} has {hosts.ranks} hosts, fewer than the {nodes} nodes; "
        f"take a larger one",
    )
    inside = link_inside(gpu)
    whole = with_islands(
        hosts,
        gpus_per_node,
        gpu.inside_bandwidth * inside.share.value,
        inside.latency.value / 2,
    )
    return Machines(gpu, whole, gpu.peak(precision) * sustained_share(gpu, precision))
