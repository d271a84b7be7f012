"""The hardware of a cluster as large models take it, and networks that are faster.

A cluster has names of its hardware and numbers of its own, which a file may have measured: the
numbers count, and the names say what they are of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_interconnect
from ddlnb.hardware.gpu import Gpu, Pcie
from ddlnb.hardware.machine import Interconnect, link_inside, protocols

BY_NAME = 0.01  # a bandwidth that differs by less is the one that follows from the name
RDMA = "RoCE"  # what a line of Ethernet has instead of sockets


def network_of(cluster: Cluster) -> Interconnect:
    """Return what joins the nodes: by its name, but with the bandwidth that the cluster has.

    A file may have measured another one than the name promises, or a network of its own.
    """
    own = cluster.effects.between_bandwidth
    try:
        named = get_interconnect(cluster.network)
    except InputError:
        protocol = get_interconnect("100GbIB").protocol
        return Interconnect(cluster.network, own, protocol, cluster.name)
    if math.isinf(own) or abs(own / named.bandwidth.value - 1) < BY_NAME:  # inf: unlimited
        return named
    rate = own / named.protocol.share.value / named.ports
    protocol = replace(named.protocol, cap=None) if own > named.bandwidth.value else named.protocol
    return replace(
        named, port_rate=rate, protocol=protocol, source=cluster.name, aliases=(), line=None
    )


@dataclass(frozen=True)
class MeasuredPcie(Pcie):
    """A slot with a bandwidth of its own, in bytes/s."""

    rate: float

    @property
    def bandwidth(self) -> float:
        """Bytes/s in one direction."""
        return self.rate


def gpu_of(cluster: Cluster, gpu: Gpu) -> Gpu:
    """Return the GPU, but with the bandwidth to others of its node that the cluster has."""
    own = cluster.effects.inside_bandwidth / link_inside(gpu).share.value
    times = own / gpu.inside_bandwidth
    if math.isinf(own) or abs(times - 1) < BY_NAME:
        return gpu
    if gpu.nvlink is not None:
        return replace(gpu, nvlink=replace(gpu.nvlink, bandwidth=own))
    return replace(gpu, pcie=MeasuredPcie(gpu.pcie.generation, gpu.pcie.lanes, own))


NO_HOP = 1e-12  # seconds; what is known is above 0


def without_latency(network: Interconnect) -> Interconnect:
    """Return a network whose hops take nothing."""
    none = replace(network.protocol.latency, value=NO_HOP, low=NO_HOP, high=NO_HOP)
    return replace(network, protocol=replace(network.protocol, latency=none))


def rdma_of(network: Interconnect) -> Interconnect:
    """Return the same line where no software of sockets limits it."""
    return replace(network, protocol=protocols()[RDMA])


def needs_rdma(network: Interconnect, factor: float) -> bool:
    """Return whether sockets would not move so many times as much, however fast the line."""
    cap = network.protocol.cap
    return cap is not None and factor * network.bandwidth.value > cap.value * network.ports


def times_as_fast(network: Interconnect, factor: float) -> Interconnect:
    """Return a network of so many times the bandwidth, by RDMA where sockets do not move it."""
    faster = rdma_of(network) if needs_rdma(network, factor) else network
    wanted = factor * network.bandwidth.value
    return replace(faster, port_rate=wanted / faster.protocol.share.value / network.ports)
